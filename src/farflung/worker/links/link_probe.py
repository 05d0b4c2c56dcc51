"""A bandwidth probe of one direction of a link.

A probe is made over the very link that training uses. First small frames: half of the quickest answer's time
is alpha, or of the system's own quickest round trip if that is less. Then frames one after another, each as long as the rate so
far carries in a few round trips, until what is confirmed grows no faster than before: slow start is over then, and the link has
found its number of connections. The usual rate of the last two thirds of that time is beta: payload bytes per second. Whatever
disturbs a probe (a processor that serves others, another sender) makes it too low, hardly anything too high. So a rate is usual
if a fifth of the time was faster.
"""

from __future__ import annotations

import bisect
import statistics
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from contextlib import suppress

from farflung.clock import monotonic
from farflung.messages.conversions.probes import Probe
from farflung.messages.data import ProbeBytes
from farflung.messages.wire_form import encode
from farflung.transports.base import Endpoint, Urgency

__all__ = ["probe_link"]

_PINGS = 8
#: How long a link is kept busy at least: seconds, and round trips besides; and at most.
_SECONDS, _ROUND_TRIPS, _MOST_SECONDS = 2.4, 30, 12.0
#: A link whose last third carried more than this many times what its middle third did is still opening its window.
_GROWTH = 1.03
#: Seconds between two looks at the oldest frame; measuring points that a rate needs; seconds over which a rate is taken.
_LOOK, _LEAST_MARKS, _WINDOW_SECONDS = 0.01, 6, 0.8
#: Bytes of the first frame, and of any other one at least and at most.
_FIRST, _LEAST, _MOST = 128 << 10, 32 << 10, 32 << 20
#: Frames on their way: a second one keeps the link busy while the first one is confirmed.
_WINDOW = 2


def probe_link(endpoint: Endpoint, peer: str, now: Callable[[], float] = monotonic) -> Probe:
    """Measure the way to ``peer``, whose endpoint must drop frames of the kind ``probe``.

    Raises:
        ConnectionLost: the peer can't be reached.
    """
    endpoint.post(peer, encode(ProbeBytes()), Urgency.CONTROL).result()
    trips = []
    for _ in range(_PINGS):
        begin = now()
        endpoint.post(peer, encode(ProbeBytes()), Urgency.CONTROL).result()
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
            waiting.append((endpoint.post(peer, encode(ProbeBytes(sections=(body[:size],))), Urgency.BULK), size))
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
