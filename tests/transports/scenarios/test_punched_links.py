"""Links over connections of hole punching, at whose other end anybody may be."""

from __future__ import annotations

import socket
from collections.abc import Callable
from contextlib import closing

from farflung.security import Credentials, split_address
from farflung.transports.base import PUNCHED, EndpointEvents
from farflung.transports.config import TransportConfig
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.units import Seconds
from farflung.wire.frames import Frame
from tests.support.network.quiet import PATIENCE, until

Member = Callable[..., Credentials]
BRIEF = TransportConfig(redial=Seconds(0.01))


def test_somebody_else_at_the_end_of_a_hole_ends_no_link(member: Member) -> None:
    got: list[str] = []

    def endpoint(name: str, events: EndpointEvents) -> TcpEndpoint:
        return TcpEndpoint(member(name), lambda peer, frame: got.append(peer), listen="127.0.0.1:0", config=BRIEF, events=events)

    with closing(endpoint("b", EndpointEvents())) as b, closing(endpoint("c", EndpointEvents())) as c:
        places = [c.address]

        def punch(peer: str) -> socket.socket:
            return socket.create_connection(split_address(places.pop() if places else b.address), PATIENCE)

        with closing(endpoint("a", EndpointEvents(punch=punch))) as a:
            a.connect("b", PUNCHED)
            b.connect("a", "")
            a.post("b", Frame("x")).result(PATIENCE)
            until(lambda: got == ["a"])
            assert places == []
