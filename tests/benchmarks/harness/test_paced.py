"""The device emulation: modelled time passes as a device's would, within a backward too."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.harness.paced import PacedEngine, pace_of
from farflung.api import capture
from farflung.engines import get_engine
from farflung.engines.base import EngineSettings, MicroBatch
from farflung.frontends.torch.ambient import batch_arrays
from farflung.graph.cut import cut


class Chain(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(6, 6) for _ in range(3)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        total: torch.Tensor = self.layers(x).sum()
        return total


def test_layers_are_ready_when_the_modelled_backward_has_come_to_them(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr(time, "perf_counter", lambda: now[0])

    def sleep(seconds: float) -> None:
        now[0] += seconds

    graph = capture(Chain(), (torch.ones(2, 6),))
    (piece,) = cut(graph, [(0, len(graph.ops))])
    settings = EngineSettings()
    pace = pace_of(piece, settings, 1000.0)
    runner = PacedEngine(get_engine("torch"), lambda: 1000.0, sleep).open(piece, settings)
    runner.load({name: np.ones(graph.state[name].spec.shape, np.float32) for name in piece.states})
    key = MicroBatch(0, 0)
    arrays: dict[str, Any] = batch_arrays((torch.ones(2, 6),), dict(graph.meta).get("inputs", "").split(","))
    runner.forward(key, {}, arrays)
    assert now[0] == pytest.approx(100.0 + pace.forward)
    groups = [[f"layers.{index}.weight", f"layers.{index}.bias"] for index in range(3)]
    seen: list[tuple[int, float]] = []
    begin = now[0]
    runner.watch(groups, lambda index: seen.append((index, now[0] - begin)))
    runner.backward(key, {}, 1.0)
    assert [index for index, _ in seen] == [2, 1, 0]
    for index, moment in seen:
        assert moment == pytest.approx(pace.ready[f"layers.{index}.weight"])
    assert 0 < seen[0][1] < seen[1][1] < seen[2][1] <= pace.backward
    assert now[0] == pytest.approx(begin + pace.backward)
    begin = now[0]
    runner.update([0.1], None, groups[0])
    assert now[0] == pytest.approx(begin + pace.update / 3)
