"""Emulated links belong to one run; the worker's endpoint outlives them."""

from __future__ import annotations

from dataclasses import replace
from typing import cast

from farflung.cluster import Topology
from farflung.messages.submission import Bundle
from farflung.step.run_setup import RunSetup
from farflung.transports.memory import MemoryHub
from farflung.wire.frames import Frame
from farflung.worker.links.link_shaping import shape_links
from tests.support.network.quiet import until


class _Bundle:
    topology = replace(Topology.preset("local4-two-regions"), beta=Topology.preset("local4-two-regions").beta * 1e3)


class _Setup:
    device = "east-0"
    peers = ("west-0",)


def test_a_worker_serves_several_shaped_runs() -> None:
    hub, arrived = MemoryHub(), []
    receiver = hub.endpoint("west-0", lambda peer, frame: arrived.append((peer, frame.kind)))
    own = hub.endpoint("east-0", lambda peer, frame: None)
    try:
        own.connect("west-0", receiver.address)
        for run in ("one", "two"):
            shaped = shape_links(own, cast(Bundle, _Bundle), cast(RunSetup, _Setup))
            assert shaped is not own
            shaped.send("west-0", Frame(run))
            until(lambda shaped=shaped: shaped.statistics()["west-0"].frames_sent == 1)  # counted just after the sender is woken
            shaped.close()
        assert arrived == [("east-0", "one"), ("east-0", "two")]
    finally:
        own.close()
        receiver.close()


def test_without_a_topology_nothing_is_slowed() -> None:
    class Plain:
        topology = None

    endpoint = MemoryHub().endpoint("a", lambda peer, frame: None)
    assert shape_links(endpoint, cast(Bundle, Plain), cast(RunSetup, _Setup)) is endpoint
    endpoint.close()
