"""What a link learns from its own traffic, as pure state: its rate, when silence means death, how many connections it needs."""

from __future__ import annotations

import threading
from dataclasses import dataclass

__all__ = ["Cap", "Deadlines", "Rate", "StripeProbe"]

_SILENCE = 2.0
_CHUNK_TIMES = 3.0
_CHUNK_SECONDS = 0.05
_MAX_PATIENCE = 8.0
_MIN_CHUNK, _MAX_CHUNK, _FIRST_CHUNK = 16 << 10, 1 << 20, 64 << 10


class Rate:
    """Goodput of a link while it is busy (bytes confirmed per second) and its round trip.

    Only time with something on its way counts. A window ends after ``WINDOW`` seconds of it, and the estimate follows with
    weight 1/2, so that it forgets an old rate within a second or two. Less than a chunk between two pauses says nothing: a
    message of 100 bytes takes a round trip on any link, and a link taken for so slow would be given minutes to answer.
    """

    WINDOW = 0.25

    def __init__(self) -> None:
        self.bytes_per_second = 0.0
        #: What congestion control takes the link for (0: it does not say), which grows sooner.
        self.believed = 0.0
        self.round_trip = 0.0
        self._since: float | None = None
        self._bytes = 0
        self._seconds = 0.0

    def confirmed(self, nbytes: int, now: float, *, busy: bool) -> None:
        """``nbytes`` were confirmed at ``now``; ``busy``: more is on its way."""
        if self._since is not None:
            self._seconds += now - self._since
            self._bytes += nbytes
        self._since = now if busy else None
        if self._bytes < _MIN_CHUNK:
            if not busy:
                self._bytes, self._seconds = 0, 0.0
            return
        if self._seconds >= max(self.WINDOW, self.round_trip):
            found = self._bytes / self._seconds
            self.bytes_per_second = found if not self.bytes_per_second else (self.bytes_per_second + found) / 2
            self._bytes, self._seconds = 0, 0.0

    def started(self, now: float) -> None:
        """Something set out at ``now`` after idleness."""
        if self._since is None:
            self._since = now

    def echoed(self, seconds: float) -> None:
        """A round trip took so long; the smallest counts, and slowly gives way to larger ones (a route may change)."""
        self.round_trip = seconds if not self.round_trip else min(seconds, self.round_trip + (seconds - self.round_trip) / 64)

    @property
    def feeding(self) -> float:
        """Bytes per second that the system may send soon: with less at hand it runs dry and never finds what the link carries."""
        return max(self.bytes_per_second, self.believed)

    def chunk_bytes(self, most: int) -> int:
        """A chunk takes about 50 ms, so that an urgent one waits no longer than that behind a bulky one."""
        wanted = self.feeding * _CHUNK_SECONDS if self.bytes_per_second else _FIRST_CHUNK
        return int(min(max(wanted, _MIN_CHUNK), most, _MAX_CHUNK))

    @property
    def chunk_seconds(self) -> float:
        """How long the largest chunk takes (0 before anything is known)."""
        return self.chunk_bytes(_MAX_CHUNK) / self.bytes_per_second if self.bytes_per_second else 0.0


@dataclass(slots=True)
class Deadlines:
    """When a silent connection is dead: after 2 s, three heartbeats, or three times what a chunk takes on it.

    ``patience`` multiplies it. The link doubles it for what it dials after it broke a connection that said nothing in time,
    until something gets through: on a way slower than thought, the same piece would break one connection after the other.
    ``excuse`` moves all deadlines: time in which this process itself did not run (suspended, or starved of CPU) proves nothing
    about the peer.
    """

    heard_at: float
    moved_at: float
    patience: float = 1.0

    def heard(self, now: float) -> None:
        """Anything came."""
        self.heard_at = now

    def moved(self, now: float) -> None:
        """A byte of ours was confirmed, or nothing is on its way."""
        self.moved_at = now

    def excuse(self, seconds: float) -> None:
        """This process slept ``seconds`` longer than it meant to."""
        self.heard_at += seconds
        self.moved_at += seconds

    @staticmethod
    def allowed(rate: Rate, connections: int, heartbeat: float) -> float:
        """Seconds of silence that are normal on this link."""
        speed = rate.bytes_per_second / max(connections, 1)
        chunk = rate.chunk_bytes(_MAX_CHUNK) / speed if speed else 0.0
        return max(_SILENCE, _CHUNK_TIMES * heartbeat, _CHUNK_TIMES * (chunk + rate.round_trip))

    def silent(self, now: float, allowed: float) -> bool:
        """Whether nothing was heard for too long."""
        return now - self.heard_at > allowed * self.patience

    def broke(self) -> float:
        """The patience that the next connection shall begin with."""
        return min(2 * self.patience, _MAX_PATIENCE)

    def stuck(self, now: float, allowed: float) -> bool:
        """Whether nothing was confirmed for too long although something is on its way; patience doubles each time."""
        if now - self.moved_at <= allowed * self.patience:
            return False
        self.moved_at = now
        self.patience = self.broke()
        return True


