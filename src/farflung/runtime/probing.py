"""Measuring links: the worker's side sends, the broker's side says who sends when.

A probe of one direction is made over the very link that training uses. First small frames: half of the quickest answer's time
is alpha, or of the system's own quickest round trip if that is less. Then frames one after another, each as long as the rate so
far carries in a few round trips, until what is confirmed grows no faster than before: slow start is over then, and the link has
found its number of connections. The usual rate of the last two thirds of that time is beta: payload bytes per second. Whatever
disturbs a probe (a processor that serves others, another sender) makes it too low, hardly anything too high. So a rate is usual
if a fifth of the time was faster, and where the fastest and the slowest fifth differ, the direction is probed again at the end,
and its best figures stay.
"""

from __future__ import annotations

import bisect
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from farflung.errors import ConnectionLost, FarflungError
from farflung.protocol.rounds import star_rounds, tournament
from farflung.runtime.fields import number, text
from farflung.runtime.link_table import LinkFigures, LinkTable
from farflung.transports.base import Endpoint, Urgency
from farflung.wire.frames import Frame

__all__ = ["Probe", "Probing", "probe_link", "read_probe"]

_PINGS = 8
#: How long a link is kept busy at least: seconds, and round trips besides; and at most.
_SECONDS, _ROUND_TRIPS, _MOST_SECONDS = 2.4, 30, 12.0
#: A link whose last third carried more than this many times what its middle third did is still opening its window.
_GROWTH = 1.03
_LOOK, _LEAST_MARKS, _WINDOW_SECONDS = 0.01, 6, 0.8
_FIRST, _LEAST, _MOST = 128 << 10, 32 << 10, 32 << 20
_WINDOW = 2
#: A device whose two links together carry less than this share of what they carry alone has a cap on all that it sends.
_CAPPED = 0.8
#: A probe whose windows differ by more than this share is repeated, so many times.
_UNSTEADY, _REPEATS = 0.05, 2
_PATIENCE = 60.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """What a probe found: seconds one way, payload bytes per second; through which relay (empty: directly). ``spread``: between
    the slowest and the fastest fifth of the time, as a share of the latter."""

    alpha: float
    beta: float
    spread: float = 0.0
    relay: str = ""


def probe_link(endpoint: Endpoint, peer: str, now: Callable[[], float] = time.monotonic) -> Probe:
    """Measure the way to ``peer``, whose endpoint must drop frames of the kind ``probe``.

    Raises:
        ConnectionLost: the peer can't be reached.
    """
    endpoint.post(peer, Frame("probe"), Urgency.CONTROL).result()
    trips = []
    for _ in range(_PINGS):
        begin = now()
        endpoint.post(peer, Frame("probe"), Urgency.CONTROL).result()
        trips.append(now() - begin)
    round_trip = min(trips)
    beta, spread = _goodput(endpoint, peer, round_trip, now)
    return Probe(alpha=_least_alpha(endpoint, peer, round_trip / 2), beta=beta, spread=spread)


def _least_alpha(endpoint: Endpoint, peer: str, pinged: float) -> float:
    """What the system saw of the same connections, if that is less: programs that are held up answer late, it does not."""
    seen = endpoint.statistics().get(peer)
    return min(pinged, float(seen.alpha)) if seen is not None and seen.alpha else pinged


def _goodput(endpoint: Endpoint, peer: str, round_trip: float, now: Callable[[], float]) -> tuple[float, float]:
    """Keep the link busy, and see how what is confirmed grows: bytes per second, and their spread."""
    size, body = _FIRST, memoryview(bytes(_MOST))
    begin = now()
    least = begin + min(_SECONDS + _ROUND_TRIPS * round_trip, _MOST_SECONDS)
    #: (when it was seen, bytes confirmed until then)
    marks: list[tuple[float, int]] = []
    waiting: deque[tuple[Future[None], int]] = deque()
    done, last = 0, begin
    while now() < least or len(marks) < _LEAST_MARKS or (now() < begin + _MOST_SECONDS and _grows(marks)):
        while len(waiting) < _WINDOW:
            waiting.append((endpoint.post(peer, Frame("probe", {}, (body[:size],)), Urgency.BULK), size))
        with suppress(TimeoutError):
            waiting[0][0].result(_LOOK)
            done += waiting[0][1]
            rate = waiting.popleft()[1] / max(now() - last, 1e-6)
            last = now()
            size = int(min(max(rate * (0.1 + 3 * round_trip), _LEAST, size / 2), _MOST, 2 * size))
        fine = _confirmed(endpoint, peer)
        if not marks or (fine or done) > marks[-1][1]:  # a mark when it was seen first, or windows would end anywhere
            marks.append((now(), fine or done))
    for future, _ in waiting:
        future.result()
    opened = marks[0][0] + (marks[-1][0] - marks[0][0]) / 3
    steady = [mark for mark in marks if mark[0] >= opened]
    return _usual_rate(steady, _WINDOW_SECONDS + 4 * round_trip) if _confirmed(endpoint, peer) else (_slope(steady), 0.0)


