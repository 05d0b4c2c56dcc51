"""Runs whose sets of layers follow measured times."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.step.sync.layer_times import LayerTimes
from farflung.sync import LayerInfo, World
from farflung.units import Bytes, Seconds
from tests.support.steps.executor_threads import EVERY_STEP, Case, assert_goes_on, differing, run_threads
from tests.support.steps.strategy_cases import case_of


class Clock:
    now = 1.0

    def __call__(self) -> float:
        return self.now

    def on(self, seconds: float) -> None:
        self.now += seconds


def times_of_three(clock: Clock) -> LayerTimes:
    layer = LayerInfo(nbytes=Bytes(100), bp_seconds=Seconds(1), comm_seconds=Seconds(1))
    return LayerTimes(World(rank=0, members=2, layers=(layer,) * 3), clock)


def test_a_layer_takes_what_its_backward_took_without_what_was_done_between() -> None:
    clock = Clock()
    times = times_of_three(clock)
    for factor in (9.0, 1.0, 1.0):  # the first step is slow
        times.begins()
        clock.on(2.0 * factor)
        at = times.now()
        clock.on(0.5)  # an update, the begin of an exchange
        times.ready(2, at)
        clock.on(1.0 * factor)
        times.ready(1, times.now())
        clock.on(0.25 * factor)
        times.ends()
    times.exchanged(100, 1.0, 3.0)
    times.exchanged(100, 2.0, 4.0)  # at once with the one before
    times.exchanged(200, 6.0, 7.0)
    times.step_over()
    assert times.take().tolist() == [0.25, 1.0, 2.0, 1.0, 1.0, 1.0], "4 s in which exchanges of 400 bytes were under way"
    assert times.take().tolist() == [0.0] * 6, "nothing since"


def drifting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The exchange of every other layer takes long."""

    def take(self: LayerTimes) -> Any:
        count = len(self._nbytes)
        return np.array([1.0] * count + [8.0 * (index % 2) + 0.125 for index in range(count)], np.float32)

    monkeypatch.setattr(LayerTimes, "take", take)


def adapting(**changes: Any) -> Case:
    return case_of("free_sets", {"sync_every": 2, "adapt": 0.01}, **changes)


def test_measured_times_of_a_run_do_it_no_harm() -> None:
    """Whatever a busy machine measures: replicas end in agreement."""
    ran = run_threads(adapting(steps=8))
    assert differing(ran.held["a"], ran.held["c"]) == []
    assert all(np.isfinite(loss) for loss in ran.losses)


def test_a_change_of_sets_is_said_once_for_a_stage_and_replicas_stay_together(monkeypatch: pytest.MonkeyPatch) -> None:
    drifting(monkeypatch)
    ran = run_threads(adapting(steps=8, grid=False))
    assert len(ran.notes) == 1
    assert ran.notes[0].startswith("step 4: measured times ask for other sets of layers in stage 0: ")
    assert differing(ran.held["a"], ran.held["c"]) == []


@pytest.mark.parametrize("at", [2, 3, 5])
def test_a_run_goes_on_with_the_sets_that_it_had(at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Before, between and after telling and following."""
    drifting(monkeypatch)
    assert_goes_on(adapting(steps=8, grid=False, checkpoint=EVERY_STEP), at, tmp_path)
