"""What the rhythm of messages says of devices and links: which one is slow, which one is silent, and which is well again.

Each device and each direction of a link is compared with itself: the median of its last few values against the median of those
before. So nothing has to be known of how fast it should be, a plan's uneven shares are no finding, and one slow step is none
either. What is slow still speaks; who is dead is silent: silence is looked at apart, and told well before the lease runs out.
A new plan moves the work, so it begins afresh. Cost: O(window) for each value, some hundred numbers for each device and link.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from farflung.units import Seconds

__all__ = ["Rhythm"]

#: Values that make a median now, and at least and at most before.
_RECENT, _LEAST, _MOST = 5, 12, 64
#: Slower than before by this factor is told; below the other one it is well again.
_SLOW, _WELL = 2.0, 1.4
#: Seconds that are lost by it, at least: of less nobody would want to hear.
_MATTERS = 0.02
#: The share of a lease after which silence is told.
_SILENT = 0.5


@dataclass(slots=True)
class _Series:
    before: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST))
    recent: deque[float] = field(default_factory=lambda: deque(maxlen=_RECENT))
    slow: bool = False

    def add(self, value: float) -> tuple[float, float] | None:
        """The median before and now, where that changed what is to be told."""
        if len(self.recent) == _RECENT and not self.slow:
            self.before.append(self.recent[0])
        self.recent.append(value)
        if len(self.before) < _LEAST or len(self.recent) < _RECENT:
            return None
        usual, now = statistics.median(self.before), statistics.median(self.recent)
        slow = now > _WELL * usual if self.slow else now > max(_SLOW * usual, usual + _MATTERS)
        if self.slow == slow:
            return None
        self.slow = not self.slow
        return usual, now


class Rhythm:
    """Takes what is measured of a run; each method returns what is to be told (empty: nothing new)."""

    def __init__(self) -> None:
        self._devices: dict[str, _Series] = {}
        self._links: dict[tuple[str, str], _Series] = {}
        self._silent: dict[str, float] = {}

    def begin(self) -> None:
        """A new plan: everybody has other work."""
        self._devices.clear()
        self._links.clear()

    def step(self, name: str, busy: float) -> str:
        """The device ``name`` computed for ``busy`` seconds in a step."""
        series = self._devices.setdefault(name, _Series())
        found = series.add(busy)
        if found is None:
            return ""
        usual, now = found
        if not series.slow:
            return f"worker {name} computes as fast as before again ({Seconds(now)} a step)"
        times = f"{now / usual:.1f} times as long as before"
        return f"worker {name} is slow: it computes for {Seconds(now)} a step, {times}; it is alive"

    def sent(self, source: str, target: str, seconds: float, nbytes: int) -> str:
        """A frame of ``nbytes`` took ``seconds`` from ``source`` to ``target``. Frames of about one size are compared.

        If one of its ends computes slowly, that is why; the link is not looked at.
        """
        if any(end in self._devices and self._devices[end].slow for end in (source, target)):
            return ""
        size = max(nbytes, 1).bit_length()
        series = self._links.setdefault((source, f"{target}/{size}"), _Series())
        found = series.add(seconds)
        if found is None:
            return ""
        usual, now = found
        if not series.slow:
            return f"the link from {source} to {target} is as fast as before again"
        return (
            f"the link from {source} to {target} is slow: {Seconds(now)} for what took {Seconds(usual)} before "
            f"({now / usual:.1f} times as long)"
        )

    def silence(self, name: str, seconds: float, lease: float) -> str:
        """Nothing was heard of ``name`` for ``seconds``; it is given up after ``lease``."""
        before = self._silent.get(name, 0.0)
        if seconds > _SILENT * lease:
            self._silent[name] = max(seconds, before)
            if not before:
                end = f"it is given up after {Seconds(lease)}"
                return f"nothing was heard of worker {name} for {Seconds(seconds)}: slow, or dead; {end}"
            return ""
        if before:
            del self._silent[name]
            return f"worker {name} is heard again after {Seconds(before)} or more: it was slow, not dead"
        return ""

    def gone(self, name: str) -> None:
        """``name`` is no member any more: it was dead, or is as good as that."""
        self._silent.pop(name, None)
        self._devices.pop(name, None)

    @property
    def slow(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Devices, and directions of links between others, that are slow now."""
        devices = tuple(sorted(name for name, series in self._devices.items() if series.slow))
        links = {(source, target.rpartition("/")[0]) for (source, target), series in self._links.items() if series.slow}
        return devices, tuple(sorted(link for link in links if not set(link) & set(devices)))
