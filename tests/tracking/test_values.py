"""The values that trackers get, and the table of them in the documentation."""

from __future__ import annotations

import re
from pathlib import Path

from farflung.telemetry import EvaluationRecord, RecoveryRecord, StepRecord
from farflung.tracking.values import VALUES, evaluation_values, recovery_values, step_values

PAGE = Path(__file__).resolve().parents[2] / "docs/trackers.md"


def test_every_value_is_on_the_page() -> None:
    listed = dict(re.findall(r"^\| `([a-z_]+/[a-z_]+)` \| (.*) \|$", PAGE.read_text(), flags=re.MULTILINE))
    texts = {name for name, about in listed.items() if about.startswith("text")}
    assert {name: about for name, about in listed.items() if name not in texts} == VALUES
    events = {f"events/{name}" for name in ("recovery", "plan", "checkpoint", "note", "end")}
    assert texts == {*events, "samples/generated"}


def test_every_value_has_a_record() -> None:
    step = StepRecord(
        step=1,
        loss=2.0,
        seconds=0.5,
        elapsed=1.0,
        samples=4,
        tokens=64,
        learning_rate=0.1,
        predicted_seconds=0.4,
        link_bytes={(0, 1): 3, (1, 0): 4},
        dense_bytes={(0, 1): 30},
        skipped=True,
        divergence=0.01,
        grad_norm=1.5,
    )
    evaluation = EvaluationRecord(step=2, elapsed=1.0, loss=2.0, perplexity=7.4, accuracy=0.5)
    recovery = RecoveryRecord(step=2, attempt=3, replayed=4, pause=5.0, elapsed=6.0)
    values = {**step_values(step), **evaluation_values(evaluation), **recovery_values(recovery)}
    assert set(values) == set(VALUES)
    assert values["train/samples_per_second"] == 8.0
    assert values["train/tokens_per_second"] == 128.0
    assert values["network/sent_bytes"] == 7.0
    assert values["events/recoveries"] == 2.0


def test_what_a_record_does_not_know_is_left_out() -> None:
    values = step_values(StepRecord(step=0, loss=2.0, seconds=0.0, elapsed=0.0, samples=4))
    assert set(values) == {
        "train/loss",
        "train/learning_rate",
        "train/samples_per_second",
        "time/step_seconds",
        "time/elapsed_seconds",
    }
