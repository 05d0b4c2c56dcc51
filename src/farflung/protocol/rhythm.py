"""What the rhythm of messages says of devices and links: which one is slow, which one is silent, and which is well again.

Each device and each direction of a link is compared with itself: all of its last few values against the median of those before.
So nothing has to be known of how fast it should be, a plan's uneven shares are no finding, and one slow step is none either. What
is slow still speaks; who is dead is silent: silence is looked at apart, and told well before the lease runs out. A new plan moves
the work, so it begins afresh; a device that was slow before may become fast under it, so that is told, too. ``drifts`` has as
numbers what the texts say, for who plans. Cost: O(window) for each value, some hundred numbers for each device and link.

Links need more care, because a busy machine hands messages on late. What was sent counts in multiples of what the link's known
round trip and rate ask, never below one; it takes more values in a row; and where the system's own counts give the rate of the
link (``transports.goodput``, which does not depend on when a program runs), they must not say otherwise.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from farflung.units import Seconds

__all__ = ["Drift", "Rhythm"]

#: Values that must all be slow (well again: their median), and at least and at most before.
_RECENT, _LEAST, _MOST = 5, 12, 64
#: The first of these for a link.
_IN_A_ROW = 8
#: Slower than before by this factor is told; below the other one it is well again.
_SLOW, _WELL = 2.0, 1.4
#: Seconds that are lost by it, at least: of less nobody would want to hear.
_MATTERS = 0.02
#: Seconds that programs take for a message anyway, beside what the link needs.
_HANDLING = 2e-3
#: The system's own counts speak for a slow link if a rate falls below this share of the most that they gave; or if the way rises
#: as much above the shortest.
_FALLEN = 0.7
#: The share of a lease after which silence is told.
_SILENT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """A device, or else the direction of a ``link`` (from, to), lastingly takes ``times`` as long as when its plan began.

    ``before``: how many times as long it took when that was told last. ``kind`` of a link: what of it is slow, its rate
    (``fills``), its way (``small``), or either (``""``). ``text``: what people are told.
    """

    device: str = ""
    link: tuple[str, str] | None = None
    kind: str = ""
    times: float
    before: float
    text: str


@dataclass(slots=True)
class _Series:
    #: How many of the last values must all be slow.
    row: int = _RECENT
    before: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST))
    recent: deque[float] = field(default_factory=deque)
    #: ``doubted``: it looks slow, and is known not to be.
    slow: bool = False
    doubted: bool = False
    #: How many times as long as at first, and as was told before that.
    times: float = 1.0
    told: float = 1.0

    def add(self, value: float, unit: float = 1.0, *, possible: bool = True) -> tuple[float, float] | None:
        """The median before and now, where that changed what is to be told; values are multiples of ``unit`` seconds. Not
        ``possible``: it is known not to be slow."""
        self.recent.append(value)
        if len(self.recent) > self.row:
            oldest = self.recent.popleft()
            if not (self.slow or self.doubted):
                self.before.append(oldest)
        elif len(self.recent) < self.row:
            return None
        if len(self.before) < _LEAST:
            return None
        usual, now = statistics.median(self.before), statistics.median(self.recent)
        slow = now > _WELL * usual if self.slow else min(self.recent) > max(_SLOW * usual, usual + _MATTERS / unit)
        self.doubted = slow and not self.slow and not possible
        if self.slow == slow or self.doubted:
            return None
        self.slow = not self.slow
        self._tell(now / usual if self.slow else 1.0)
        return usual * unit, now * unit

    def change(self) -> tuple[float, float] | None:
        """As ``add`` of a value that was added already, of what ``add`` does not tell: what was slow is slower still or half as
        slow, what was not is faster, by ``_SLOW`` each. The usual pace is another one then where it is not slow."""
        if len(self.recent) < self.row or len(self.before) < _LEAST or self.doubted:
            return None
        usual, now = statistics.median(self.before), statistics.median(self.recent)
        if self.slow:
            last = usual * self.times
            if min(self.recent) <= max(_SLOW * last, last + _MATTERS) and max(self.recent) >= min(last / _SLOW, last - _MATTERS):
                return None
            self._tell(now / usual)
            return usual, now
        if max(self.recent) >= min(usual / _SLOW, usual - _MATTERS):
            return None
        self._tell(now / usual)
        self.before.clear()
        return usual, now

    def _tell(self, times: float) -> None:
        self.told, self.times = self.times, times


@dataclass(slots=True)
class _Counts:
    """What the system's counts said of a direction: bytes per second, alone and at least, and the way (``LinkStatistics``)."""

    kept: tuple[deque[float], ...] = field(default_factory=lambda: tuple(deque(maxlen=_MOST) for _ in range(3)))

    def add(self, *now: float) -> None:
        for values, value in zip(self.kept, now, strict=True):
            if value > 0:
                values.append(value)

    def allow(self, kind: str) -> bool:
        """Whether the link may be slow: its way is longer or, for what fills it, a rate has fallen; or nothing is known."""
        *rates, ways = self.kept
        known = [values for values in rates if values]
        longer = not ways or ways[-1] * _FALLEN > min(ways)
        if kind == "small":
            return longer
        return longer or not known or any(values[-1] < _FALLEN * max(values) for values in known)


