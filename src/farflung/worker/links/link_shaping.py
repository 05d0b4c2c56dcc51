"""Emulated links for one machine: the transport's own shaper, set from the submitted topology."""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import Future

from farflung.messages.submission import Bundle
from farflung.step.run_setup import RunSetup
from farflung.transports.base import Endpoint, LinkStatistics, Urgency
from farflung.transports.shaping import LinkShape, ShapedEndpoint
from farflung.units import BytesPerSecond, Seconds
from farflung.wire.frames import Frame

__all__ = ["shape_links"]


class _Lent:
    """A worker's endpoint for the length of one run: closing it leaves the worker's own open, for the next run."""

    def __init__(self, endpoint: Endpoint) -> None:
        self._endpoint = endpoint

    @property
    def address(self) -> str:
        return self._endpoint.address

    def connect(self, peer: str, address: str) -> None:
        self._endpoint.connect(peer, address)

    def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Future[None]:
        return self._endpoint.post(peer, frame, urgency)

    def send(self, peer: str, frame: Frame) -> None:
        self._endpoint.send(peer, frame)

    def statistics(self) -> Mapping[str, LinkStatistics]:
        return self._endpoint.statistics()

    def close(self) -> None:
        """Nothing: the endpoint belongs to the worker."""


def shape_links(endpoint: Endpoint, bundle: Bundle, setup: RunSetup) -> Endpoint:
    """``endpoint`` with every link as slow and as far as in the submitted topology; closing it leaves ``endpoint`` open."""
    if bundle.topology is None:
        return endpoint
    shapes = {}
    for peer in setup.peers:
        link = bundle.topology.link(setup.device, peer)
        shapes[peer] = LinkShape(latency_seconds=Seconds(link.latency), bytes_per_second=BytesPerSecond(link.bandwidth))
    return ShapedEndpoint(_Lent(endpoint), shapes)