class StripeProbe:
    """How many connections a link shall have: doubled as long as goodput grows by ``growth`` at least, else back again.

    Only time in which connections are full counts, from one confirmation to the next: where now and then a frame goes, the time
    of its last round trip says nothing of the link. After each change, what comes during ``SETTLE`` seconds (or eight round
    trips: slow start; or ``CHUNKS`` chunks: they are confirmed one at a time) is not counted; then as much again is measured.
    A found number is tried again after ``AGAIN`` such seconds, since links change.
    """

    SETTLE, CHUNKS = 0.4, 32
    AGAIN = 60.0

    def __init__(self, first: int, most: int, growth: float = 1.1) -> None:
        self.wanted = min(first, most)
        self.settled = self.wanted >= most
        self._most, self._growth = most, growth
        self._base: float | None = None
        self._phase = "settle"
        self._bytes = 0
        self._seconds = 0.0
        self._since: float | None = None

    def confirmed(self, nbytes: int, now: float, rate: Rate, *, full: bool) -> bool:
        """``nbytes`` were confirmed at ``now``; ``full``: more waits than connections take. Whether ``wanted`` changed."""
        if self._since is not None:
            self._seconds += now - self._since
            self._bytes += nbytes
        self._since = now if full else None
        if self.settled:
            if self._seconds >= self.AGAIN and self.wanted < self._most:
                self.settled, self._base = False, None
                self._start("settle")
            return False
        if self._seconds < max(self.SETTLE, 8 * rate.round_trip, self.CHUNKS * rate.chunk_seconds):
            return False
        goodput = self._bytes / self._seconds
        if self._phase == "settle":
            self._start("measure")
            return False
        return self._judge(goodput)

    def _judge(self, goodput: float) -> bool:
        before = self.wanted
        if self._base is None or goodput >= self._growth * self._base:
            self._base = goodput
            self.wanted = min(2 * self.wanted, self._most)
            self.settled = self.wanted == before
        else:
            self.wanted = max(self.wanted // 2, 1)
            self.settled = True
        self._start("settle")
        return self.wanted != before

    def _start(self, phase: str) -> None:
        self._phase, self._bytes, self._seconds = phase, 0, 0.0


class Cap:
    """What one sender may send in all, over all its links: ``rate`` in bytes per second (None: as much as goes).

    A message may go when the time of those before it is over, so messages stay whole and the mean is kept. Any thread may call.
    """

    def __init__(self) -> None:
        self.rate: float | None = None
        #: When the next message may go, in monotonic seconds.
        self.free_at = 0.0
        #: Senders of all links add to ``free_at`` at the same time.
        self._lock = threading.Lock()

    def limit(self, rate: float | None) -> None:
        """Send at most ``rate`` bytes per second from the next message on (None: no limit)."""
        self.rate = rate

    def pause(self, now: float) -> float:
        """Seconds until the next message may go (0: now)."""
        return 0.0 if self.rate is None else max(self.free_at - now, 0.0)

    def spend(self, nbytes: int, now: float) -> None:
        """A message of ``nbytes`` goes."""
        rate = self.rate
        if rate is not None:
            with self._lock:
                self.free_at = max(self.free_at, now) + nbytes / rate
