"""What each step sends: bytes by pair of stages, and seconds of encoding."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field

__all__ = ["LinkUse", "StagePair", "TrafficMeter"]

#: Stage that sends and stage that receives.
StagePair = tuple[int, int]


@dataclass(slots=True)
class LinkUse:
    """What one step sent: bytes by pair of stages, as sent and as they would be without a codec; seconds of encoding."""

    sent: dict[StagePair, int] = field(default_factory=dict)
    dense: dict[StagePair, int] = field(default_factory=dict)
    encode_seconds: float = 0.0


class TrafficMeter:
    """Adds up what each step sends, and reports the sum once all frames of the step have been encoded. Any thread may call."""

    def __init__(self) -> None:
        #: Guards all fields below. Reports are called after it was released: they take locks of their own.
        self._lock = threading.Lock()
        #: step -> what it has sent so far
        self._use: dict[int, LinkUse] = {}
        #: step -> frames that wait to be encoded
        self._open: dict[int, int] = {}
        #: step -> who asked for its sum
        self._waiting: dict[int, Callable[[LinkUse], None]] = {}
        #: The first step whose sum has not been asked for.
        self._next = 0

    def posted(self, step: int) -> int:
        """A frame of ``step`` waits to be encoded; return the step that it counts for: a later one if the sum is complete."""
        with self._lock:
            step = max(step, self._next)
            self._open[step] = self._open.get(step, 0) + 1
            return step

    def encoded(self, step: int, pair: StagePair, nbytes: tuple[int, int], seconds: float) -> None:
        """A frame is encoded. ``nbytes``: as it is sent, and without a codec."""
        size, dense = nbytes
        with self._lock:
            use = self._use.setdefault(step, LinkUse())
            use.sent[pair] = use.sent.get(pair, 0) + size
            use.dense[pair] = use.dense.get(pair, 0) + dense
            use.encode_seconds += seconds
            self._open[step] -= 1
            done = self._take(step)
        if done is not None:
            done[0](done[1])

    def when_done(self, step: int, report: Callable[[LinkUse], None]) -> None:
        """Call ``report`` with the sum of ``step`` once all its frames are encoded. Frames that are posted later count for later
        steps. Steps are asked for in order."""
        with self._lock:
            self._next = max(self._next, step + 1)
            self._waiting[step] = report
            done = self._take(step)
        if done is not None:
            done[0](done[1])

    def _take(self, step: int) -> tuple[Callable[[LinkUse], None], LinkUse] | None:
        if self._open.get(step, 0) > 0 or step not in self._waiting:
            return None
        self._open.pop(step, None)
        return self._waiting.pop(step), self._use.pop(step, LinkUse())
