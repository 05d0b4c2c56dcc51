"""Which devices and links of a run are slow, which workers are silent, and which have recovered.

Each device and each direction of a link is compared with its own step-time baseline: all of the last few values against the
median of the values before. So nobody has to know how fast it should be, uneven shares of a plan are no finding, and neither is
one slow step. A straggler still sends messages; a dead worker is silent. Silence is detected separately, and reported well before
the lease expires. A new plan moves the work, so all baselines begin again; a device that was slow may be fast under the new plan,
which is also reported. ``slowdowns`` returns as numbers what the texts say. Cost: O(window) for each value, some hundred numbers
for each device and link.

Links need more care, because a busy machine delivers messages late. Transfers count in multiples of the time that the link's
known round trip and rate ask, at least 1. More values in a row are needed. Where the system's own counts give the link's rate
(``transports.goodput``, which does not depend on when a program runs), they must agree.
"""

from __future__ import annotations

import statistics
from collections import deque
from dataclasses import dataclass, field

from farflung.units import Seconds

__all__ = ["Slowdown", "StragglerDetector"]

#: The number of recent values, which must all be slow (recovered: their median); and of values before, at least and at most.
_RECENT, _LEAST, _MOST = 5, 12, 64
#: The number of recent values of a link.
_IN_A_ROW = 8
#: After recoveries, at most ``_LONGEST`` recent values must be slow. ``_CALM`` values near the baseline halve the number.
_LONGEST, _CALM = 40, 256
#: Slow: this factor over the baseline. Recovered: below the other factor.
_SLOW, _RECOVERED = 2.0, 1.4
#: Seconds by which a value must exceed the baseline to be reported.
_MATTERS = 0.02
#: Seconds that programs need for a message, in addition to the link.
_HANDLING = 2e-3
#: The system's counts agree that a link is slow if its rate falls below this share of the highest rate, or if its latency rises
#: as much above the lowest.
_FALLEN = 0.7
#: The share of a lease after which silence is reported.
_SILENT = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Slowdown:
    """A device, or else the direction of a ``link`` (from, to), lastingly takes ``times`` as long as when its plan began.

    ``before``: the value of ``times`` in the last report. ``kind`` of a link: its rate is slow (``fills``), its latency
    (``small``), or either (``""``). ``text``: a message for people.
    """

    device: str = ""
    link: tuple[str, str] | None = None
    kind: str = ""
    times: float
    before: float
    text: str


