"""What codecs cost and lose on each link while it runs: seconds of encoding and decoding, and now and then the measured error.

The clock is read around every encode and decode. An error needs a decode at the sender and three passes, so it is measured for
the first value of a link and direction, and again whenever that would take less than a hundredth of what encoding has taken
since. Memory: two copies of the value while its error is measured, one value at a time.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from farflung.clock import Clock, MonotonicClock
from farflung.engines.base import Array
from farflung.runtime.arrays import Sections
from farflung.telemetry.records import CodecUse, Link

__all__ = ["CodecGauge"]

#: Of the time of encoding, what measuring errors may take.
_SHARE = 0.01
_RUN = 1 << 16

Made = tuple[dict[str, Any], Sections]


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
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _measuring: threading.Lock = field(default_factory=threading.Lock)
    _sums: dict[tuple[int, Link], _Sum] = field(default_factory=dict)
    _budgets: dict[Link, _Budget] = field(default_factory=dict)

    def encode(self, step: int, link: Link, array: Array, make: Callable[[], Made], arrives: Callable[[Made], Array]) -> Made:
        """What ``make`` makes of ``array``; ``arrives`` gives what the receiver will have of it."""
        begin = self.clock.now()
        made = make()
        seconds = self.clock.now() - begin
        with self._lock:
            self._sum(step, link).encode += seconds
            budget = self._budgets.setdefault(link, _Budget())
            budget.encoding += seconds
            due = budget.last is None or budget.last <= _SHARE * budget.encoding
            if due:
                budget.encoding = 0.0
        if due:
            with self._measuring:
                begin = self.clock.now()
                error = _error(array, arrives(made))
                spent = self.clock.now() - begin
            with self._lock:
                budget.last = spent
                if error is not None:
                    found = self._sum(step, link)
                    found.error, found.errors = found.error + error, found.errors + 1
        return made

    def decode(self, step: int, link: Link, make: Callable[[], Array]) -> Array:
        """What ``make`` decodes."""
        begin = self.clock.now()
        array = make()
        seconds = self.clock.now() - begin
        with self._lock:
            self._sum(step, link).decode += seconds
        return array

    def take(self, step: int) -> Mapping[Link, CodecUse]:
        """The figures of ``step``, which is over; they are forgotten here."""
        with self._lock:
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
        return self._sums.setdefault((step, link), _Sum())


def _error(array: Array, arrived: Array) -> float | None:
    """``|x - x'| / |x|`` (2-norms), in blocks; None: it is no number."""
    left, right = array.reshape(-1), arrived.reshape(-1)
    norm = lost = 0.0
    with np.errstate(all="ignore"):
        for first in range(0, left.size, _RUN):
            part = left[first : first + _RUN].astype(np.float64)
            gap = part - right[first : first + _RUN].astype(np.float64)
            norm, lost = norm + float(part @ part), lost + float(gap @ gap)
    if not (np.isfinite(norm) and np.isfinite(lost)) or not norm:
        return None if lost or not np.isfinite(norm) else 0.0
    return float(np.sqrt(lost / norm))