class Rhythm:
    """Takes what is measured of a run; each method returns what is to be told (empty: nothing new)."""

    def __init__(self) -> None:
        self._devices: dict[str, _Series] = {}
        self._links: dict[tuple[str, str], _Series] = {}
        self._counts: dict[tuple[str, str], _Counts] = {}
        #: What is known of a direction when something is first sent: later figures may be those of a slow link.
        self._ways: dict[tuple[str, str], tuple[float, float]] = {}
        self._silent: dict[str, float] = {}
        self._drifts: list[Drift] = []

    def drifts(self) -> list[Drift]:
        """What has been told of devices and links since the last call."""
        found, self._drifts = self._drifts, []
        return found

    def begin(self) -> None:
        """A new plan: everybody has other work."""
        self._devices.clear()
        self._links.clear()
        self._counts.clear()
        self._ways.clear()

    def step(self, name: str, busy: float) -> str:
        """The device ``name`` computed for ``busy`` seconds in a step."""
        series = self._devices.setdefault(name, _Series())
        known = series.slow
        found = series.add(busy) or series.change()
        if found is None:
            return ""
        usual, now = found
        if series.slow:
            times = f"{now / usual:.1f} times its usual {Seconds(usual)}"
            text = f"worker {name} is slow but alive: it computes for {Seconds(now)} per step, {times}"
        elif known:
            text = f"worker {name} is back at its usual speed ({Seconds(now)} of computing per step)"
        else:
            text = f"worker {name} is faster than before: it computes for {Seconds(now)} per step instead of {Seconds(usual)}"
        self._drifts.append(Drift(device=name, times=series.times, before=series.told, text=text))
        if not (series.slow or known):
            series.times = 1.0  # from here it is compared with its new pace
        return text

    def counted(self, source: str, target: str, alone: float, least: float, alpha: float) -> None:
        """The system's counts say that the direction carries ``alone`` bytes per second, ``least`` at least, and that a way takes
        ``alpha`` seconds (0: not known)."""
        self._counts.setdefault((source, target), _Counts()).add(alone, least, alpha)

    def sent(self, source: str, target: str, seconds: float, nbytes: int, way: tuple[float, float] | None = None) -> str:
        """``nbytes`` took ``seconds`` from ``source`` to ``target``, from the first byte's handing over until the last one was
        there. ``way``: what is known of the link, its round trip in seconds and bytes per second; else only what is of about one
        size is compared.

        If one of its ends computes slowly, that is why; the link is not looked at.
        """
        if any(end in self._devices and self._devices[end].slow for end in (source, target)):
            return ""
        kind, unit = f"{max(nbytes, 1).bit_length()}", 1.0
        if way is not None or (source, target) in self._ways:
            round_trip, rate = self._ways.setdefault((source, target), way or (0.0, 1.0))
            unit = _HANDLING + round_trip + nbytes / rate
            kind, seconds = "fills" if nbytes / rate >= round_trip else "small", max(seconds / unit, 1.0)
        series = self._links.setdefault((source, f"{target}/{kind}"), _Series(row=_IN_A_ROW))
        counts = self._counts.get((source, target))
        found = series.add(seconds, unit, possible=counts is None or counts.allow(kind))
        if found is None:
            return ""
        usual, now = found
        text = f"the link from {source} to {target} is back at its usual speed"
        if series.slow:
            text = (
                f"the link from {source} to {target} is slow: a transfer takes {Seconds(now)}, "
                f"{now / usual:.1f} times its usual {Seconds(usual)}"
            )
        what = kind if kind in ("fills", "small") else ""
        self._drifts.append(Drift(link=(source, target), kind=what, times=series.times, before=series.told, text=text))
        return text

    def silence(self, name: str, seconds: float, lease: float) -> str:
        """Nothing was heard of ``name`` for ``seconds``; it is given up after ``lease``."""
        before = self._silent.get(name, 0.0)
        if seconds > _SILENT * lease:
            self._silent[name] = max(seconds, before)
            if not before:
                end = f"the broker removes it after {Seconds(lease)} of silence"
                return f"worker {name} has been silent for {Seconds(seconds)}, it is slow or dead; {end}"
            return ""
        if before:
            del self._silent[name]
            return f"worker {name} responds again after at least {Seconds(before)} of silence"
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
