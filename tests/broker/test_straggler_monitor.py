"""What watchers of a run are told of its rhythm."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from farflung.broker.links.table import LinkFigures, LinkTable
from farflung.broker.straggler_monitor import StragglerMonitor
from farflung.telemetry import StepRecord
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import Span
from tests.support.runs.loopback import Loopback, text_job


def sends(seconds: Sequence[float], *, apart: float = 1.0, nbytes: int = 4000) -> list[Span]:
    """One after the other, ``apart`` from the end of one to the begin of the next."""
    found, start = [], 0.0
    for length in seconds:
        found.append(Span(what=SpanKind.SEND, name="send", start=start, seconds=length, peer="b", nbytes=nbytes))
        start += length + apart
    return found


def test_frames_that_are_under_way_together_are_one_train() -> None:
    """The word that they came arrives for all of them at once: the last ones seem to take no time."""
    told: list[str] = []
    table = LinkTable()
    table.put("a", "b", LinkFigures(alpha=0.005, beta=6.25e6))
    watching = StragglerMonitor(lambda run, text: told.append(text), table)

    def trains(count: int, rate: float, late: float = 0.0) -> None:
        for _ in range(count):
            first = 0.01 + 5 * 50_000 / rate + late
            watching.spans("r", 1, "a", sends([first, *[5e-5] * 4], apart=0.0, nbytes=50_000))

    trains(30, 6.25e6)
    trains(8, 6.25e6, late=0.03)  # a busy machine
    assert told == []
    trains(8, 6.25e6 / 4)
    (text,) = told
    assert text.startswith("the link from a to b is slow: "), text


def test_each_run_has_its_rhythm() -> None:
    told: list[tuple[str, str]] = []
    watching = StragglerMonitor(lambda run, text: told.append((run, text)))
    for attempt, busy in ((1, 0.1), (2, 0.5)):
        for _ in range(30):
            watching.step("r", attempt, "a", busy)
    assert told == [], "another plan gives other work"
    watching.spans("r", 2, "a", sends([0.01] * 30))
    watching.spans("s", 1, "a", sends([0.1] * 30))
    assert told == []
    watching.spans("r", 2, "a", sends([0.1] * 8))
    assert [run for run, _ in told] == ["r"]
    assert watching.slow("r") == ["a -> b"]
    assert watching.slow("s") == watching.slow("never") == []
    watching.silence("r", "a", 3.0, 5.0)
    watching.silence("never", "a", 3.0, 5.0)
    assert told[-1][1].startswith("worker a has been silent for 3.00 s")
    watching.lost("a")
    watching.silence("r", "a", 0.0, 5.0)
    assert len(told) == 2
    for number in range(40):
        watching.step(f"run-{number}", 1, "a", 0.1)
    assert watching.slow("r") == [], "old runs are forgotten"


def test_who_watches_is_told_of_a_slow_worker(two: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    """b computes for longer in some of its steps, as it reports."""
    heard, steps, slow = StragglerMonitor.step, [0], list[list[str]]()

    def step(self: StragglerMonitor, run: str, attempt: int, name: str, busy: float) -> None:
        steps[0] += name == "b"
        heard(self, run, attempt, name, 1.0 if name == "b" and 25 <= steps[0] < 35 else 0.1)
        slow.append(self.slow(run))

    monkeypatch.setattr(StragglerMonitor, "step", step)
    found = two.run(text_job(steps=50))
    notes = [frame.header["text"] for frame in found.frames if frame.kind == "note"]
    told = [text for text in notes if text.startswith("worker b is ")]
    assert len(told) == 2, notes
    assert told[0].startswith("worker b is slow but alive: it computes for 1.00 s per step, 10.0 times its usual 100 ms")
    assert told[1].startswith("worker b is back at its usual speed (")
    assert any("b" in one for one in slow)
    assert "b" not in slow[-1]


def test_who_watches_is_told_of_a_silent_worker(two: Loopback) -> None:
    def act(run: str, record: StepRecord) -> None:
        if record.step == 2:
            lease = float(two.broker.sessions.lease)
            stragglers = two.broker.manager.stragglers
            stragglers.silence(run, "b", 0.6 * lease, lease)
            stragglers.silence(run, "b", 0.0, lease)

    found = two.run(text_job(steps=5), on_record=act)
    notes = [frame.header["text"] for frame in found.frames if frame.kind == "note"]
    assert any(text.startswith("worker b has been silent for ") for text in notes), notes
    assert any(text.startswith("worker b responds again after ") for text in notes)
    runs = two.client.status()["runs"]
    assert isinstance(runs, list)
    assert "b" not in runs[-1]["slow"]
    assert isinstance(found.folder, Path)
