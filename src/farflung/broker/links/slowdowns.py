"""Links that have become slow in training, as whoever plans next counts with them.

The table of links follows training by itself where the system's counts give a rate alone (``freshness``). Where they do not, or
where a topology was submitted and the table is not asked, what the rhythm of messages says stands here: a rate or a way, until
the link is as fast as before, traffic shows a better rate, or ``KEEP`` seconds have passed: nobody uses a link that plans
avoid, so it is tried again.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from farflung.clock import Clock, MonotonicClock
from farflung.cluster import Topology
from farflung.protocol.rhythm import Drift

__all__ = ["KEEP", "LinkDrifts"]

#: Seconds.
KEEP = 600.0
#: A rate above this many times the one that stands here says that the link has recovered.
_BETTER = 1.5


class LinkDrifts:
    """Seconds one way and bytes per second of the directions that are slow. Thread-safe."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        #: direction -> (alpha, beta, until when)
        self._slow: dict[tuple[str, str], tuple[float, float, float]] = {}

    def put(self, drift: Drift, planned: Topology) -> None:
        """A link of ``planned`` has drifted."""
        if drift.link is None or not set(drift.link) <= set(planned.names):
            return
        link, until = planned.link(*drift.link), self._clock.now() + KEEP
        alpha, beta = float(link.latency), float(link.bandwidth)
        with self._lock:
            if drift.times <= 1.0:
                self._slow.pop(drift.link, None)
            elif drift.kind == "small":
                self._slow[drift.link] = (alpha * drift.times, beta, until)
            else:
                self._slow[drift.link] = (alpha, beta / drift.times, until)

    def better(self, source: str, target: str, beta: float) -> bool:
        """Traffic says that a direction carries ``beta``: whether that ends what stood here."""
        with self._lock:
            held = self._slow.get((source, target))
            if held is None or beta < _BETTER * held[1]:
                return False
            del self._slow[source, target]
            return True

    def apply(self, topology: Topology) -> Topology:
        """``topology`` with what is slow of it now."""
        now, names = self._clock.now(), set(topology.names)
        with self._lock:
            self._slow = {way: held for way, held in self._slow.items() if held[2] > now}
            slow = {way: held for way, held in self._slow.items() if set(way) <= names}
        if not slow:
            return topology
        alpha, beta = np.array(topology.alpha), np.array(topology.beta)
        for (source, target), (latency, rate, _) in slow.items():
            i, j = topology.index(source), topology.index(target)
            alpha[i, j], beta[i, j] = max(alpha[i, j], latency), min(beta[i, j], rate)
        return replace(topology, alpha=alpha, beta=beta)
