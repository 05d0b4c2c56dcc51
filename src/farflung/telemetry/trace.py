"""The trace of a run: what each worker was doing when, as spans on the worker's own clock.

A worker notes spans in a ring of fixed size, and sends what the ring holds with each step's report; the broker appends them to
``events/<process>.jsonl`` of the run folder as ``span`` events. A ``clock`` event in the same file says how far that process's
clock is from the broker's (midpoint of a ping: NTP, RFC 5905, section 8) and how wrong that may be, so that the files of
machines far apart can be laid side by side. The simulator writes the same spans in virtual time, with no ``clock`` event.
"""

from __future__ import annotations

import json
import math
import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from farflung.clock import monotonic
from farflung.errors import DataError, WireError
from farflung.telemetry.events import SpanKind, Value, encode_line
from farflung.telemetry.whole_lines import append_lines

__all__ = [
    "ClockOffset",
    "ProcessTrace",
    "Span",
    "SpanRing",
    "estimate_offset",
    "pack_spans",
    "read_traces",
    "span_from_fields",
    "unpack_spans",
    "write_spans",
]

_KINDS = tuple(SpanKind)
_KIND_NUMBER = {kind: number for number, kind in enumerate(_KINDS)}
_RECORD = struct.Struct("<BHHiiidfQ")
_MAX_NAMES, _MAX_NAME = 4096, 200
#: What those are called that have no more place in a table of names.
_OTHERS = "others"
_CAPACITY = 1 << 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """One thing that a process did: ``start`` and ``seconds`` on its own clock.

    ``name`` says more than ``what``: ``F``, ``B``, ``update`` of compute; what was waited for; the frame that was sent.
    -1 and empty: it belongs to no single stage, micro-batch, step or peer. ``nbytes``: of a transfer.
    """

    what: SpanKind
    name: str
    start: float
    seconds: float
    stage: int = -1
    micro_batch: int = -1
    step: int = -1
    peer: str = ""
    nbytes: int = 0

    @property
    def end(self) -> float:
        """When it was over."""
        return self.start + self.seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockOffset:
    """Add ``seconds`` to a time of this process to get the broker's; it is wrong by ``error`` seconds at most."""

    seconds: float = 0.0
    error: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessTrace:
    """All spans of one process. ``lost``: how many its ring dropped."""

    process: str
    spans: tuple[Span, ...]
    offset: ClockOffset = ClockOffset()
    lost: int = 0


class SpanRing:
    """Spans that wait to be sent; the newest ``capacity`` stay. Noting one costs about a microsecond. Thread-safe."""

    def __init__(self, capacity: int = _CAPACITY, clock: Callable[[], float] = monotonic) -> None:
        self.now = clock
        # appending and popping are atomic: no lock on the way of the compute thread
        self._spans: deque[Span] = deque(maxlen=capacity)
        self._capacity = capacity
        self._noted = 0
        self._drained = 0

    def note(self, what: SpanKind, name: str, start: float, **facts: int | str) -> None:
        """Add a span from ``start`` to now; ``facts``: further fields of ``Span``."""
        self.add(Span(what=what, name=name, start=start, seconds=max(self.now() - start, 0.0), **facts))  # type: ignore[arg-type]

    def add(self, span: Span) -> None:
        """Add a span that is over."""
        self._spans.append(span)
        self._noted += 1

    def drain(self) -> tuple[list[Span], int]:
        """Take out what is there, the oldest first, and how many were dropped since the last call."""
        noted = self._noted
        spans: list[Span] = []
        with suppress(IndexError):  # it is empty
            while len(spans) < self._capacity:
                spans += [self._spans.popleft()]
        lost = max(noted - self._drained - len(spans), 0)
        self._drained = noted
        return spans, lost


def estimate_offset(ping: Callable[[], float], now: Callable[[], float], rounds: int = 5) -> ClockOffset:
    """The offset of the clock that ``ping`` reads on another machine, from the quickest of ``rounds`` questions.

    Half the quickest round trip bounds the error, whatever the two ways' shares of it are.
    """
    best: ClockOffset | None = None
    for _ in range(rounds):
        sent = now()
        theirs = ping()
        back = now()
        found = ClockOffset(seconds=theirs - (sent + back) / 2, error=(back - sent) / 2)
        if best is None or found.error < best.error:
            best = found
    return best or ClockOffset()


def pack_spans(spans: Sequence[Span]) -> tuple[list[str], bytes]:
    """``spans`` as a table of names and 37 bytes each; of more names than a table may have, the last are ``others``."""
    names = {peer: number for number, peer in enumerate(dict.fromkeys(span.peer[:_MAX_NAME] for span in spans))}
    records = []

    def number(name: str) -> int:
        if name not in names and len(names) >= _MAX_NAMES - 1:
            name = _OTHERS
        return names.setdefault(name, len(names))

    for span in spans:
        name, peer = number(span.name[:_MAX_NAME]), names[span.peer[:_MAX_NAME]]
        places = (span.stage, span.micro_batch, span.step)
        records.append(_RECORD.pack(_KIND_NUMBER[span.what], name, peer, *places, span.start, span.seconds, span.nbytes))
    return list(names), b"".join(records)


