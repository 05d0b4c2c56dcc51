"""A tracker gets each step once and in order, whatever was made again, killed or resumed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from farflung.errors import DataError
from farflung.job.spec import ReportSpec
from farflung.telemetry.folder import RunFolder
from farflung.tracking.cursor import Cursor, TrackerBusy, claimed
from farflung.tracking.follower import RunFollower
from tests.support.records.recorded_runs import (
    STEPS,
    RecordingTracker,
    add_recovery,
    add_steps,
    begin_run,
    end_run,
    recorded_run,
)


def at_once(seconds: float) -> bool:
    return True


def never(seconds: float) -> bool:
    raise AssertionError("the run is over, so nothing is waited for")


def follow(folder: RunFolder, tracker: RecordingTracker, wait: Callable[[float], bool] = at_once) -> bool:
    return RunFollower(folder.root, "recording", tracker).follow(wait)


def test_a_finished_run_is_reported_once(tmp_path: Path) -> None:
    folder, tracker = recorded_run(tmp_path / "run-1"), RecordingTracker()
    assert follow(folder, tracker, never)
    assert tracker.steps("train/loss") == list(range(1, STEPS + 1))
    assert tracker.steps("eval/loss") == [5, 10, 15, 20]
    assert tracker.steps("events/recoveries") == [12]
    assert tracker.status == "finished"
    assert tracker.texts[0] == (
        12,
        "events/recovery",
        "attic-pc was lost; resumed after 1.5 s on a, b, from the state in memory; 3 steps repeated, from step 9",
    )
    assert tracker.texts[1:] == [(20, "samples/generated", "once upon a time")]
    again = RecordingTracker()
    assert follow(folder, again, never)
    assert again.begun == 0, "it is complete"


def test_a_run_is_followed_while_it_trains(tmp_path: Path) -> None:
    folder, tracker = begin_run(tmp_path / "run-1"), RecordingTracker()
    actions = iter(
        [
            lambda: add_steps(folder, 0, 7),
            lambda: add_recovery(folder, 4),
            lambda: add_steps(folder, 4, STEPS),
            lambda: end_run(folder),
        ]
    )

    def wait(seconds: float) -> bool:
        next(actions)()
        return False

    assert follow(folder, tracker, wait)
    assert tracker.steps("train/loss") == list(range(1, STEPS + 1))
    assert tracker.steps("eval/loss") == [5, 10, 15, 20]
    assert tracker.flushed == len(tracker.logged)


def test_a_process_that_ends_early_leaves_the_rest_to_the_next(tmp_path: Path) -> None:
    folder, first, second = begin_run(tmp_path / "run-1"), RecordingTracker(), RecordingTracker()
    add_steps(folder, 0, 8)
    assert not follow(folder, first)
    assert first.status == "", "the run goes on"
    add_recovery(folder, 6)
    add_steps(folder, 6, STEPS)
    end_run(folder)
    assert follow(folder, second)
    assert first.steps("train/loss") + second.steps("train/loss") == list(range(1, STEPS + 1))
    assert first.run is not None
    assert second.run is not None
    assert first.run.id == second.run.id == "run-1"


def test_what_failed_is_reported_again_and_nothing_else(tmp_path: Path) -> None:
    folder = begin_run(tmp_path / "run-1")
    add_steps(folder, 0, 8)
    first = RecordingTracker()
    follow(folder, first)
    add_steps(folder, 8, STEPS)
    failing = RecordingTracker(fails=(OSError("down"),))
    with pytest.raises(OSError, match="down"):
        follow(folder, failing)
    assert failing.logged == []
    last = RecordingTracker()
    follow(folder, last)
    assert last.steps("train/loss") == list(range(9, STEPS + 1))


@pytest.mark.parametrize(("stored", "expected"), [(3, range(4, 21)), (8, range(9, 21)), (12, range(13, 21))])
def test_a_tracker_that_knows_what_it_has_is_believed(tmp_path: Path, stored: int, expected: range) -> None:
    """It may have less than it was given (its process was killed), or more than the cursor says."""
    folder = begin_run(tmp_path / "run-1")
    add_steps(folder, 0, 8)
    follow(folder, RecordingTracker())
    add_steps(folder, 8, STEPS)
    tracker = RecordingTracker({"train/loss": stored, "eval/loss": 5})
    follow(folder, tracker)
    assert tracker.steps("train/loss") == list(expected)
    assert tracker.steps("eval/loss") == [10, 15, 20]


def test_a_run_that_resumes_in_its_folder_goes_on_in_the_same_record(tmp_path: Path) -> None:
    """``train(folder=F, resume=F)`` writes the records before the checkpoint anew."""
    folder, first, second = begin_run(tmp_path / "run-1"), RecordingTracker(), RecordingTracker()
    add_steps(folder, 0, 8)
    end_run(folder)
    assert follow(folder, first)
    folder.result.unlink()
    kept = folder.metrics.read_text().splitlines(keepends=True)[:5]
    folder.metrics.rename(folder.root / "old")
    folder.metrics.write_text("".join(kept))
    add_steps(folder, 5, STEPS)
    end_run(folder)
    assert follow(folder, second)
    assert first.steps("train/loss") == list(range(1, 9))
    assert second.steps("train/loss") == list(range(9, STEPS + 1))


def test_every(tmp_path: Path) -> None:
    folder, tracker = recorded_run(tmp_path / "run-1", every=8), RecordingTracker()
    follow(folder, tracker)
    assert tracker.steps("train/loss") == [1, 8, 16, 20]
    assert tracker.steps("eval/loss") == [5, 10, 15, 20]


def test_names_and_settings(tmp_path: Path) -> None:
    folder, tracker = recorded_run(tmp_path / "run-ab12", project="p", tags=["x"], group="g"), RecordingTracker()
    follow(folder, tracker)
    assert tracker.run is not None
    assert (tracker.run.name, tracker.run.project, tracker.run.group, tracker.run.tags) == ("gpt-ab12", "p", "g", ("x",))
    assert tracker.run.settings["job.steps"] == STEPS
    assert tracker.run.settings["job.optimizer.lr"] == 1e-3
    assert not [name for name in tracker.run.settings if "report" in name]
    other = RecordingTracker()
    RunFollower(folder.root, "other", other, spec=ReportSpec(name="mine")).follow(at_once)
    assert other.run is not None
    assert other.run.name == "mine"


def test_a_torn_last_line_waits_for_its_end(tmp_path: Path) -> None:
    folder, tracker = begin_run(tmp_path / "run-1"), RecordingTracker()
    add_steps(folder, 0, 2)
    text = folder.metrics.read_text()
    folder.metrics.write_text(text[:-10])
    follow(folder, tracker)
    assert tracker.steps("train/loss") == [1]
    with folder.metrics.open("a") as file:
        file.write(text[-10:])
    follow(folder, tracker)
    assert tracker.steps("train/loss") == [1, 2]


def add_event(folder: RunFolder, records: int, kind: str, **fields: object) -> None:
    """As ``broker.records.watch_history`` writes it."""
    with (folder.root / "watch.log").open("a") as file:
        file.write(f"2026-11-23 07:00:00 {json.dumps([records, kind, fields])}\n")


def test_events_come_between_the_steps_before_and_after_them(tmp_path: Path) -> None:
    folder, tracker = begin_run(tmp_path / "run-1"), RecordingTracker()
    add_event(folder, 0, "planned", attempt=1, summary="2 stages on a, b", plan="{}")
    add_event(folder, 2, "note", text="attic joined and is not used")
    add_event(folder, 2, "note", text="for experts", detail=True)
    add_event(folder, 3, "checkpoint", step=3)
    add_steps(folder, 0, 3)
    assert not follow(folder, tracker)
    assert tracker.texts == [
        (0, "events/plan", "plan 1: 2 stages on a, b"),
        (2, "events/note", "attic joined and is not used"),
        (3, "events/checkpoint", "checkpoint after step 3"),
    ]
    add_event(folder, 9, "note", text="its records are still to come")
    later = RecordingTracker()
    assert not follow(folder, later)
    assert later.texts == []
    end_run(folder)
    assert follow(folder, later)
    assert later.texts[0] == (3, "events/note", "its records are still to come")


def test_a_tracker_that_lost_everything_gets_the_events_again_and_a_damaged_line_is_left_out(tmp_path: Path) -> None:
    folder = begin_run(tmp_path / "run-1")
    (folder.root / "watch.log").write_text("2026-11-23 07:00:00 [0,\n2026 nothing\n")
    add_event(folder, 1, "checkpoint", step=1)
    add_steps(folder, 0, 2)
    for stored, expected in (({}, 1), ({"train/loss": 2}, 0), ({"train/loss": 1}, 0), ({}, 1)):
        tracker = RecordingTracker(stored)
        assert not follow(folder, tracker)
        assert len(tracker.texts) == expected


def test_only_one_process_reports_a_run_to_a_tracker(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run-1")
    with (
        claimed(folder.root, "recording"),
        pytest.raises(TrackerBusy, match="another process reports run-1 to recording already"),
    ):
        follow(folder, RecordingTracker())
    assert follow(folder, RecordingTracker())


def test_a_damaged_cursor_is_a_new_one(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run-1")
    follow(folder, RecordingTracker())
    place = folder.root / "trackers" / "recording.json"
    for text in ("", "[]", '{"run": 3}', place.read_text().replace("20", '"20"')):
        place.write_text(text)
        assert Cursor.load(folder.root, "recording") == Cursor()


def test_a_folder_without_a_job_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"job\.json: .*; is .* the folder of a run\?"):
        RunFollower(tmp_path, "recording", RecordingTracker())
