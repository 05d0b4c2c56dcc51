"""Runs by speed whose local steps follow measured times."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.errors import WireError
from farflung.messages.data import LocalStepTime
from farflung.step.inbox import Inbox
from farflung.step.run_setup import RunSetup
from farflung.step.sync.local_step_counts import LocalStepCounts
from farflung.step.transfer.outbox import Outbox
from farflung.sync import get_strategy
from tests.support.steps.executor_threads import EVERY_STEP, Case, assert_goes_on, hand_plan, other, run_threads
from tests.support.steps.strategy_cases import assert_agreed, case_of

#: Seconds of a local step by device; "b" and "d" have no first stage and are not asked.
SECONDS = {"a": 1.0, "c": 2.0}


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def paced(strategy: str = "local_sgd", **changes: Any) -> Case:
    grid = changes.pop("grid", False)
    settings = {"sync_every": 4, "by_speed": True}
    if strategy == "co2" and grid:
        settings["penalty"] = False  # it damps by norms of a stage, and two stages share a weight
    return other(case_of(strategy, settings, grid=grid, **changes), local_steps=(4, 4))


@pytest.fixture
def measured(monkeypatch: pytest.MonkeyPatch) -> None:
    def take(self: LocalStepCounts) -> float:
        return SECONDS[self._setup.device]

    monkeypatch.setattr(LocalStepCounts, "take", take)


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("grid", [True, False], ids=["2 x 2", "2 x 1"])
@pytest.mark.parametrize("strategy", ["local_sgd", "diloco", "co2"])
def test_steps_follow_what_was_told_a_period_before(strategy: str, grid: bool) -> None:
    """Pipelines of two stages decide alike on all their devices, or they would wait for each other for ever."""
    ran = run_threads(paced(strategy, grid=grid, steps=12))
    assert [len(report.losses) for report in ran.reports] == [4] * 8 + [4, 2, 4, 2], "two of four micro-batches rest"
    assert ran.notes == ["step 8: local steps took 1, 2 s: replicas take 4, 2 of 4 from here on"]
    assert all(np.isfinite(loss) for loss in ran.losses)
    assert_agreed(strategy, ran.held["a"], ran.held["c"])


@pytest.mark.usefixtures("measured")
def test_the_ledger_counts_no_samples_of_who_rests(tmp_path: Path) -> None:
    ran = run_threads(other(paced(steps=12, checkpoint=EVERY_STEP), root=tmp_path))
    assert ran.store is not None
    counted = [ran.store.checkpoints.manifest(step).ledger["samples"] for step in range(1, 13)]
    assert counted == list(itertools.accumulate(report.samples for report in ran.reports))
    assert counted[11] - counted[10] < counted[0], "somebody has rested"


@pytest.mark.usefixtures("measured")
def test_the_mean_weighs_the_samples_that_are_used() -> None:
    """After the change a run is the one that was planned so, from the same states on."""
    changed = run_threads(paced(steps=12))
    begun = run_threads(paced(steps=8))
    assert changed.losses[:8] == begun.losses
    assert changed.losses[9] != run_threads(paced(steps=12, sync={"strategy": "local_sgd", "settings": FIXED})).losses[9]


FIXED = {"sync_every": 4, "by_speed": True, "adapt": 0.0}


@pytest.mark.usefixtures("measured")
@pytest.mark.parametrize("at", [9, 10, 11])
def test_a_run_goes_on_with_the_steps_that_it_had(at: int, tmp_path: Path) -> None:
    assert_goes_on(paced(steps=12, checkpoint=EVERY_STEP), at, tmp_path)


def test_real_times_do_a_run_no_harm() -> None:
    ran = run_threads(paced(steps=16))
    assert all(np.isfinite(loss) for loss in ran.losses)
    assert_agreed("local_sgd", ran.held["a"], ran.held["c"])


def alone(clock: Clock | None = None, **settings: Any) -> tuple[LocalStepCounts, Inbox]:
    case = paced(steps=4)
    graphs, mailbox = case.graphs(), Inbox()
    plan = hand_plan(case, graphs[max(graphs)])
    setup = RunSetup(run="run", device="a", job=case.job, plan=plan, graphs=graphs, eval_graph=None)
    strategy = get_strategy("local_sgd", **{"sync_every": 4, "by_speed": True} | settings)
    return LocalStepCounts(setup, strategy.traits, mailbox, Quiet(), clock or Clock()), mailbox


class Quiet(Outbox):
    def __init__(self) -> None:
        pass

    def post(self, peer: str, parcel: Any) -> None:
        assert peer == "c"


def test_a_local_step_lasts_until_its_last_backward_and_steps_of_rest_do_not_count() -> None:
    clock = Clock()
    paces, _ = alone(clock)
    for place, seconds in enumerate([5.0, 1.0, 0.0, 2.0]):
        assert paces.begin_step(place) is None
        clock.now += seconds / 2
        paces.backward_ended()
        clock.now += seconds / 2
        if seconds:
            paces.backward_ended()
        clock.now += 9.0  # waiting, averaging
        if place < 3:
            paces.end_step(place, place)
    assert paces.take() == 3.0, "of 5 and 1; the third was rest, the fourth is not over"
    assert paces.take() == 0.0


def test_what_is_no_pace_is_refused() -> None:
    paces, mailbox = alone()
    told = LocalStepTime(run="run", place=3, seconds=0.5)
    paces.receive("c", told)
    assert mailbox.take(("pace", 3, "c")) == 0.5
    with pytest.raises(WireError, match="x does not report local step times in this run"):
        paces.receive("x", told)
    fixed, _ = alone(adapt=0.0)
    with pytest.raises(WireError, match="c does not report local step times in this run"):
        fixed.receive("c", told)


def test_kept_steps_of_another_group_or_period_are_left() -> None:
    paces, _ = alone()
    before = paces.steps
    for strange in ([4.0, 4.0, 4.0], [3.0, 2.0], [4.0, 0.0]):
        paces.resume(np.array(strange, np.float32))
        assert paces.steps == before
    paces.resume(np.array([4.0, 2.0], np.float32))
    assert paces.steps == (4, 2)
    assert paces.retained is not None
    assert paces.retained.tolist() == [4.0, 2.0]