@dataclass(slots=True)
class _Series:
    """The baseline of one device or direction. Values are multiples of a unit."""

    #: How many recent values must all be slow: at first, and now. Each recovery doubles the number, so that a device whose speed
    #: alternates on a busy machine is not reported each time. ``_CALM`` values near the baseline halve it.
    first_row: int = _RECENT
    row: int = 0
    calm: int = 0
    before: deque[float] = field(default_factory=lambda: deque(maxlen=_MOST))
    recent: deque[float] = field(default_factory=deque)
    #: ``doubted``: the values look slow, but the system's counts disagree.
    slow: bool = False
    doubted: bool = False
    #: Now over the baseline, and the same at the last report before.
    times: float = 1.0
    reported: float = 1.0

    def __post_init__(self) -> None:
        self.row = self.row or self.first_row

    def add(self, value: float, unit: float = 1.0, *, possible: bool = True) -> tuple[float, float] | None:
        """Return the baseline and the present median in seconds, if ``slow`` changed (None: it did not).

        ``value`` is a multiple of ``unit`` seconds. Not ``possible``: the system's counts say that it is not slow.
        """
        self.recent.append(value)
        self.calm += 1
        if self.calm >= _CALM and not self.slow:
            self.row, self.calm = max(self.row // 2, self.first_row), 0
        while len(self.recent) > self.row + 1:
            self.before.append(self.recent.popleft())
        if len(self.recent) > self.row:
            oldest = self.recent.popleft()
            if not (self.slow or self.doubted):
                self.before.append(oldest)
        elif len(self.recent) < self.row:
            return None
        if len(self.before) < _LEAST:
            return None
        usual, now = statistics.median(self.before), statistics.median(self.recent)
        if not usual / _SLOW <= value <= usual * _SLOW:
            self.calm = 0
        slow = now > _RECOVERED * usual if self.slow else min(self.recent) > max(_SLOW * usual, usual + _MATTERS / unit)
        self.doubted = slow and not self.slow and not possible
        if self.slow == slow or self.doubted:
            return None
        if self.slow:
            self.row = min(2 * self.row, _LONGEST)
        self.slow = not self.slow
        self._report(now / usual if self.slow else 1.0)
        return usual * unit, now * unit

    def change(self) -> tuple[float, float] | None:
        """Return the same as ``add`` for changes that leave ``slow`` as it is, after ``add``.

        A straggler became slower or less slow, or another device faster, by ``_SLOW`` each. In the last case, it gets a new
        baseline.
        """
        if len(self.recent) < self.row or len(self.before) < _LEAST or self.doubted:
            return None
        usual, now = statistics.median(self.before), statistics.median(self.recent)
        if self.slow:
            last = usual * self.times
            if min(self.recent) <= max(_SLOW * last, last + _MATTERS) and max(self.recent) >= min(last / _SLOW, last - _MATTERS):
                return None
            self._report(now / usual)
            return usual, now
        if max(self.recent) >= min(usual / _SLOW, usual - _MATTERS):
            return None
        self._report(now / usual)
        self.before.clear()
        return usual, now

    def _report(self, times: float) -> None:
        self.reported, self.times, self.calm = self.times, times, 0


@dataclass(slots=True)
class _Counts:
    """The system's counts of a direction: bytes per second (alone, and at least), and the latency (``LinkStatistics``)."""

    values: tuple[deque[float], ...] = field(default_factory=lambda: tuple(deque(maxlen=_MOST) for _ in range(3)))

    def add(self, *now: float) -> None:
        for values, value in zip(self.values, now, strict=True):
            if value > 0:
                values.append(value)

    def allow(self, kind: str) -> bool:
        """Return whether the link may be slow: its latency rose, or its rate fell (for ``fills``), or nothing is known."""
        *rates, latencies = self.values
        known = [values for values in rates if values]
        longer = not latencies or latencies[-1] * _FALLEN > min(latencies)
        if kind == "small":
            return longer
        return longer or not known or any(values[-1] < _FALLEN * max(values) for values in known)


class StragglerDetector:
    """Takes the measurements of one run. Each method returns a message for people (empty: nothing new). Not thread-safe."""

    def __init__(self) -> None:
        self._devices: dict[str, _Series] = {}
        self._links: dict[tuple[str, str], _Series] = {}
        self._counts: dict[tuple[str, str], _Counts] = {}
        #: Round trip and rate of a direction when something is first sent: later figures may be those of a slow link.
        self._figures: dict[tuple[str, str], tuple[float, float]] = {}
        self._silent: dict[str, float] = {}
        self._slowdowns: list[Slowdown] = []

    def slowdowns(self) -> list[Slowdown]:
        """Return the changes of devices and links since the last call."""
        found, self._slowdowns = self._slowdowns, []
        return found

    def begin(self) -> None:
        """A new plan: all devices have other work."""
        self._devices.clear()
        self._links.clear()
        self._counts.clear()
        self._figures.clear()

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
        self._slowdowns.append(Slowdown(device=name, times=series.times, before=series.reported, text=text))
        if not (series.slow or known):
            series.times = 1.0  # the new baseline
        return text

    def counted(self, source: str, target: str, alone: float, least: float, alpha: float) -> None:
        """The system counted ``alone`` or at least ``least`` bytes per second, and ``alpha`` seconds of latency (0: unknown)."""
        self._counts.setdefault((source, target), _Counts()).add(alone, least, alpha)

    def sent(self, source: str, target: str, seconds: float, nbytes: int, figures: tuple[float, float] | None = None) -> str:
        """``nbytes`` took ``seconds`` from ``source`` to ``target``, from the first byte's send until the last one's arrival.

        ``figures``: round trip (seconds) and bytes per second of the link; without them only transfers of similar size are
        compared. If one end computes slowly, that is the cause, and the link is not examined.
        """
        if any(end in self._devices and self._devices[end].slow for end in (source, target)):
            return ""
        kind, unit = f"{max(nbytes, 1).bit_length()}", 1.0
        if figures is not None or (source, target) in self._figures:
            round_trip, rate = self._figures.setdefault((source, target), figures or (0.0, 1.0))
            unit = _HANDLING + round_trip + nbytes / rate
            kind, seconds = "fills" if nbytes / rate >= round_trip else "small", max(seconds / unit, 1.0)
        series = self._links.setdefault((source, f"{target}/{kind}"), _Series(first_row=_IN_A_ROW))
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
        self._slowdowns.append(Slowdown(link=(source, target), kind=what, times=series.times, before=series.reported, text=text))
        return text

    def silence(self, name: str, seconds: float, lease: float) -> str:
        """``name`` has been silent for ``seconds``; the broker removes it after ``lease`` seconds."""
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

    def lost(self, name: str) -> None:
        """``name`` is no member any more."""
        self._silent.pop(name, None)
        self._devices.pop(name, None)

    @property
    def slow(self) -> tuple[tuple[str, ...], tuple[tuple[str, str], ...]]:
        """Return the devices, and the directions of links between other devices, that are slow now."""
        devices = tuple(sorted(name for name, series in self._devices.items() if series.slow))
        links = {(source, target.rpartition("/")[0]) for (source, target), series in self._links.items() if series.slow}
        return devices, tuple(sorted(link for link in links if not set(link) & set(devices)))
