"""Buffers that a forward both reads and changes: recomputing it reads them as they were the first time."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung.api import capture
from farflung.cost import MemorySettings, op_costs, stage_memory
from farflung.engines import EngineSettings
from farflung.frontends.torch.ambient import module_states
from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.job import JobSpec
from farflung.job.spec import OptimizerSpec
from farflung.plan import Stage
from farflung.plan.estimation.stage_memory import memory_of
from farflung.testing.reference import PlainSettings, plain_loop
from tests.support.engines.engine_drive import Stages, equal_cuts

SGD = OptimizerSpec(lr=0.1, momentum=0.9)


class Drift(nn.Module):
    """``forward(x, y)``: floats ``(n, 6)`` and int64 ``(n,)`` -> loss. ``kind``: what of the buffers reaches the loss."""

    ema: Tensor

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind
        self.up, self.norm, self.out = nn.Linear(6, 8), nn.BatchNorm1d(8), nn.Linear(8, 6)
        self.register_buffer("ema", torch.ones(8))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        h = self.norm(self.up(x))
        if self.kind == "after":
            with torch.no_grad():
                self.ema.mul_(0.9).add_(h.mean(0))
            h = h * self.ema
        elif self.kind == "before":
            h = h * self.ema.clone()
            with torch.no_grad():
                self.ema.mul_(0.9).add_(h.mean(0))
        elif self.kind == "beside":
            with torch.no_grad():
                self.ema.mul_(0.9).add_(h.mean(0))
        elif self.kind == "statistics":
            assert self.norm.running_var is not None
            h = h * self.norm.running_var.clone()
        return functional.cross_entropy(self.out(h.tanh()), y)


def drift(kind: str) -> nn.Module:
    torch.manual_seed(0)
    return Drift(kind).train()


def batch(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(10 * step + micro_batch)
    return torch.randn(4, 6, generator=random), torch.randint(0, 6, (4,), generator=random)


def trained(kind: str, graph: Graph, stages: int, *, recompute: bool) -> tuple[list[Any], dict[str, np.ndarray[Any, Any]], Any]:
    run = Stages(graph, equal_cuts(graph, stages), EngineSettings(optimizer=SGD, seed=3, recompute=recompute))
    run.load(module_states(drift(kind), graph))
    losses = []
    for step in range(3):
        losses.append(run.step(step, 3, batch))
        run.update()
    return losses, run.states(), run


#: The states that must be kept (those of a normalization together).
READ: dict[str, set[str]] = {
    "none": set(),
    "beside": set(),
    "after": {"ema"},
    "before": {"ema"},
    "statistics": {"norm.running_mean", "norm.running_var"},
}


@pytest.mark.parametrize("kind", READ)
def test_recomputing_changes_nothing(kind: str) -> None:
    truth = plain_loop(drift(kind), batch, steps=3, micro_batches=3, settings=PlainSettings(optimizer=SGD, seed=3))
    graph = capture(drift(kind), batch(0, 0))
    for recompute in (False, True):
        losses, states, run = trained(kind, graph, 1, recompute=recompute)
        assert losses == list(truth.micro_losses)
        assert [name for name in states if states[name].tobytes() != truth.states[name].tobytes()] == []
        assert set().union(*(runner._drifting for runner in run.runners)) == (READ[kind] if recompute else set())


def test_what_was_kept_is_let_go() -> None:
    graph = capture(drift("after"), batch(0, 0))
    _, _, run = trained("after", graph, 1, recompute=True)
    assert all(not runner._kept for runner in run.runners)


@pytest.mark.parametrize(("kind", "names"), [("none", 0), ("after", 8 * 4), ("statistics", 2 * 8 * 4)])
def test_the_memory_estimate_counts_what_is_kept(kind: str, names: int) -> None:
    graph = capture(drift(kind), batch(0, 0))
    (piece,) = cut(graph, [(0, len(graph.ops))])
    cost = op_costs(graph)
    stage = Stage(index=0, start=0, stop=len(graph.ops), device="a", recompute=True)
    found = memory_of(cost, stage, piece, JobSpec(), 3).activations
    bare = stage_memory(
        cost, 0, [len(graph.ops)], MemorySettings(recompute=True, in_flight=3), np.zeros(1), np.zeros(1)
    ).activations
    assert float(found[0] - bare[0]) == 3 * names
    assert memory_of(cost, stage, piece, JobSpec(), 3, recompute=False).activations >= 0
