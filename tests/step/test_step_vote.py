"""Strategies without a barrier on workers: nobody waits for who is slow, and the model is that of the specification."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.telemetry import injecting
from tests.support.steps.executor_threads import EVERY_STEP, Case, differing, newest, other, run_threads
from tests.support.steps.strategy_cases import case_of, straight
from tests.support.steps.strategy_specification import as_specified

NAMES = ["fedbuff", "fedfix", "fedcompass"]


def of(name: str, speeds: tuple[int, int], settings: Mapping[str, Any] | None = None, **changes: Any) -> Case:
    grid = changes.pop("grid", False)
    case = case_of(name, {"sync_every": 4} | dict(settings or {}), grid=grid, **changes)
    return other(case, local_steps=speeds) if grid else other(case, local_steps=speeds, make=straight)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("speeds", [(4, 1), (1, 4), (4, 3)], ids=["the other is slow", "the leader is slow", "nearly equal"])
def test_workers_do_what_the_specification_does(name: str, speeds: tuple[int, int]) -> None:
    as_specified(of(name, speeds, steps=18, optimizer={"name": "adamw", "lr": 3e-3}), register="anchor")


@pytest.mark.parametrize("name", NAMES)
def test_pipelines_of_two_stages_end_in_agreement(name: str) -> None:
    ran = run_threads(of(name, (4, 2), {"codec": "int8"}, steps=10, grid=True))
    for one, two in (("a", "c"), ("b", "d")):
        assert differing(ran.held[one], ran.held[two]) == [], "all have the common model, bit for bit"
    assert all(np.isfinite(loss) for loss in ran.losses)


def test_losses_count_in_the_step_in_which_a_local_step_ends() -> None:
    """The slow pipeline takes steps 0 and 4 of 8; its two micro-batches count at the ends of both periods."""
    ran = run_threads(of("fedbuff", (4, 1), steps=8))
    assert [len(report.losses) for report in ran.reports] == [2, 2, 2, 4, 2, 2, 2, 4]
    assert [report.samples for report in ran.reports] == [5, 5, 5, 10] * 2


@pytest.mark.parametrize(("fast", "slow"), [("a", "c"), ("c", "a")], ids=["the leader is fast", "the leader is slow"])
def test_nobody_waits_for_the_forward_of_who_is_slow(fast: str, slow: str) -> None:
    """The slow pipeline's first forward ends only when the fast one has begun the last step of the period.

    With ``by_speed`` of other strategies, the fast one would wait for that forward in the first step.
    """
    on, seen = threading.Event(), list[str]()

    def look(name: str, facts: Mapping[str, int | str]) -> None:
        place = facts["device"], facts["step"]
        if name == "worker.before_forward" and place == (fast, 3):
            on.set()
        if name == "worker.before_forward" and place == (slow, 0) and not seen:
            seen.append(name)
            assert on.wait(60), "the fast pipeline waits for the slow one"

    with injecting(look):
        ran = run_threads(of("fedbuff", (4, 1) if fast == "a" else (1, 4), steps=4))
    assert len(ran.losses) == 4
    assert seen


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("at", [1, 4, 5, 6])
def test_a_run_resumes_with_the_same_weights(name: str, at: int, tmp_path: Path) -> None:
    """Within a long local step, and between a contribution and its arrival. Losses under way at a checkpoint count nowhere."""
    case = of(name, (4, 2), {"overlap": 2}, steps=11, checkpoint=EVERY_STEP)
    whole = run_threads(other(case, root=tmp_path / "one"))
    assert whole.store is not None
    again = run_threads(other(case, root=tmp_path / "two", resume=whole.store.checkpoints.path(at)))
    for device, held in whole.held.items():
        assert differing(held, again.held[device]) == [], device
    assert newest(again).manifest.step == 11
    assert again.losses[4:] == whole.losses[at + 4 :]
