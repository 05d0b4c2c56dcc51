"""Taking breath before BBR does.

BBR (Cardwell et al. 2016, "BBR: Congestion-Based Congestion Control"; Linux ``tcp_bbr.c``) wants to see the empty way's round
trip once in ten seconds. If the newest smallest one is older, a busy connection sends four packets per round trip for 200 ms
(PROBE_RTT): a pipeline with a dozen of links in a row meets such a hole in every step or two. A connection that has just been
idle is spared that: its next round trip is taken instead. So a sender that stops giving data when the ten seconds are nearly
over, and goes on when all of it is confirmed, loses about one round trip instead of one round trip and 200 ms.

When the smallest round trip was seen last is not told by the kernel, but its value is, in microseconds, and it hardly ever stays
the same. Ten seconds also begin when PROBE_RTT ends. Time is a parameter; all seconds are of the caller's clock.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["BbrView", "Breather"]


@dataclass(frozen=True, slots=True)
class BbrView:
    """``struct tcp_bbr_info``: bandwidth in bytes per second, smallest round trip in microseconds; ``probing``: in PROBE_RTT."""

    rate: int
    round_trip: int
    probing: bool = False


class Breather:
    """When one connection under BBR shall be given nothing."""

    #: How old the smallest round trip may be, and how late the kernel's clock may tick.
    AGE, TICK = 10.0, 0.012
    #: More idle seconds, besides a round trip, are no gain. No pause if the moment of the last change is not known to ``UNSURE``
    #: seconds.
    MOST, UNSURE = 0.15, 0.06
    #: What might be given just before, in seconds of the link.
    CHUNK = 0.05
    #: BBR reports the highest rate of the last ten round trips. A queue drains up to this factor slower than at that rate.
    SLACK = 1.3
    #: The earliest start of a pause, in seconds before the ten seconds are over.
    EARLIEST = 0.6

    def __init__(self) -> None:
        self._value = -1
        #: The ten seconds began after ``_after`` and not after ``_before``.
        self._after = self._before = 0.0
        self._seen: float | None = None
        #: When the pause began, and when it is given up.
        self._began, self._limit = -1.0, -1.0

    def saw(self, view: BbrView, now: float) -> None:
        """What the kernel says at ``now``; to be called often, so that changes are found soon."""
        if self._seen is None:  # a new connection: it was seen in the greeting
            self._seen = now - self.UNSURE
        if view.probing or view.round_trip != self._value:
            self._value, self._after, self._before = view.round_trip, self._seen, now
        self._seen = now

    def near(self, now: float) -> bool:
        """Whether it is worth asking ``holds``."""
        return now - self._after > self.AGE - self.EARLIEST

    def expired(self, now: float) -> bool:
        """Whether the next round trip after idleness would be taken, if more than a lonely small packet made it."""
        return now - self._before > self.AGE + self.TICK

    def holds(self, now: float, queued: int, view: BbrView) -> bool:
        """Whether nothing shall be given now; ``queued``: bytes that are not confirmed yet."""
        if self._began >= 0:
            if now > self._limit or self._before > self._began or (not queued and self.expired(now)):
                self._began = -1.0
            return self._began >= 0
        trip = view.round_trip / 1e6
        drain = max(queued / max(view.rate, 1), self.CHUNK)
        early = self._after + self.AGE - self.SLACK * drain - trip
        late = self._before + self.AGE + self.TICK
        # The link still carries the queue for `drain` seconds, so only the rest of the pause is idle. A round trip of it counts
        # for nothing: PROBE_RTT costs it as well.
        known = self._before - self._after <= self.UNSURE + 1e-9 and late - early - drain - trip < self.MOST
        if known and early <= now < late:
            self._began, self._limit = now, late + self.MOST
        return self._began >= 0