def _grows(marks: Sequence[tuple[float, int]]) -> bool:
    """Whether the last third of the time carried clearly more than the middle third."""
    times = [time_ for time_, _ in marks]
    ends = [bisect.bisect_left(times, times[0] + share * (times[-1] - times[0]) / 3) for share in (1, 2)]
    middle, last = _slope(marks[ends[0] : ends[1] + 1]), _slope(marks[ends[1] :])
    return last > _GROWTH * middle


def _confirmed(endpoint: Endpoint, peer: str) -> int:
    """What has arrived of frames that are on their way, too (0: this transport does not know)."""
    seen = endpoint.statistics().get(peer)
    return 0 if seen is None else seen.confirmed


def _slope(marks: Sequence[tuple[float, int]]) -> float:
    """Bytes per second between the first and the last of whole frames."""
    (begin, before), (end, after) = marks[0], marks[-1]
    return max((after - before) / max(end - begin, 1e-6), 1.0)


def _usual_rate(marks: Sequence[tuple[float, int]], window: float) -> tuple[float, float]:
    """Bytes per second of the fastest fifth of all windows of ``window`` seconds, and how far below the slowest fifth is.

    A lost packet stalls a connection for a round trip, and processors serve others too: a mean over a few seconds is several
    percent off then.
    """
    rates, end = [], 0
    for time_, count in marks:
        while end < len(marks) and marks[end][0] < time_ + window:
            end += 1
        if end == len(marks):
            break
        rates.append((marks[end][1] - count) / (marks[end][0] - time_))
    whole = (marks[-1][1] - marks[0][1]) / max(marks[-1][0] - marks[0][0], 1e-6)
    if len(rates) < _LEAST_MARKS:
        return max(whole, 1.0), 0.0
    slow, *_, fast = statistics.quantiles(rates, n=5, method="inclusive")
    return max(fast, 1.0), max(fast - slow, 0.0) / max(fast, 1.0)


#: What else a member (the first) must be told to reach another one: fields of a header.
Extra = Callable[[str, str], Mapping[str, Any]]


def _nothing(source: str, target: str) -> Mapping[str, Any]:
    del source, target
    return {}


