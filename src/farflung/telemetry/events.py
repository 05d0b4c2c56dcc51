"""Events and spans: what happened, when, in which process, as one JSON object per line.

An event is ``{"time": seconds, "kind": name, "process": name, ...fields}``. Times are seconds of the process's own monotonic
clock; the first event of a file (``begin``) also has ``wall``, seconds since 1970, so that files of several machines
can be laid side by side to within the accuracy of their wall clocks.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from types import TracebackType
from typing import Protocol, Self

from farflung.clock import Clock, MonotonicClock
from farflung.errors import DataError, InputError

__all__ = ["Event", "JsonLines", "MemorySink", "Sink", "SpanKind", "Telemetry", "Value", "busy_seconds", "encode_line"]

#: What a field may hold; numbers that are not finite travel as the texts "nan", "inf" and "-inf".
Value = None | bool | int | float | str | list["Value"] | tuple["Value", ...] | Mapping[str, "Value"]
_FILE_NAME = re.compile(r"[A-Za-z0-9_-][A-Za-z0-9._-]{0,99}")
_OWN_KEYS = frozenset({"time", "kind", "process"})


class SpanKind(StrEnum):
    """What a stage can be doing."""

    COMPUTE = "compute"
    SEND = "send"
    RECEIVE = "receive"
    WAIT = "wait"
    ENCODE = "encode"
    DECODE = "decode"
    EXCHANGE = "exchange"


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """One thing that happened: ``time`` in seconds of the process's clock, and its fields."""

    time: float
    kind: str
    process: str
    fields: Mapping[str, Value]


class Sink(Protocol):
    """Where events go. Called from several threads at once."""

    def write(self, event: Event) -> None:
        """Take one event."""

    def close(self) -> None:
        """Nothing follows."""


class MemorySink:
    """Keeps events in a list, for tests and for live progress; ``limit`` bounds it by dropping the oldest."""

    def __init__(self, limit: int = 100_000) -> None:
        self._limit = limit
        self._events: list[Event] = []
        self._lock = threading.Lock()

    def write(self, event: Event) -> None:
        """Append ``event``."""
        with self._lock:
            self._events.append(event)
            if len(self._events) > self._limit:
                del self._events[: self._limit // 10 + 1]

    def close(self) -> None:
        """Nothing to do: what was collected stays readable."""

    def events(self, kind: str | None = None) -> tuple[Event, ...]:
        """The events so far in the order of arrival, or only those of ``kind``."""
        with self._lock:
            return tuple(event for event in self._events if kind is None or event.kind == kind)


class JsonLines:
    """Appends one line per event to a file of this process's own.

    Each line reaches the kernel in one piece, so a killed process loses at most the line that it was writing.

    Raises:
        DataError: the file can't be opened.
    """

    def __init__(self, path: Path) -> None:
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = path.open("a", encoding="utf-8", buffering=1)
        except OSError as error:
            raise DataError(f"cannot write telemetry to {path}: {error.strerror}; choose a folder that can be written") from None
        self._lock = threading.Lock()

    def write(self, event: Event) -> None:
        """Write ``event`` as one line (nothing after ``close``)."""
        line = encode_line({"time": round(event.time, 6), "kind": event.kind, "process": event.process, **event.fields})
        with self._lock:
            if not self._file.closed:
                self._file.write(line)

    def close(self) -> None:
        """Close the file; repeated calls do no harm."""
        with self._lock:
            self._file.close()


class Telemetry:
    """Emits events and spans of one process to a sink; without a sink it does nothing, cheaply. Thread-safe."""

    def __init__(self, sink: Sink | None = None, *, process: str = "main", clock: Clock | None = None) -> None:
        self._sink = sink
        self._process = process
        self._clock = clock or MonotonicClock()

    @classmethod
    def to_file(cls, folder: Path, *, process: str) -> Self:
        """Write to ``folder/<process>.jsonl``, beginning with a ``begin`` event that has process id and wall clock.

        Raises:
            InputError: the name of the process can't be the name of a file.
            DataError: the file can't be opened.
        """
        if not _FILE_NAME.fullmatch(process):
            raise InputError(f"a process name has letters, digits, '.', '_' and '-' (at most 100), got {process[:120]!r}")
        telemetry = cls(JsonLines(folder / f"{process}.jsonl"), process=process)
        telemetry.emit("begin", pid=os.getpid(), wall=time.time())
        return telemetry

    def emit(self, kind: str, **fields: Value) -> None:
        """Report an event.

        Raises:
            ValueError: a field is called ``time``, ``kind`` or ``process``, which every event has already.
        """
        if self._sink is None:
            return
        if not _OWN_KEYS.isdisjoint(fields):
            raise ValueError(f"an event's own keys can't be fields: {sorted(_OWN_KEYS & set(fields))}; choose other names")
        self._sink.write(Event(time=float(self._clock.now()), kind=kind, process=self._process, fields=fields))

    @contextmanager
    def span(self, what: SpanKind, *, stage: int, micro_batch: int = -1, step: int = -1) -> Iterator[None]:
        """Time the block and emit a ``span`` event at its end: what, stage, micro_batch, step, start, seconds.

        ``failed`` names the class of an exception that leaves the block. -1: the span belongs to no single one.
        """
        if self._sink is None:
            yield
            return
        start = float(self._clock.now())
        failed: str | None = None
        try:
            yield
        except BaseException as error:  # Only its name is noted; it goes on at once.
            failed = type(error).__name__
            raise
        finally:
            seconds = float(self._clock.now()) - start
            fields: dict[str, Value] = {"what": what.value, "stage": stage, "micro_batch": micro_batch, "step": step}
            fields |= {"start": start, "seconds": seconds} | ({"failed": failed} if failed else {})
            self.emit("span", **fields)

    def close(self) -> None:
        """Close the sink."""
        if self._sink is not None:
            self._sink.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def busy_seconds(events: tuple[Event, ...], what: SpanKind = SpanKind.COMPUTE) -> dict[int, float]:
    """Stage -> total seconds of its spans of kind ``what``."""
    totals: dict[int, float] = {}
    for event in events:
        stage, seconds = event.fields.get("stage"), event.fields.get("seconds")
        if event.kind == "span" and event.fields.get("what") == what and isinstance(stage, int) and isinstance(seconds, float):
            totals[stage] = totals.get(stage, 0.0) + seconds
    return totals


def encode_line(body: Mapping[str, Value]) -> str:
    """``body`` as one line of strict JSON with a line feed."""
    return json.dumps(_plain(body), separators=(",", ":"), allow_nan=False) + "\n"


def _plain(value: Value) -> Value:
    if isinstance(value, float) and not math.isfinite(value):
        return str(float(value))
    if isinstance(value, Mapping):
        return {key: _plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value
