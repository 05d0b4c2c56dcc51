"""Pairs of devices that can't reach each other, and the devices that carry their traffic.

Two devices behind different NATs can both dial out and can't dial each other. A third one that both can dial relays for them: it
passes bytes on as they come, so the pair has the latencies of both hops added and the bandwidth of the slower one. (A relay keeps
64 kB at most, and passes on what it has: nothing waits for a whole message.) Of several relays the one with the most bandwidth is
taken, then the one with the least latency, then the first; the next ones stand by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import replace

import numpy as np

from farflung.cluster.topology import Pair, Topology, pair_of

__all__ = ["STANDING_BY", "Pair", "apart_by_nat", "pair_of", "with_relays"]

#: Relays of a pair at most: the one that is used and those that stand by.
STANDING_BY = 3
#: Bytes per second, and seconds, between two devices that nothing connects: so slow that no planner places neighbours there.
_NO_WAY = (1.0, 3600.0)

#: (end, relay) -> whether the end can dial the relay.
Dials = Callable[[str, str], bool]


def apart_by_nat(topology: Topology) -> frozenset[Pair]:
    """The pairs of devices that are both behind a NAT, and not behind the same."""
    behind = [device for device in topology.devices if device.nat]
    return frozenset(pair_of(a.name, b.name) for number, a in enumerate(behind) for b in behind[number + 1 :] if a.nat != b.nat)


def with_relays(
    topology: Topology,
    apart: Iterable[Pair] | None = None,
    able: Collection[str] | None = None,
    can_dial: Dials = lambda end, relay: True,
    measured: Mapping[Pair, str] | None = None,
) -> Topology:
    """``topology`` whose pairs ``apart`` are linked through relays, with the rate and latency that they then have.

    ``apart``: default as the devices' NATs say (pairs that ``topology`` has relays for already are left alone). ``able``: who may
    relay (default: devices without NAT), where both ends ``can_dial`` it. ``measured``: pairs whose alpha and beta were measured
    through the relay that is named. Pairs that no device can relay for have an empty entry in ``Topology.via``, and hardly any
    bandwidth. Cost: O(pairs * devices). Topologies in blocks (more than 2,048 devices) stay as they are.
    """
    if topology.in_blocks:
        return topology
    pairs = sorted(apart_by_nat(topology) - set(topology.via) if apart is None else set(apart))
    if not pairs:
        return topology
    alpha, beta = np.array(topology.alpha), np.array(topology.beta)
    broken = set(pairs)
    open_ = [d.name for d in topology.devices if (not d.nat if able is None else d.name in able)]
    via = dict(topology.via)
    for pair in pairs:
        a, b = (topology.index(name) for name in pair)
        found = []
        for place, name in enumerate(open_):
            r = topology.index(name)
            if r in (a, b) or any(pair_of(end, name) in broken or not can_dial(end, name) for end in pair):
                continue
            hops = [(topology.beta[i, j], topology.alpha[i, j]) for i, j in ((a, r), (r, b), (b, r), (r, a))]
            found.append((-min(rate for rate, _ in hops), sum(late for _, late in hops), place, name))
        via[pair] = tuple(name for *_, name in sorted(found)[:STANDING_BY])
        if not via[pair]:
            beta[[a, b], [b, a]], alpha[[a, b], [b, a]] = _NO_WAY
        elif (measured or {}).get(pair) != via[pair][0]:
            r = topology.index(via[pair][0])
            for i, j in ((a, b), (b, a)):
                beta[i, j] = min(topology.beta[i, r], topology.beta[r, j])
                alpha[i, j] = topology.alpha[i, r] + topology.alpha[r, j]
    return replace(topology, alpha=alpha, beta=beta, via=via)
