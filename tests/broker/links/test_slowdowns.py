"""Links that are slow count as slow for whoever plans, until they are well again, or it is time to try."""

from __future__ import annotations

import pytest

from farflung.broker.links.slowdowns import KEEP, LinkSlowdowns
from farflung.clock import VirtualClock
from farflung.cluster import Topology
from farflung.protocol.straggler_detector import Slowdown

PLANNED = Topology.preset("local4-two-regions")
A, B = PLANNED.names[0], PLANNED.names[-1]


def drift(times: float, kind: str = "fills", link: tuple[str, str] = (A, B)) -> Slowdown:
    return Slowdown(link=link, kind=kind, times=times, before=1.0, text="")


def test_a_slow_link_counts_as_slow_until_it_is_well() -> None:
    clock = VirtualClock()
    drifts, before = LinkSlowdowns(clock), PLANNED.link(A, B)
    assert drifts.apply(PLANNED) is PLANNED
    drifts.put(drift(4.0), PLANNED)
    now = drifts.apply(PLANNED)
    assert now.link(A, B).bandwidth == before.bandwidth / 4
    assert now.link(A, B).latency == before.latency
    assert now.link(B, A) == PLANNED.link(B, A), "each direction is looked at alone"
    assert now.devices == PLANNED.devices
    drifts.put(drift(1.0), PLANNED)
    assert drifts.apply(PLANNED) is PLANNED


@pytest.mark.parametrize("kind", ["small", ""])
def test_what_is_slow_of_it(kind: str) -> None:
    drifts, before = LinkSlowdowns(VirtualClock()), PLANNED.link(A, B)
    drifts.put(drift(4.0, kind), PLANNED)
    now = drifts.apply(PLANNED).link(A, B)
    assert (now.latency / before.latency, before.bandwidth / now.bandwidth) == ((4.0, 1.0) if kind else (1.0, 4.0))


def test_what_the_table_says_counts_where_it_is_worse() -> None:
    drifts = LinkSlowdowns(VirtualClock())
    drifts.put(drift(2.0), PLANNED)
    once = drifts.apply(PLANNED)
    assert drifts.apply(once).link(A, B).bandwidth == once.link(A, B).bandwidth, "it is not halved again"


def test_a_link_that_nobody_uses_is_tried_again() -> None:
    clock = VirtualClock()
    drifts = LinkSlowdowns(clock)
    drifts.put(drift(4.0), PLANNED)
    clock.advance(KEEP - 1)
    assert drifts.apply(PLANNED) is not PLANNED
    clock.advance(1)
    assert drifts.apply(PLANNED) is PLANNED


def test_traffic_says_when_it_has_recovered() -> None:
    drifts, rate = LinkSlowdowns(VirtualClock()), float(PLANNED.link(A, B).bandwidth)
    assert not drifts.recovered(A, B, rate)
    drifts.put(drift(4.0), PLANNED)
    assert not drifts.recovered(A, B, rate / 4), "that is what is known"
    assert drifts.recovered(A, B, rate / 2)
    assert drifts.apply(PLANNED) is PLANNED


def test_what_is_no_link_of_the_plan_says_nothing() -> None:
    drifts = LinkSlowdowns(VirtualClock())
    drifts.put(Slowdown(device=A, times=4.0, before=1.0, text=""), PLANNED)
    drifts.put(drift(4.0, link=(A, "nobody")), PLANNED)
    assert drifts.apply(PLANNED) is PLANNED
    drifts.put(drift(4.0), PLANNED)
    part = PLANNED.select([A, PLANNED.names[1]])
    assert drifts.apply(part) is part
