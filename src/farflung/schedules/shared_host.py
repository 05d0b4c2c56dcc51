"""Processor sharing: devices whose workers run on the same cores compute slower when several of them compute at once.

Model: a host has a capacity, in devices that reach their full speed at the same time. While k of its devices compute, each runs
at ``min(1, capacity / k)`` of the speed that it reaches alone. The capacity is measured (``broker.measuring``): cores divided by
threads where cores are all that is shared, less where memory bandwidth is. Source: the egalitarian processor-sharing queue
(Kleinrock, Queueing Systems, volume 2, section 4.4). Cost: O(k) for each start and each end.

Sending and receiving take CPU time on other threads, and so do the commands and answers of the process that computes. A device
with a host to itself does this beside its computing. On shared cores that time is missing elsewhere. So it counts as work of the
actions at both ends of a transfer (``transfer_work``), and of every action (``ACTION_SECONDS``).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

__all__ = ["ACTION_SECONDS", "SharedHost", "shared_ends", "transfer_work"]

#: CPU seconds that both ends of a transfer take together, per frame and per byte: encoding, TLS, checksums, thread switches.
#: Measured on two idle cores as the CPU time of the sender and receiver threads (docs/benchmarks.md, "shared-cores").
_FRAME_SECONDS, _BYTE_SECONDS = 2.0e-3, 2.9e-9
#: CPU seconds of an action beside its operators and transfers. Measured as the CPU time of three workers that train a tiny model
#: with 2, 6 and 12 micro-batches (decision 30).
ACTION_SECONDS = 1.2e-3

#: Actions whose remaining work differs by less than this share end together.
_ROUNDING = 1e-12


class SharedHost:
    """What the devices of one host compute now. Times are in seconds; work is in seconds of a device that computes alone.

    ``version`` changes with every start and end: an event that was scheduled for ``next_end`` is valid only while it is the same.
    """

    __slots__ = ("_left", "_now", "capacity", "version")

    def __init__(self, capacity: float = 1.0) -> None:
        self.capacity, self.version = capacity, 0
        self._left: dict[int, float] = {}
        self._now = 0.0

    def start(self, now: float, device: int, work: float) -> None:
        """``device`` begins an action that takes ``work`` seconds alone."""
        self._advance(now)
        self._left[device] = work
        self.version += 1

    def next_end(self) -> float:
        """When the next action ends if no other one begins (infinite: none is under way)."""
        return self._now + min(self._left.values()) / self._rate if self._left else math.inf

    def end(self, now: float) -> list[int]:
        """The devices whose actions end at ``now``, which is what ``next_end`` gave."""
        least = min(self._left.values()) * (1.0 + _ROUNDING)
        done = [device for device, left in self._left.items() if left <= least]
        self._advance(now)
        for device in done:
            del self._left[device]
        self.version += 1
        return done

    @property
    def _rate(self) -> float:
        return min(1.0, self.capacity / max(1, len(self._left)))

    def _advance(self, now: float) -> None:
        if self._left and now > self._now:
            spent = (now - self._now) * self._rate
            self._left = {device: max(0.0, left - spent) for device, left in self._left.items()}
        self._now = now


def transfer_work(nbytes: float) -> float:
    """Return the CPU seconds that each end of a transfer of ``nbytes`` bytes takes."""
    return 0.5 * (_FRAME_SECONDS + _BYTE_SECONDS * nbytes)


def shared_ends(capacity: float, starts: Sequence[float], work: Sequence[float]) -> list[float]:
    """When actions end that begin at ``starts`` and take ``work`` seconds alone, each on its own device of one host."""
    host, ends = SharedHost(capacity), list(starts)
    waiting = sorted(range(len(starts)), key=lambda index: starts[index])
    while waiting or host.next_end() < math.inf:
        now = host.next_end()
        if waiting and starts[waiting[0]] <= now:
            first = waiting.pop(0)
            host.start(starts[first], first, work[first])
            continue
        for index in host.end(now):
            ends[index] = now
    return ends
