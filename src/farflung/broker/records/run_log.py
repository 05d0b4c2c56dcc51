"""What a broker tells of a run: its latest lines in memory, the older ones from the metrics file, in order for each watcher."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from farflung.messages.schema import Message
from farflung.messages.watching import RecordLine

__all__ = ["LogPosition", "RunLog"]

_KEEP_RECORDS = 1024
_KEEP_MARKS = 256
#: Characters of the records, and of the marks, that stay in memory: a lying worker may make them long.
_KEEP_LETTERS = 32_000_000
_BATCH = 4096


@dataclass(frozen=True, slots=True)
class LogPosition:
    """How far a watcher has read: records, and the number of the last mark."""

    records: int = 0
    mark: int = 0


@dataclass(frozen=True, slots=True)
class _Mark:
    number: int
    records_before: int
    message: Message
    #: Characters of its texts.
    letters: int


class RunLog:
    """Two kinds of lines: records (steps, evaluations), which are in the metrics file as well, and marks (all else).

    Memory is bounded: of the records the last ``keep`` stay, of the marks the first ones (plan, start) and the last ones. Fewer
    stay if they are long.
    Threads: every method may be called from any.
    """

    def __init__(self, older: Callable[[int, int], Sequence[str]], *, keep: int = _KEEP_RECORDS, records: int = 0) -> None:
        """``older(first, end)`` reads records from the metrics file, which has ``records`` already."""
        self._older = older
        self._lock = threading.Lock()
        self._keep = keep
        self._tail: deque[str] = deque()
        self._records = records
        self._marks: list[_Mark] = []
        self._numbers = 0
        #: Characters of ``_tail`` and of ``_marks``.
        self._letters = [0, 0]

    def record(self, line: str) -> None:
        """Add a record that is in the metrics file already."""
        with self._lock:
            self._tail.append(line)
            self._records += 1
            self._letters[0] += len(line)
            while len(self._tail) > self._keep or (self._letters[0] > _KEEP_LETTERS and len(self._tail) > 1):
                self._letters[0] -= len(self._tail.popleft())

    def mark(self, message: Message, after: int | None = None) -> int:
        """Add anything else, after ``after`` records (default: all). Return this number."""
        with self._lock:
            self._numbers += 1
            before = self._records if after is None else after
            letters = sum(len(text) for text in msgspec.structs.astuple(message) if isinstance(text, str))
            self._marks.append(_Mark(self._numbers, before, message, letters))
            self._letters[1] += letters
            while len(self._marks) > _KEEP_MARKS or (self._letters[1] > _KEEP_LETTERS and len(self._marks) > 2):
                self._letters[1] -= self._marks.pop(len(self._marks) // 2).letters
            return before

    @property
    def held(self) -> tuple[int, int]:
        """Characters of records and of other messages in memory."""
        with self._lock:
            return self._letters[0], self._letters[1]

    @property
    def records(self) -> int:
        """How many there are."""
        with self._lock:
            return self._records

    def has_more(self, position: LogPosition) -> bool:
        """Whether something was told after ``position``."""
        with self._lock:
            return position.records < self._records or position.mark < self._numbers

    def read(self, position: LogPosition) -> tuple[list[Message], LogPosition]:
        """Some of what was told after ``position``, in order, and where that ends."""
        with self._lock:
            first_kept = self._records - len(self._tail)
            pending = [mark for mark in self._marks if mark.number > position.mark]
            if position.records >= first_kept or (pending and pending[0].records_before <= position.records):
                return self._from_memory(position, pending, first_kept)
            until = min(first_kept, position.records + _BATCH, *(mark.records_before for mark in pending))
        lines = self._older(position.records, until)
        return [RecordLine(line=line) for line in lines], LogPosition(until, position.mark)

    def _from_memory(self, position: LogPosition, pending: list[_Mark], first_kept: int) -> tuple[list[Message], LogPosition]:
        messages: list[Message] = []
        records, number = position.records, position.mark
        for mark in [*pending, None]:
            until = self._records if mark is None else mark.records_before
            if records < until and records < first_kept:
                break  # the next ones come from the file
            messages += [RecordLine(line=self._tail[index - first_kept]) for index in range(records, until)]
            records = max(records, until)
            if mark is not None:
                messages.append(mark.message)
                number = mark.number
        else:
            number = self._numbers
        return messages, LogPosition(records, number)
