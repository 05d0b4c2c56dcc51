"""The log of a run: every watcher reads every line in order, and memory stays bounded."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.broker.records import run_log
from farflung.broker.records.run_log import LogPosition, RunLog
from farflung.messages.schema import Message
from farflung.messages.watching import CheckpointWritten, GeneratedText, RecordLine


@settings(deadline=None, max_examples=60)
@given(events=st.lists(st.booleans(), max_size=80), keep=st.integers(1, 10), reads=st.lists(st.integers(0, 80), max_size=4))
def test_every_watcher_reads_everything_in_order(events: list[bool], keep: int, reads: list[int]) -> None:
    file: list[str] = []
    log = RunLog(lambda first, end: file[first:end], keep=keep)
    told: list[object] = []
    watchers: list[tuple[list[Message], LogPosition]] = []
    for number, is_record in enumerate(events):
        if number in reads:
            watchers.append(([], LogPosition()))
        if is_record:
            file.append(f"line {number}")
            log.record(file[-1])
        else:
            log.mark(CheckpointWritten(step=number))
        told.append(number)
        watchers = [(seen + log.read(at)[0], log.read(at)[1]) for seen, at in watchers]
    for begun, at in [*watchers, ([], LogPosition())]:
        seen, position = list(begun), at
        while log.has_more(position):
            fresh, position = log.read(position)
            assert fresh, "no progress"
            seen += fresh
        found = [
            one.line if isinstance(one, RecordLine) else one.step
            for one in seen
            if isinstance(one, RecordLine | CheckpointWritten)
        ]
        assert found == [f"line {number}" if is_record else number for number, is_record in enumerate(events)]


def test_the_logs_memory_is_bounded() -> None:
    log = RunLog(lambda first, end: [str(index) for index in range(first, end)], keep=10)
    for index in range(10_000):
        log.record(str(index))
        log.mark(CheckpointWritten(step=index))
    assert len(log._tail) == 10
    assert len(log._marks) <= 256
    position, records, marks = LogPosition(), [], []
    while log.has_more(position):
        fresh, position = log.read(position)
        records += [int(one.line) for one in fresh if isinstance(one, RecordLine)]
        marks += [one.step for one in fresh if isinstance(one, CheckpointWritten)]
    assert records == list(range(10_000)), "old records come from the file"
    assert marks[0] == 0, "the first marks stay"
    assert marks[-1] == 9_999, "so do the last"


def test_long_lines_take_no_more_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """A lying worker reports as long texts as a message may have."""
    monkeypatch.setattr(run_log, "_KEEP_LETTERS", 1000)
    file: list[str] = []
    log = RunLog(lambda first, end: file[first:end])
    for _ in range(100):
        file.append("r" * 300)
        log.record(file[-1])
        log.mark(GeneratedText(text="t" * 300))
    assert all(600 < letters <= 1000 for letters in log.held)
    position, records, texts = LogPosition(), 0, 0
    while log.has_more(position):
        fresh, position = log.read(position)
        assert fresh, "no progress"
        records += sum(isinstance(one, RecordLine) for one in fresh)
        texts += sum(isinstance(one, GeneratedText) for one in fresh)
    assert (records, texts) == (100, 3), "records come from the file"
