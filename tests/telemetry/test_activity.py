"""Progress of slow work on a terminal and elsewhere."""

from __future__ import annotations

import io
import logging

import pytest
from rich.console import Console
from rich.text import Text

from farflung.telemetry import StepRecord
from farflung.telemetry.activity import Activity, TrainingProgress


def console(*, terminal: bool) -> Console:
    return Console(file=io.StringIO(), force_terminal=terminal, width=80)


def printed(place: Console) -> str:
    assert isinstance(place.file, io.StringIO)
    return place.file.getvalue()


def record(step: int) -> StepRecord:
    return StepRecord(step=step, loss=2.5, seconds=0.5, elapsed=0.5, samples=1, predicted_seconds=0.4)


def test_without_a_terminal_each_phase_is_one_line() -> None:
    place = console(terminal=False)
    with Activity(place) as activity:
        activity.phase("connecting to the broker", silent=True)
        activity.phase("capturing gpt [2]")
        activity.update("capturing gpt, 50 %")
        activity.say("a warning")
    assert printed(place) == "capturing gpt [2]\na warning\n"


def test_on_a_terminal_the_phase_has_a_live_line_that_is_cleared() -> None:
    place = console(terminal=True)
    with Activity(place) as activity:
        activity.phase("capturing gpt [2]")
        shown = Text.from_ansi(printed(place)).plain
        assert "capturing gpt [2] 0:00:00" in shown
        activity.phase("planning")
        activity.say("a warning")
    assert "a warning" in printed(place)
    assert printed(place).endswith("\x1b[2K"), "the live line is erased"


def test_ctrl_c_clears_the_live_line() -> None:
    place = console(terminal=True)

    def interrupted() -> None:
        with Activity(place) as activity:
            activity.phase("capturing gpt")
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert printed(place).endswith("\x1b[2K")
    assert "\x1b[?25h" in printed(place), "the cursor is shown again"


def test_a_phase_without_a_text_ends_the_live_line() -> None:
    place = console(terminal=True)
    activity = Activity(place)
    activity.phase("measuring")
    activity.phase("")
    assert printed(place).endswith("\x1b[2K")


def test_steps_are_logged_ten_times_and_printed_nowhere(caplog: pytest.LogCaptureFixture) -> None:
    place = console(terminal=False)
    with caplog.at_level(logging.INFO, logger="farflung"), TrainingProgress(40, Activity(place)) as progress:
        progress.captured()
        for step in range(40):
            progress(record(step))
    assert len(caplog.messages) == 10
    assert caplog.messages[0] == "step 4/40  loss 2.5000  500 ms/step (predicted 400 ms)  18.00 s left"
    assert caplog.messages[-1] == "step 40/40  loss 2.5000  500 ms/step (predicted 400 ms)"
    assert not printed(place)


def test_runs_that_have_the_workers_are_named(caplog: pytest.LogCaptureFixture) -> None:
    with TrainingProgress(2, Activity(console(terminal=False))) as progress:
        progress.waiting("run-1", 2, ["run-2", "run-2"])
        progress.waiting("run-1", 1, ["run-2", "run-3"])
        progress.waiting("run-1", 3, ["run-2"])
    assert [one.split(": ", 1)[0] for one in caplog.messages] == [
        "run-1 is waiting for 2 workers busy with run-2",
        "run-1 is waiting for 1 worker busy with run-2 and run-3",
        "run-1 is waiting for 3 more workers",
    ]


def test_waiting_for_machines_is_shown(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="farflung"):
        for place, missing in ((console(terminal=True), 2), (console(terminal=False), 1), (console(terminal=False), 0)):
            with TrainingProgress(2, Activity(place)) as progress:
                progress.waiting("run-1", missing)
                if place.is_terminal:
                    assert "run-1: waiting for 2 more workers: add workers with farflung join" in printed(place)
                else:
                    assert not printed(place)
    assert [(one.levelname, one.message) for one in caplog.records] == [
        ("INFO", "run-1 is waiting for 2 more workers: add workers with farflung join, or end the run with Ctrl-C"),
        ("WARNING", "run-1 is waiting for 1 more worker: add workers with farflung join, or end the run with Ctrl-C"),
        ("WARNING", "run-1 is waiting for its turn, as other runs have the workers, or end the run with Ctrl-C"),
    ]


def test_ctrl_c_before_the_first_step_promises_no_step(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, logger="farflung"), TrainingProgress(2, Activity(console(terminal=False))) as progress:
        progress.interrupted("the run is cancelled before its first step")
        progress.interrupted()
    assert caplog.messages == [
        "the run is cancelled before its first step; press Ctrl-C again to end it at once",
        "training ends after the current step; press Ctrl-C again to end it at once",
    ]


def test_notes_of_a_run_are_warnings_without_control_characters(caplog: pytest.LogCaptureFixture) -> None:
    with TrainingProgress(2, Activity(console(terminal=False))) as progress:
        progress.note("run-1", "lost: worker \x1b[31ma is gone")
    ((level, message),) = [(one.levelname, one.message) for one in caplog.records]
    assert (level, message.startswith("run-1: lost: worker "), "\x1b" in message) == ("WARNING", True, False)


def test_steps_have_a_live_line_on_a_terminal() -> None:
    place = console(terminal=True)
    with TrainingProgress(2, Activity(place)) as progress:
        assert "capturing the model" in printed(place)
        progress.captured()
        assert "waiting for the first step" in printed(place)
        progress(record(0))
        progress(record(1))
    assert printed(place).endswith("\x1b[2K")
