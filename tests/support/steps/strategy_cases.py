"""Runs of replicas that agree by a strategy, and how close their weights must be."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from torch import nn

from farflung.engines.base import Array
from tests.support.steps.executor_threads import Case, Ran, job_of
from tests.support.steps.replica_cases import knot

SGD = {"name": "sgd", "lr": 0.05}
GRID = {0: [("a", range(2)), ("c", range(2, 4))], 1: [("b", range(2)), ("d", range(2, 4))]}
ALONE = {0: [("a", range(2)), ("c", range(2, 4))]}


#: What ``STRATEGIES`` needs beside defaults to do something in a few steps.
SETTINGS: dict[str, dict[str, Any]] = {
    "local_sgd": {"sync_every": 2},
    "partial": {"sync_every": 2},
    "dreamddp": {"sync_every": 2},
    "contiguous": {"sync_every": 2},
    "free_sets": {"sync_every": 2},
    "diloco": {"sync_every": 2},
    "streaming_diloco": {"sync_every": 2, "fragments": 2, "overlap": 1},
    "co2": {"sync_every": 2, "penalty": False},
    "gossip": {"keep_variance": False},
    "branch_train_merge": {"branch_at": 3},
    "modest": {"sync_every": 2},
    "fedbuff": {"sync_every": 2},
    "fedfix": {"sync_every": 2},
    "fedcompass": {"sync_every": 2},
    "fedamd": {"sync_every": 2},
    "fedkseed": {"sync_every": 2, "scale": 0.01},
}


#: Those for which two members are too few, and that match the units of one stage.
ELSEWHERE = {"robust", "dimat"}


def case_of(strategy: str, settings: Mapping[str, Any] | None = None, grid: bool = True, **changes: Any) -> Case:
    document = {"micro_batch_sizes": [3, 2, 4, 1], "optimizer": SGD, "plan": {"replicas": 2}}
    sync = {} if strategy == "exact" else {"sync": {"strategy": strategy, "settings": dict(settings or {})}}
    return Case(
        job=job_of(**(document | sync | changes)),
        devices=("a", "b") if grid else ("a",),
        make=knot,
        replicas=GRID if grid else ALONE,
        cut_seed=1,
    )


def close(one: Ran, two: Ran) -> None:
    assert one.states.keys() == two.states.keys()
    for name, value in one.states.items():
        np.testing.assert_allclose(two.states[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


def assert_agreed(strategy: str, one: Mapping[str, Array], two: Mapping[str, Array]) -> None:
    for name in one:
        np.testing.assert_allclose(one[name], two[name], rtol=1e-6, atol=1e-7, err_msg=f"{strategy} {name}")


class Scored(nn.Module):
    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(self.body(x), y)


def straight() -> nn.Module:
    """Without random operators; its second layer is shared."""
    torch.manual_seed(1)
    shared = nn.Linear(8, 8)
    return Scored(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), shared, nn.Tanh(), shared, nn.LayerNorm(8), nn.Linear(8, 8)))
