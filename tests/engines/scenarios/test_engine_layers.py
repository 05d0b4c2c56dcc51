"""Layers that are hard to capture train bit by bit as in a plain PyTorch loop, for any cut, recomputed, and after JSON."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.engines import EngineSettings
from farflung.errors import GraphError
from farflung.graph.ir import Graph
from farflung.job.spec import OptimizerSpec
from tests.support.engines.engine_drive import assert_equal, captured, equal_cuts, plain, random_cuts, run
from tests.support.models.layer_models import LAYERS

SGD = OptimizerSpec(lr=0.05, momentum=0.9)
SETTINGS = EngineSettings(optimizer=SGD)


def _random_cuts(graph: Graph, stages: int, seed: int) -> list[tuple[int, int]]:
    """A random cut that keeps what reads a changing state with what changes it."""
    from farflung.graph.cut import cut

    for attempt in range(200):
        bounds = random_cuts(graph, stages, 1000 * seed + attempt)
        try:
            cut(graph, bounds)
        except GraphError:
            continue
        return bounds
    return [(0, len(graph.ops))]


@pytest.mark.parametrize("name", LAYERS)
def test_cuts(name: str) -> None:
    graph = captured(name)
    assert Graph.from_json(graph.to_json()) == graph
    found = run(name, equal_cuts(graph, 1), 3, SETTINGS)
    assert_equal(found, plain(name, 3, SGD))
    for stages, seed in ((2, 0), (2, 1), (3, 2), (3, 3)):
        assert_equal(run(name, _random_cuts(graph, stages, seed), 3, SETTINGS), plain(name, 3, SGD))


@pytest.mark.parametrize("change", [{"recompute": True}, {"split_backward": True}], ids=["recomputation", "split backward"])
@pytest.mark.parametrize("name", LAYERS)
def test_other_ways_to_go_back(name: str, change: dict[str, bool]) -> None:
    settings = replace(SETTINGS, **change)
    assert_equal(run(name, _random_cuts(captured(name), 2, 5), 3, settings), plain(name, 3, SGD))
