"""What a link carries, told by its own traffic: pure state, fed with exact pairs of a time and a count of bytes.

A processor that serves others makes every time that a program takes too long, but not what the system counted. So the receiver
notes, whenever it wakes, how many bytes its system has had by then (``Curve``), and tells the sender these points. The sender
knows when its system always had bytes that were not sent yet (a *stretch*: a program that came too late ends it, like one that
had nothing to send), and which part of it went while it sent to others, too (``Stretches``). Between two points inside one
stretch, nothing but the link (or its relay) decides how many bytes came. A stretch's first round trip is left out, because
congestion control may still have been finding the rate.

Such segments are put together to windows of ``WINDOW`` seconds, and the rate that a fifth of the last windows passes is the
link's (``Goodput``), as in a probe (``link_probe``): what disturbs hardly ever makes a window too fast. Segments in company
(the sender sent to others, or others sent to the receiver) may have shared a line: they say only what the link carries at least.

The idea of pairing counts with times taken where they were counted is that of delivery-rate samples (Cheng et al., "Delivery Rate
Estimation", draft-cheng-iccrg-delivery-rate-estimation); that draft counts at the sender, where confirmations that waited behind
what came the other way blur it. Cost: some microseconds for a point, at most ``Curve.MOST`` points in a state.
"""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass

__all__ = ["Curve", "Goodput", "Look", "Point", "Segment", "Stretches", "Trips"]


@dataclass(frozen=True, slots=True)
class Point:
    """By ``time`` (seconds of the receiver's clock), ``nbytes`` had come in order since the connections began. Since the point
    before: ``company``: others sent to the receiver; ``gap``: something came out of order, so counts stand still and jump."""

    time: float
    nbytes: int
    company: bool = False
    gap: bool = False


@dataclass(frozen=True, slots=True)
class Segment:
    """``nbytes`` came in ``seconds``, while more waited to be sent all the time; ``company``: the line may have been shared."""

    seconds: float
    nbytes: int
    company: bool


class Curve:
    """The receiver's points since it told the last ones: at most ``MOST``, closer ones give way."""

    MOST, APART = 12, 1e-3
    #: Others send in company if they sent more than this share of what came, and than so many bytes.
    SHARE, LEAST = 0.1, 2048

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._apart = self.APART
        self._last = Point(-1e9, 0)
        self._others = self._early = 0

    def due(self, now: float) -> bool:
        """Whether a point is worth its cost."""
        return now - self._last.time >= self._apart

    def add(self, now: float, nbytes: int, others: int, early: int = 0) -> None:
        """Since the beginning, ``nbytes`` came in order, ``others`` bytes from other peers, ``early`` packets out of order."""
        if nbytes == self._last.nbytes:
            return  # a later point with as many bytes might lie behind the end of a stretch
        came = others - self._others
        company = came > max(self.LEAST, self.SHARE * (nbytes - self._last.nbytes))
        self._last = Point(now, nbytes, company, early > self._early)
        self._others, self._early = others, early
        self._points.append(self._last)
        if len(self._points) > self.MOST:
            self._thin()

    def take(self) -> list[Point]:
        """The points, to be told."""
        points, self._points, self._apart = self._points, [], self.APART
        return points

    def _thin(self) -> None:
        """Drop every second one, and keep the last."""
        kept: list[Point] = []
        company = gap = False
        for left, point in zip(reversed(range(len(self._points))), self._points, strict=True):
            company, gap = company or point.company, gap or point.gap
            if left % 2 == 0:
                kept.append(Point(point.time, point.nbytes, company, gap))
                company = gap = False
        self._points = kept
        self._apart *= 2


@dataclass(slots=True)
class _Range:
    start: int
    stop: float = math.inf


