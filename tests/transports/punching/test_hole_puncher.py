"""Every pair of NAT types, with the kernel's own translation between them: each connects as the table in docs/nat.md says."""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass

import pytest

from farflung.emulation.nat_network import BROKER, NatNetwork, missing_programs
from farflung.errors import ConnectionLost
from farflung.nat_types import NatType, Way, way_between
from farflung.security import split_address
from farflung.transports.punching.hole_puncher import punch
from farflung.transports.punching.nat_probe import find_nat
from farflung.transports.punching.observation import Observation, observe, open_port

pytestmark = [
    pytest.mark.netns,
    pytest.mark.skipif(os.geteuid() != 0 or bool(missing_programs()), reason="needs root, iproute2 and nftables"),
]
PORTS = (7000, 7001)
TYPES = [nat for nat in NatType if nat is not NatType.NONE]
#: A device of the first side and one of the second side for each type.
DEVICES = {f"{side} {nat.value}": nat for side in "ab" for nat in TYPES}
#: Seconds in which a packet comes through, if it does at all; and for holes.
ALONE, TOGETHER = 1.5, 4.0


@dataclass
class Lab:
    network: NatNetwork

    def at(self, device: str, act: Callable[[], object]) -> object:
        with self.network.inside(device):
            return act()

    def port(self, device: str) -> Observation:
        """A fresh port of ``device``, as the broker sees it."""
        with self.network.inside(device):
            return observe((BROKER, PORTS[0]), seconds=ALONE)


@pytest.fixture(scope="module")
def lab() -> Iterator[Lab]:
    with NatNetwork(DEVICES | {"none": NatType.NONE}) as network, network.observers(*PORTS):
        yield Lab(network)


def dials(lab: Lab, source: str, target: str) -> bool:
    """Whether ``source`` alone reaches the observed port of ``target``, which only listens."""
    with ExitStack() as stack:
        seen = lab.port(target)
        stack.enter_context(seen.sock)
        with lab.network.inside(target):
            family, port = seen.sock.family, seen.sock.getsockname()[1]
            server = stack.enter_context(open_port(socket.AddressFamily(family), port))
            server.listen()
        with lab.network.inside(source), suppress(OSError), socket.create_connection(split_address(seen.seen), ALONE):
            return True
        return False


def punches(lab: Lab, one: str, other: str) -> bool:
    """Whether both ends get a connection when both dial; bytes go both ways over it."""
    places = {name: lab.port(name) for name in (one, other)}
    ready = threading.Barrier(2)

    def end(name: str, peer: str) -> bool:
        with lab.network.inside(name), places[name].sock as own:
            ready.wait()
            with closing(punch(own.getsockname()[1], places[peer].seen, TOGETHER)) as found:
                for sock in found:
                    with sock:
                        sock.settimeout(TOGETHER)
                        sock.sendall(name.encode().ljust(30))
                        return sock.recv(30, socket.MSG_WAITALL).decode().strip() == peer
            return False

    with ThreadPoolExecutor(2) as pool:
        ends: list[Future[bool]] = [pool.submit(end, one, other), pool.submit(end, other, one)]
        return all(one.result() for one in ends)


def way(lab: Lab, one: str, other: str) -> Way:
    if dials(lab, one, other) or dials(lab, other, one):
        return Way.DIRECT
    return Way.PUNCHED if punches(lab, one, other) else Way.RELAY


@pytest.mark.timeout(200)
def test_each_pair_of_nat_types_connects_as_the_theory_says(lab: Lab) -> None:
    pairs = [(one, other) for one in TYPES for other in TYPES]
    with ThreadPoolExecutor(5) as pool:
        found = list(pool.map(lambda pair: way(lab, f"a {pair[0].value}", f"b {pair[1].value}"), pairs))
    assert dict(zip(pairs, found, strict=True)) == {pair: way_between(*pair) for pair in pairs}
    assert found.count(Way.RELAY) == 5, "only symmetric NATs need a relay"


@pytest.mark.parametrize(
    ("device", "nat"),
    [
        ("none", NatType.NONE),
        ("a full cone", NatType.RESTRICTED),  # a broker with one address can't tell them apart, and both connect alike
        ("a restricted", NatType.RESTRICTED),
        ("a port-restricted", NatType.PORT_RESTRICTED),
        ("a symmetric", NatType.SYMMETRIC),
        ("a carrier-grade", NatType.PORT_RESTRICTED),  # the home router hides the carrier's
    ],
)
def test_a_machine_finds_its_nat_type(lab: Lab, device: str, nat: NatType) -> None:
    with lab.network.inside(device):
        assert find_nat((BROKER, PORTS[0])) is nat


def test_a_machine_whose_broker_does_not_answer_finds_no_nat_type(lab: Lab) -> None:
    with lab.network.inside("none"), pytest.raises(ConnectionLost, match="does not say from which address it sees this machine"):
        find_nat((BROKER, 7002))
