"""What codecs cost and lose on each link while it runs: seconds of encoding and decoding, and now and then the measured error.

The clock is read around every encode and decode. An error needs what arrives, which may take a decode at the sender, and three
passes, so it is measured for the first value of a link and direction, and again whenever that would take less than a hundredth of
what encoding has taken since. Memory: two copies of the value while its error is measured, one value at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np

from farflung.clock import Clock, MonotonicClock
from farflung.engines.base import Array
from farflung.telemetry.records import CodecUse, Link

__all__ = ["CodecGauge"]

#: Of the time of encoding, what measuring errors may take.
_SHARE = 0.01
#: Elements that are compared at once in float64, so that a large value is not copied as a whole.
_RUN = 1 << 16

Made = TypeVar("Made")


@dataclass(slots=True)
class _Sum:
    encode: float = 0.0
    decode: float = 0.0
    error: float = 0.0
    errors: int = 0


@dataclass(slots=True)
class _Budget:
    """Seconds of encoding since the last measurement, and what that one took (None: there was none)."""

    encoding: float = 0.0
    last: float | None = None


@dataclass(slots=True)
class CodecGauge:
    """One worker's figures. Any thread may call."""

    clock: Clock = field(default_factory=MonotonicClock)
    #: Guards the figures below. It is free while something is encoded, decoded or measured.
    _lock: threading.Lock = field(default_factory=threading.Lock)
    #: One measurement at a time: each takes two copies of its value.
    _measuring: threading.Lock = field(default_factory=threading.Lock)
    #: (step, link) -> figures
    _sums: dict[tuple[int, Link], _Sum] = field(default_factory=dict)
    _budgets: dict[Link, _Budget] = field(default_factory=dict)
    _next: int = 0

    def encode(self, step: int, link: Link, make: Callable[[], Made]) -> Made:
        """What ``make`` encodes."""
        begin = self.clock.now()
        made = make()
        self.encoded(step, link, self.clock.now() - begin)
        return made

    def encoded(self, step: int, link: Link, seconds: float) -> None:
        """A value was encoded in ``seconds``."""
        with self._lock:
            self._sum(step, link).encode += seconds
            self._budgets.setdefault(link, _Budget()).encoding += seconds

    def compare(self, step: int, link: Link, arrays: Sequence[Array], arrives: Callable[[], Sequence[Array]]) -> None:
        """Measure the error of ``arrays``, which have just been encoded, if it is time; ``arrives`` gives what the receiver will
        have of them."""
        with self._lock:
            budget = self._budgets.setdefault(link, _Budget())
            due = budget.last is None or budget.last <= _SHARE * budget.encoding
            if due:
                budget.encoding = 0.0
        if not due:
            return
        with self._measuring:
            begin = self.clock.now()
            error = _error(arrays, arrives())
            spent = self.clock.now() - begin
        with self._lock:
            budget.last = spent
            if error is not None:
                found = self._sum(step, link)
                found.error, found.errors = found.error + error, found.errors + 1

    def decode(self, step: int, link: Link, make: Callable[[], Made]) -> Made:
        """What ``make`` decodes."""
        begin = self.clock.now()
        made = make()
        seconds = self.clock.now() - begin
        with self._lock:
            self._sum(step, link).decode += seconds
        return made

    def take(self, step: int) -> Mapping[Link, CodecUse]:
        """The figures of ``step``, which is over; they are forgotten here. What comes late for it counts in the next one."""
        with self._lock:
            self._next = max(self._next, step + 1)
            own = {link: self._sums.pop((at, link)) for at, link in list(self._sums) if at == step}
            self._sums = {key: found for key, found in self._sums.items() if key[0] > step}
        return {
            link: CodecUse(
                encode_seconds=found.encode,
                decode_seconds=found.decode,
                error=found.error / found.errors if found.errors else None,
            )
            for link, found in own.items()
        }

    def _sum(self, step: int, link: Link) -> _Sum:
        return self._sums.setdefault((max(step, self._next), link), _Sum())


def _error(arrays: Sequence[Array], arrived: Sequence[Array]) -> float | None:
    """``|x - x'| / |x|`` (2-norms) of all together, in blocks; None: it is no number."""
    norm = lost = 0.0
    with np.errstate(all="ignore"):
        for array, other in zip(arrays, arrived, strict=True):
            left, right = array.reshape(-1), other.reshape(-1)
            for first in range(0, left.size, _RUN):
                part = left[first : first + _RUN].astype(np.float64)
                gap = part - right[first : first + _RUN].astype(np.float64)
                norm, lost = norm + float(part @ part), lost + float(gap @ gap)
    if not (np.isfinite(norm) and np.isfinite(lost)) or not norm:
        return None if lost or not np.isfinite(norm) else 0.0
    return float(np.sqrt(lost / norm))