@dataclass(frozen=True, slots=True)
class Look:
    """At ``time`` of the sender's clock its system had sent ``sent`` bytes, the first ``confirmed`` of which were confirmed, and
    held ``unsent`` more. ``dry``: it had nothing to send; ``company``: bytes go to others, too. Not ``exact``: at about that
    time."""

    time: float
    sent: int
    confirmed: int
    unsent: int
    dry: bool = False
    company: bool = False
    exact: bool = True

    @property
    def given(self) -> int:
        """Bytes that the system has had."""
        return self.sent + self.unsent


class Stretches:
    """The sender's side: which of the receiver's points lie inside a stretch, and whether the link was what held them up.

    It was if bytes had to wait before it, which is certain if one was not sent before a moment and came later than the quickest
    way after that moment; or if congestion control had time to find the rate, in this stretch and those before. Places are
    bytes since the connections began.
    """

    MOST, LOOKS = 64, 512
    #: Looks are so many bytes apart, or so many seconds.
    APART_BYTES, APART_SECONDS = 4096, 2e-3
    #: Places are known but for small messages that were under way when the two counts were compared.
    AFTER_START, BEFORE_END = 4096, 512
    #: A queue stands before the link if bytes take longer than the quickest did by this share of a round trip.
    QUEUE = 0.1
    #: Round trips, the first one of each stretch left out, in which congestion control finds the rate.
    CYCLES = 30

    def __init__(self) -> None:
        #: The quickest way of late, the difference of the two clocks included.
        self.ways = Trips()
        self.forget()

    def forget(self) -> None:
        """Connections came or went: places have another meaning."""
        #: What the receiver's count lacks to this side's (None: not known yet).
        self._lag: int | None = None
        self._starts: deque[int] = deque(maxlen=self.MOST)
        self._company: deque[_Range] = deque(maxlen=self.MOST)
        self._looks: deque[Look] = deque(maxlen=self.LOOKS)
        self._since, self._start, self._rest, self._learned = 0.0, -1, 0.0, 0.0
        self._before: tuple[Point, bool] | None = None

    def gives(self, look: Look) -> None:
        """More will be given to the system, which is as ``look`` says."""
        self.look(look)
        if look.dry or not self._starts:
            self._starts.append(look.given)
        last = self._company[-1] if self._company else None
        shared = last is not None and last.stop == math.inf
        if look.company and not shared:
            self._company.append(_Range(look.confirmed))
        elif last is not None and shared and not look.company:
            last.stop = look.given

    def learned(self, round_trip: float) -> bool:
        """Whether congestion control had time to find the rate."""
        return self._learned >= self.CYCLES * round_trip

    def look(self, look: Look) -> None:
        """The system is as ``look`` says."""
        last = self._looks[-1] if self._looks else None
        if not look.exact:
            return
        if last is None or look.sent >= last.sent + self.APART_BYTES or look.time >= last.time + self.APART_SECONDS:
            self._looks.append(look)

    def align(self, given: int, nbytes: int) -> None:
        """Of ``given`` bytes all chunks have come; the receiver counted ``nbytes`` some time before."""
        if self._lag is None or given - nbytes < self._lag:  # small messages under way make it too large, nothing too small
            self._lag = given - nbytes
            self.ways = Trips()

    def told(self, points: Sequence[Point], given: int, round_trip: float) -> list[Segment]:
        """The receiver's next points; ``given`` bytes were given until now."""
        if self._lag is None:
            return []
        found = [self._place(point, point.nbytes + self._lag, given, round_trip) for point in points]
        return [segment for segment in found if segment is not None]

    def _place(self, point: Point, place: int, given: int, round_trip: float) -> Segment | None:
        queued = self._queued(point, place, round_trip)
        while len(self._starts) > 1 and self._starts[1] <= place:
            self._starts.popleft()
        start = self._starts[0] if self._starts else given
        stop = self._starts[1] if len(self._starts) > 1 else given
        if not start + self.AFTER_START <= place < stop - self.BEFORE_END:
            self._before = None
            return None
        if start != self._start or point.gap:
            self._start, self._since, self._before = start, point.time, None
            self._rest = 2 * round_trip if point.gap else 0.0  # what is missing is sent again, and lets the count jump
        before, self._before = self._before, (point, queued) if point.time >= self._since + self._rest else None
        if before is None or self._before is None or point.time <= before[0].time:
            return None
        seconds, nbytes = point.time - before[0].time, point.nbytes - before[0].nbytes
        found = queued and before[1]
        if before[0].time >= self._since + round_trip:
            found = found or self.learned(round_trip)
            self._learned += seconds
        return Segment(seconds, nbytes, point.company or not found or self._shared(place - nbytes, place))

    def _queued(self, point: Point, place: int, round_trip: float) -> bool:
        """Whether the byte at ``place`` has to wait before the link: for certain, its way takes longer than the quickest one.

        At ``point.time`` the byte before it is there, and it is not.
        """
        while len(self._looks) > 1 and self._looks[1].sent < place:
            self._looks.popleft()
        if not self._looks or self._looks[0].sent >= place:
            return False
        self.ways.add(point.time - self._looks[0].time, point.time)
        sent = next((look.time for look in self._looks if look.sent > place), math.inf)
        return point.time - sent - self.ways.least > self.QUEUE * round_trip

    def _shared(self, start: int, stop: int) -> bool:
        while self._company and self._company[0].stop < start:
            self._company.popleft()
        return any(span.start < stop and start < span.stop for span in self._company)


