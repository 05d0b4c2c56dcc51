"""Waists of the GPT: a cut there sends few numbers, and everything else is as ever."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from farflung.api import capture
from farflung.cluster import Device, Topology
from farflung.errors import InputError
from farflung.frontends.recipes import load_recipe
from farflung.frontends.recipes.waist import Waist
from farflung.graph import Graph
from farflung.job.load import make_job
from farflung.plan import Plan, estimate
from farflung.planners import get_planner
from farflung.testing.reference import PlainSettings, plain_loop
from farflung.units import Bytes, FlopsPerSecond

SEQUENCE, WIDTH, DIMS, ROWS = 16, 32, 3, 2


def graph_of(**more: object) -> Graph:
    args = {"vocab": 64, "sequence": SEQUENCE, "layers": 4, "width": WIDTH, "heads": 2, "tied": False} | more
    recipe = load_recipe("gpt", args)
    return capture(recipe.train.factory, recipe.train.example_inputs(ROWS))


def planned(graph: Graph) -> Plan:
    devices = [Device(name=name, memory=Bytes(1e9), speed=FlopsPerSecond(1e8)) for name in "abcd"]
    slow = Topology.from_matrices(np.zeros((4, 4)), np.full((4, 4), 1e6), devices)
    job = make_job({"micro_batch_sizes": [ROWS] * 8, "plan": {"planner": "op_fence"}, "data": {"kind": "caller"}})
    plan = get_planner("op_fence").plan(graph, slow, job=job)
    dense = {link.forward_dense_bytes for link in estimate(graph, plan, slow, job).links}
    assert dense == {4.0 * ROWS * SEQUENCE * DIMS}, "only what the waist lets through"
    return plan


@pytest.mark.parametrize("learned", [True, False])
def test_a_planner_cuts_at_the_waists(learned: bool) -> None:
    graph = graph_of(waist=DIMS, waists=3, waist_learned=learned)
    assert len(planned(graph).stages) > 1
    names = {state.name: state for state in graph.states if "waists" in state.name}
    assert {state.trainable for state in names.values()} == {learned}
    assert len(names) == (6 if learned else 3)


def test_few_random_rows_are_nearly_orthonormal() -> None:
    torch.manual_seed(0)
    waist = Waist(1024, 8, learned=False)
    matrix = waist.down.weight.detach().numpy()
    assert np.abs(matrix @ matrix.T - np.eye(8)).max() < 0.2
    inside = torch.from_numpy(matrix.T @ np.ones((8, 1), np.float32)).reshape(1, -1)
    assert torch.linalg.norm(waist(inside) - inside) < 0.3 * torch.linalg.norm(inside)


def test_a_model_with_waists_learns() -> None:
    recipe = load_recipe("gpt", {"vocab": 16, "sequence": 8, "layers": 2, "width": 16, "heads": 2, "waist": 4})
    torch.manual_seed(0)
    tokens = torch.arange(16).reshape(2, 8) % 5
    settings = PlainSettings(optimizer=make_job({"optimizer": {"name": "adamw", "lr": 1e-2}}).optimizer, seed=0, weights=[1.0])
    losses = plain_loop(recipe.train.factory(), lambda s, m: (tokens, tokens + 1), steps=20, micro_batches=1, settings=settings)
    assert losses.losses[-1] < 0.7 * losses.losses[0]


def test_without_a_waist_nothing_changes() -> None:
    assert graph_of().hash == graph_of(waist=0).hash
    assert not [state for state in graph_of().states if "waist" in state.name]


def test_waists_that_can_not_be_are_refused() -> None:
    with pytest.raises(InputError, match="gpt: waist = 32 at 1 places: it needs fewer dims than the width, 32"):
        graph_of(waist=32)
    with pytest.raises(InputError, match="fewer places than there are layers, 4"):
        graph_of(waist=4, waists=4)
    with pytest.raises(InputError, match=r"known are vocab, .* waist, waists, waist_learned"):
        graph_of(wasp=1)
    with pytest.raises(InputError, match=r"gpt: waists = 2 without waist, the dims .*: give it, or remove waists"):
        graph_of(waists=2)
    with pytest.raises(InputError, match="gpt: waist_learned must be true or false, got 'no'"):
        graph_of(waist=4, waist_learned="no")
