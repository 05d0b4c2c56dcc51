"""Events: what happened, when, in which process, as one JSON object per line.

An event is ``{"time": seconds, "kind": name, "process": name, ...fields}``. Times are seconds of the process's own monotonic
clock; a ``clock`` event says how far that is from the broker's (``telemetry.trace``).
"""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from farflung.errors import DataError

__all__ = ["Event", "JsonLines", "SpanKind", "Value", "encode_line"]

#: What a field may hold; numbers that are not finite travel as the texts "nan", "inf" and "-inf".
Value = None | bool | int | float | str | list["Value"] | tuple["Value", ...] | Mapping[str, "Value"]


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
