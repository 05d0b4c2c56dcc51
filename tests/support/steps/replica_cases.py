"""Plans by hand whose stages have replicas, on a tangled module."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung.job import JobSpec
from farflung.plan.model import Plan
from tests.support.steps.executor_threads import Case, hand_plan, job_of


class Knot(nn.Module):
    """As ``Tangle`` without batch norm: tied and shared weights, dropout, residuals."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.mix, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.layer, self.drop = nn.LayerNorm(8), nn.Dropout(0.2)
        self.last.weight = self.mix.weight

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.up(x).tanh()
        z = x + self.drop(self.mix(x))
        z = self.layer(z) + self.drop(self.mix(z))
        return functional.cross_entropy(self.last(z) + x, y)


def knot() -> nn.Module:
    torch.manual_seed(0)
    return Knot().train()


SIZES = [4, 2, 3, 4, 1, 2]


#: replicas of two stages: (device, first, end)
LAYOUTS: dict[str, tuple[Sequence[tuple[str, int, int]], Sequence[tuple[str, int, int]]]] = {
    "2 x 2": ([("a", 0, 3), ("c", 3, 6)], [("b", 0, 3), ("d", 3, 6)]),
    "uneven": ([("a", 0, 4), ("c", 4, 6)], [("b", 0, 1), ("d", 1, 6)]),
    "3 x 1": ([("a", 0, 2), ("b", 2, 3), ("c", 3, 6)], [("d", 0, 6)]),
    "one device in both": ([("a", 0, 3), ("b", 3, 6)], [("b", 0, 2), ("a", 2, 6)]),
    "1 x 3": ([("a", 0, 6)], [("a", 0, 2), ("b", 2, 4), ("c", 4, 6)]),
}


def case_of(layout: str, **changes: Any) -> Case:
    job = job_of(**({"micro_batch_sizes": SIZES} | changes))
    first, second = LAYOUTS[layout]
    replicas = {index: [(name, range(start, end)) for name, start, end in held] for index, held in enumerate((first, second))}
    return Case(job=job, devices=(first[0][0], second[0][0]), make=knot, replicas=replicas, cut_seed=1)


def small_plan(case: Case) -> tuple[Plan, Any, JobSpec]:
    graphs = case.graphs()
    graph = graphs[max(graphs)]
    return hand_plan(case, graph), graph, case.job
