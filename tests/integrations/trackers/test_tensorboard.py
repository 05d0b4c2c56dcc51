"""TensorBoard's own reader reads what the tracker writes."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.integrations.trackers.tensorboard import TensorBoardTracker
from farflung.tracking import RunFollower
from tests.support.records.recorded_runs import add_steps, begin_run, end_run, recorded_run

accumulator = pytest.importorskip("tensorboard.backend.event_processing.event_accumulator")


def read(root: Path) -> object:
    return accumulator.EventAccumulator(str(root / "trackers/tensorboard"), size_guidance={"scalars": 0, "tensors": 0}).Reload()


def test_scalars_and_texts(tmp_path: Path) -> None:
    folder = recorded_run(tmp_path / "run-1")
    RunFollower(folder.root, "tensorboard", TensorBoardTracker).follow(lambda seconds: True)
    events = read(folder.root)
    losses = events.Scalars("train/loss")  # type: ignore[attr-defined]
    assert [event.step for event in losses] == list(range(1, 21))
    assert [event.value for event in losses] == pytest.approx([3.0 / step for step in range(1, 21)])
    assert [event.step for event in events.Scalars("eval/loss")] == [5, 10, 15, 20]  # type: ignore[attr-defined]
    assert [event.value for event in events.Scalars("train/grad_norm")] == [1.5] * 20  # type: ignore[attr-defined]
    texts = {tag: events.Tensors(tag)[0] for tag in events.Tags()["tensors"]}  # type: ignore[attr-defined]
    assert texts["samples/generated/text_summary"].tensor_proto.string_val[0] == b"once upon a time"
    assert b"| job.steps | 20 |" in texts["settings/text_summary"].tensor_proto.string_val[0]


def test_a_killed_process_repeats_no_step(tmp_path: Path) -> None:
    """Its event file had more than its cursor says: the file is believed."""
    folder = begin_run(tmp_path / "run-1")
    add_steps(folder, 0, 8)
    RunFollower(folder.root, "tensorboard", TensorBoardTracker).follow(lambda seconds: True)
    (folder.root / "trackers/tensorboard.json").unlink()
    add_steps(folder, 8, 20)
    end_run(folder)
    RunFollower(folder.root, "tensorboard", TensorBoardTracker).follow(lambda seconds: True)
    events = read(folder.root)
    assert [event.step for event in events.Scalars("train/loss")] == list(range(1, 21))  # type: ignore[attr-defined]
    assert [event.step for event in events.Scalars("eval/loss")] == [5, 10, 15, 20]  # type: ignore[attr-defined]
    assert len(events.Tensors("settings/text_summary")) == 1  # type: ignore[attr-defined]