def unpack_spans(names: object, packed: object) -> list[Span]:
    """What ``pack_spans`` wrote.

    Raises:
        WireError: it is none, or too long.
    """
    good = isinstance(names, list) and len(names) <= _MAX_NAMES
    if not good or not all(isinstance(name, str) and len(name) <= _MAX_NAME for name in names):  # type: ignore[attr-defined]
        raise WireError(f"a trace's names must be at most {_MAX_NAMES} short texts")
    if not isinstance(packed, bytes) or len(packed) % _RECORD.size or len(packed) > _RECORD.size * _CAPACITY:
        raise WireError(f"a trace must be whole records of {_RECORD.size} bytes, at most {_CAPACITY}")
    return [_span(names, record) for record in _RECORD.iter_unpack(packed)]  # type: ignore[arg-type]


def _span(names: Sequence[str], record: tuple[int | float, ...]) -> Span:
    kind, name, peer, stage, micro_batch, step, start, seconds, nbytes = record
    if not (kind < len(_KINDS) and max(name, peer) < len(names) and math.isfinite(start) and 0 <= seconds < math.inf):
        raise WireError("a trace's record is damaged; install the same farflung on all machines")
    return Span(
        what=_KINDS[int(kind)],
        name=names[int(name)],
        start=float(start),
        seconds=float(seconds),
        stage=int(stage),
        micro_batch=int(micro_batch),
        step=int(step),
        peer=names[int(peer)],
        nbytes=int(nbytes),
    )


def write_spans(folder: Path, process: str, spans: Iterable[Span], *, offset: ClockOffset | None = None, lost: int = 0) -> None:
    """Append to ``folder/<process>.jsonl``; ``offset`` and ``lost`` are written only where they say something.

    Raises:
        DataError: the file can't be written.
        DiskFull: there is no space; the file is as it was.
    """
    lines = []
    if offset is not None or lost:
        fields: dict[str, Value] = {"lost": lost}
        if offset is not None:
            fields |= {"offset": offset.seconds, "error": offset.error}
        lines.append(encode_line({"time": 0.0, "kind": "clock", "process": process, **fields}))
    head: dict[str, Value] = {"kind": "span", "process": process}
    lines += [encode_line({"time": round(span.end, 6), **head, **_fields(span)}) for span in spans]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DataError(f"cannot write telemetry to {folder}: {error.strerror}; choose a folder that can be written") from None
    append_lines(folder / f"{process}.jsonl", "".join(lines))


def _fields(span: Span) -> dict[str, Value]:
    fields: dict[str, Value] = {"what": span.what.value, "stage": span.stage, "micro_batch": span.micro_batch, "step": span.step}
    fields |= {"start": round(span.start, 7), "seconds": round(span.seconds, 7), "name": span.name}
    if span.peer:
        fields["peer"] = span.peer
    if span.nbytes:
        fields["bytes"] = span.nbytes
    return fields


def read_traces(folder: Path) -> list[ProcessTrace]:
    """The traces in ``folder`` (``RunFolder.events``), by name; files without a span are left out. Torn last lines are skipped.

    Raises:
        DataError: a file can't be read, or a line is damaged (the text names it).
    """
    traces = []
    for path in sorted(folder.glob("*.jsonl")):
        trace = _read_trace(path)
        if trace.spans:
            traces.append(trace)
    return traces


def _read_trace(path: Path) -> ProcessTrace:
    spans: list[Span] = []
    offset, lost = ClockOffset(), 0
    try:
        with path.open(encoding="utf-8") as file:
            for number, line in enumerate(file, start=1):
                if not line.endswith("\n"):
                    break
                try:
                    body = json.loads(line)
                    if body["kind"] == "span":
                        spans.append(span_from_fields(body))
                    elif body["kind"] == "clock":
                        lost += int(body["lost"])
                        if "offset" in body:
                            offset = ClockOffset(seconds=float(body["offset"]), error=float(body["error"]))
                except (ValueError, KeyError, TypeError, OverflowError) as error:
                    raise DataError(f"{path}, line {number} is no event ({type(error).__name__}: {error})") from None
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}; it is damaged or not readable by you") from None
    return ProcessTrace(process=path.stem, spans=tuple(spans), offset=offset, lost=lost)


def span_from_fields(body: Mapping[str, object]) -> Span:
    """Return the span in an event of kind ``span``.

    Raises:
        KeyError: a field is missing.
        ValueError: a field is malformed.
    """

    def whole(key: str, default: int) -> int:
        return int(body.get(key, default))  # type: ignore[call-overload, no-any-return]

    return Span(
        what=SpanKind(str(body["what"])),
        name=str(body.get("name", body["what"])),
        start=float(body["start"]),  # type: ignore[arg-type]
        seconds=float(body["seconds"]),  # type: ignore[arg-type]
        stage=whole("stage", -1),
        micro_batch=whole("micro_batch", -1),
        step=whole("step", -1),
        peer=str(body.get("peer", "")),
        nbytes=whole("bytes", 0),
    )