@dataclass(slots=True)
class _Windows:
    """Rates of the last windows of one kind."""

    rates: deque[float]
    seconds: float = 0.0
    nbytes: int = 0


class Goodput:
    """The rate of a link in bytes per second, from segments.

    It rises when more than a fifth of the last ``KEPT`` windows are faster. If ``TURN`` windows in a row all lie more than
    ``STEP`` below it, the link has become slower, and what was before is forgotten.
    """

    WINDOW, LEAST_BYTES = 0.1, 16 << 10
    LEAST, KEPT = 5, 25
    TURN, STEP = 5, 0.12

    def __init__(self) -> None:
        self._alone, self._shared = (_Windows(deque(maxlen=self.KEPT)) for _ in range(2))

    def add(self, segment: Segment) -> None:
        """Take a segment."""
        windows = self._shared if segment.company else self._alone
        windows.seconds += segment.seconds
        windows.nbytes += segment.nbytes
        if windows.seconds < self.WINDOW or (windows.nbytes < self.LEAST_BYTES and windows.seconds < 10 * self.WINDOW):
            return
        windows.rates.append(windows.nbytes / windows.seconds)
        windows.seconds, windows.nbytes = 0.0, 0
        newest = list(windows.rates)[-self.TURN :]
        if len(newest) == self.TURN and max(newest) < (1 - self.STEP) * self._usual(windows):
            windows.rates.clear()
            windows.rates.extend(newest)
            if windows is self._alone:
                self._shared = _Windows(deque(maxlen=self.KEPT))

    @property
    def alone(self) -> float:
        """What the link carries (0: too little was seen)."""
        return self._usual(self._alone)

    @property
    def least(self) -> float:
        """What it carries at least: seen in company (0: too little was seen)."""
        return self._usual(self._shared)

    def _usual(self, windows: _Windows) -> float:
        if len(windows.rates) < self.LEAST:
            return 0.0
        return statistics.quantiles(windows.rates, n=5, method="inclusive")[-1]


class Trips:
    """The smallest of what was seen in the last ten to twenty seconds."""

    SPAN = 10.0

    def __init__(self) -> None:
        self._begin = -math.inf
        self._before = self._now = math.inf

    def add(self, seconds: float, now: float) -> None:
        """A trip took so long."""
        if now - self._begin > self.SPAN:
            self._before = self._now if now - self._begin < 2 * self.SPAN else math.inf
            self._begin, self._now = now, math.inf
        self._now = min(self._now, seconds)

    @property
    def least(self) -> float:
        """See the class (infinite: none was seen)."""
        return min(self._before, self._now)