class Probing:
    """The broker's side: asks workers to probe, round by round; ``answer`` is called by their sessions."""

    def __init__(self, send: Callable[[str, Frame], None], table: LinkTable) -> None:
        self._send, self.table = send, table
        self._one = threading.Lock()
        self._extra: Extra = _nothing
        self._guard = threading.Lock()
        self._waiting: dict[tuple[str, str], Future[Probe]] = {}
        #: Of the measurement that is going on: the best figures, and the spread of the newest probe.
        self._found: dict[tuple[str, str], LinkFigures] = {}
        self._spreads: dict[tuple[str, str], float] = {}

    def run(
        self, members: Sequence[tuple[str, str]], extra: Callable[[str, str], Mapping[str, Any]] = _nothing
    ) -> Iterator[Frame]:
        """Measure all links between ``members`` (name and address); frames tell what was found.

        Raises:
            FarflungError: another measurement is going on.
        """
        if not self._one.acquire(blocking=False):
            raise FarflungError("the links are being measured already; wait until that is over")
        self._found, self._spreads = {}, {}
        try:
            addresses, self._extra = dict(members), extra
            yield from self._rounds(addresses)
            for _ in range(_REPEATS):
                yield from self._again(addresses)
            yield from self._stars(addresses)
        finally:
            self._one.release()

    def answer(self, name: str, peer: str, found: Probe | FarflungError) -> None:
        """The worker ``name`` has probed its way to ``peer``."""
        with self._guard:
            waiting = self._waiting.pop((name, peer), None)
        if waiting is not None:
            if isinstance(found, Probe):
                waiting.set_result(found)
            else:
                waiting.set_exception(found)

    def asks(self, name: str) -> bool:
        """Whether ``name`` takes part in a probe now."""
        with self._guard:
            return any(name in way for way in self._waiting)

    def gone(self, name: str) -> None:
        """Do not wait for ``name``."""
        with self._guard:
            keys = [key for key in self._waiting if name in key]
        for source, target in keys:
            self.answer(source, target, ConnectionLost(f"worker {name} is gone"))

    def _rounds(self, addresses: dict[str, str]) -> Iterator[Frame]:
        rounds = tournament(list(addresses))
        for index, pairs in enumerate(rounds, start=1):
            yield Frame("round", {"number": index, "of": len(rounds), "pairs": [list(pair) for pair in pairs]})
            for ways in (pairs, [(b, a) for a, b in pairs]):
                asked = [(way, self._ask(*way, addresses)) for way in ways]
                for (source, target), future in asked:
                    yield self._keep(source, target, future)

    def _again(self, addresses: dict[str, str]) -> Iterator[Frame]:
        """Probe once more what was unsteady, as many disjoint directions at once as there are."""
        left = [way for way, spread in self._spreads.items() if spread > _UNSTEADY]
        while left:
            busy: set[str] = set()
            ways = []
            for way in left:
                if not busy & set(way):
                    ways.append(way)
                    busy |= set(way)
            left = [way for way in left if way not in ways]
            asked = [(way, self._ask(*way, addresses)) for way in ways]
            for (source, target), future in asked:
                found = self._keep(source, target, future)
                if found.kind == "link":
                    yield found

    def _keep(self, source: str, target: str, future: Future[Probe]) -> Frame:
        try:
            found = future.result(_PATIENCE)
        except (FarflungError, TimeoutError) as error:
            return Frame("unreachable", {"from": source, "to": target, "cause": str(error) or "no answer in time"})
        before = self._found.get((source, target), found)
        self._spreads[source, target] = found.spread
        best = LinkFigures(alpha=min(found.alpha, before.alpha), beta=max(found.beta, before.beta), relay=found.relay)
        self._found[source, target] = best
        self.table.put(source, target, best)
        through = {"relay": found.relay} if found.relay else {}
        return Frame("link", {"from": source, "to": target, "alpha": best.alpha, "beta": best.beta, **through})

    def _stars(self, addresses: dict[str, str]) -> Iterator[Frame]:
        """Two ways at once from each device: do they share an up-link?"""
        for triples in star_rounds(list(addresses)):
            asked = [(first, (b, c), [self._ask(first, other, addresses) for other in (b, c)]) for first, b, c in triples]
            for first, others, futures in asked:
                alone = [self.table.get(first, other) for other in others]
                shared = any(figures is not None and figures.relay for figures in alone)
                try:
                    together = sum(future.result(_PATIENCE).beta for future in futures)
                except (FarflungError, TimeoutError):
                    continue
                if shared:  # two ways that meet at a relay share the way to it: that says nothing of an up-link
                    self.table.put_uplink(first, None)
                    continue
                separately = sum(figures.beta for figures in alone if figures is not None)
                cap = together if None not in alone and together < _CAPPED * separately else None
                self.table.put_uplink(first, cap)
                if cap is not None:
                    yield Frame("uplink", {"name": first, "rate": cap})

    def _ask(self, source: str, target: str, addresses: dict[str, str]) -> Future[Probe]:
        future: Future[Probe] = Future()
        with self._guard:
            self._waiting[source, target] = future
        self._send(source, Frame("probe", {"peer": target, "address": addresses[target], **self._extra(source, target)}))
        return future


def read_probe(header: Mapping[str, Any]) -> Probe | FarflungError:
    """A worker's answer: what it found, or why it could not.

    Raises:
        WireError: it is malformed.
    """
    if "cause" in header:
        return ConnectionLost(text(header, "cause"))
    spread = number(header, "spread", low=0.0) if "spread" in header else 0.0
    relay = text(header, "relay", limit=300) if "relay" in header else ""
    return Probe(alpha=number(header, "alpha", low=0.0), beta=number(header, "beta", low=1.0), spread=spread, relay=relay)
