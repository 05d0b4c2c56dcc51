"""Every planner finds a plan for every model preset on every topology preset, wherever one exists."""

from __future__ import annotations

from functools import cache

import pytest

from farflung.api.what_if.sources import MODEL_PRESETS, preset_job
from farflung.cluster import Topology
from farflung.cluster.presets import preset_names
from farflung.errors import PlanError
from farflung.frontends.recipes import load_recipe
from farflung.graph.ir import Graph
from farflung.plan import check_plan, estimate
from farflung.planners import Planner, get_planner, papers
from farflung.planners.auto import Auto, AutoSettings

TOPOLOGIES = [*(name for name in preset_names() if not name.endswith("-N")), "homogeneous-5", "regions-16"]
PLANNERS = ("hybrid_ps", "dtfm", "grid", "op_fence", "auto")


@cache
def graph_of(model: str) -> Graph:
    preset = MODEL_PRESETS[model]
    return load_recipe(preset.recipe, preset.args).graph("train", max(preset.micro_batch_sizes))


def planner_of(name: str) -> Planner:
    return Auto(AutoSettings(evaluations=0)) if name == "auto" else get_planner(name)


@pytest.mark.slow
@pytest.mark.parametrize("topology", TOPOLOGIES)
@pytest.mark.parametrize("model", MODEL_PRESETS)
def test_where_one_planner_finds_a_plan_the_others_find_one(monkeypatch: pytest.MonkeyPatch, model: str, topology: str) -> None:
    """How long the paper's search lasts plays no part here."""
    monkeypatch.setattr(papers, "GENETIC", 120)
    graph, where, job = graph_of(model), Topology.preset(topology), preset_job(model)
    found: dict[str, str] = {}
    for name in PLANNERS:
        try:
            plan = planner_of(name).plan(graph, where, job=job)
        except PlanError as error:
            found[name] = str(error)
            continue
        check_plan(plan, graph, where, job)
        assert estimate(graph, plan, where, job).feasible
    assert len(found) in (0, len(PLANNERS)), found
