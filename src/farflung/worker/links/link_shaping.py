"""Emulated links for one machine: the transport's own shaper, set from the submitted topology."""

from __future__ import annotations

from farflung.messages.submission import Bundle
from farflung.step.run_setup import RunSetup
from farflung.transports.base import Endpoint
from farflung.transports.shaping import LinkShape, ShapedEndpoint
from farflung.units import BytesPerSecond, Seconds

__all__ = ["shape_links"]


def shape_links(endpoint: Endpoint, bundle: Bundle, setup: RunSetup) -> Endpoint:
    """``endpoint`` with every link as slow and as far as in the submitted topology; closing it leaves ``endpoint`` open."""
    if bundle.topology is None:
        return endpoint
    shapes = {}
    for peer in setup.peers:
        link = bundle.topology.link(setup.device, peer)
        shapes[peer] = LinkShape(latency_seconds=Seconds(link.latency), bytes_per_second=BytesPerSecond(link.bandwidth))
    return ShapedEndpoint(endpoint, shapes, owns=False)
