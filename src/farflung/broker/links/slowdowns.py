"""Links that became slow in training, for planning.

The table of links follows training by itself where the system's counts give a rate (``traffic_figures``). Where they do not, or
where a topology was submitted and the table is not used, the straggler detector's findings are stored here. A finding is dropped
when the link is as fast as before, when traffic shows a better rate, or after ``KEEP`` seconds: plans avoid the link, so without
a limit nobody would try it again.
"""

from __future__ import annotations

import threading
from dataclasses import replace

import numpy as np

from farflung.clock import Clock, MonotonicClock
from farflung.cluster import Topology
from farflung.protocol.straggler_detector import Slowdown

__all__ = ["KEEP", "LinkSlowdowns"]

#: Seconds.
KEEP = 600.0
#: A link has recovered if its rate exceeds the stored one by this factor.
_BETTER = 1.5


class LinkSlowdowns:
    """Latency (seconds one way) and bytes per second of the directions that are slow. Any thread may call."""

    def __init__(self, clock: Clock | None = None) -> None:
        self._clock = clock or MonotonicClock()
        self._lock = threading.Lock()
        #: direction -> (alpha, beta, until when)
        self._slow: dict[tuple[str, str], tuple[float, float, float]] = {}

    def put(self, slowdown: Slowdown, planned: Topology) -> None:
        """A link of ``planned`` has changed its speed."""
        if slowdown.link is None or not set(slowdown.link) <= set(planned.names):
            return
        link, until = planned.link(*slowdown.link), self._clock.now() + KEEP
        alpha, beta = float(link.latency), float(link.bandwidth)
        with self._lock:
            if slowdown.times <= 1.0:
                self._slow.pop(slowdown.link, None)
            elif slowdown.kind == "small":
                self._slow[slowdown.link] = (alpha * slowdown.times, beta, until)
            else:
                self._slow[slowdown.link] = (alpha, beta / slowdown.times, until)

    def recovered(self, source: str, target: str, beta: float) -> bool:
        """Traffic shows that a direction carries ``beta``. Return whether that ends a slowdown."""
        with self._lock:
            known = self._slow.get((source, target))
            if known is None or beta < _BETTER * known[1]:
                return False
            del self._slow[source, target]
            return True

    def apply(self, topology: Topology) -> Topology:
        """Return ``topology`` with its present slowdowns."""
        now, names = self._clock.now(), set(topology.names)
        with self._lock:
            self._slow = {pair: known for pair, known in self._slow.items() if known[2] > now}
            slow = {pair: known for pair, known in self._slow.items() if set(pair) <= names}
        if not slow:
            return topology
        alpha, beta = np.array(topology.alpha), np.array(topology.beta)
        for (source, target), (latency, rate, _) in slow.items():
            i, j = topology.index(source), topology.index(target)
            alpha[i, j], beta[i, j] = max(alpha[i, j], latency), min(beta[i, j], rate)
        return replace(topology, alpha=alpha, beta=beta)
