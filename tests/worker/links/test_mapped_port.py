"""A mapping is renewed while a worker is there, and removed at its end."""

from __future__ import annotations

import threading
import time

import pytest

from farflung.errors import ConnectionLost
from farflung.worker.links.mapped_port import MappedPort, mapped_port
from farflung.worker.options import WorkerOptions


class Recorded:
    """A router; ``refuses``: each call of these methods fails."""

    address = "10.0.0.1"
    protocol = "UPnP"
    outer = "9.9.9.9"

    def __init__(self, *refuses: str) -> None:
        self.refuses, self.calls = set(refuses), list[tuple[object, ...]]()
        self.renewed = threading.Event()

    def outer_host(self) -> str:
        self.calls.append(("host",))
        return self.outer

    def map_port(self, inner: int, lease: int, outer: int = 0) -> int:
        self.calls.append(("map", inner, lease, outer))
        if outer:
            self.renewed.set()
        if ("renew" if outer else "map") in self.refuses:
            raise ConnectionLost("the router is busy")
        return 7200

    def unmap_port(self, outer: int) -> None:
        self.calls.append(("unmap", outer))
        if "unmap" in self.refuses:
            raise ConnectionLost("the router is gone")


def test_a_mapping_has_an_address_and_ends_with_the_worker() -> None:
    router, said = Recorded(), list[str]()
    mapped = MappedPort(7100, lambda: router, said.append)
    assert mapped.address == "9.9.9.9:7200"
    mapped.close()
    assert router.calls == [("host",), ("map", 7100, 1200, 0), ("unmap", 7200)]
    assert said == ["the router 10.0.0.1 forwards 9.9.9.9:7200 to port 7100 of this machine (UPnP) until this worker leaves"]


def test_a_mapping_is_renewed_at_the_same_port() -> None:
    router = Recorded()
    mapped = MappedPort(7100, lambda: router, lambda line: None, lease=1)
    assert router.renewed.wait(10.0)
    mapped.close()
    assert ("map", 7100, 1, 7200) in router.calls


def test_a_changed_public_address_is_reported_once_and_used_from_then_on() -> None:
    router, said = Recorded(), list[str]()
    mapped = MappedPort(7100, lambda: router, said.append, lease=1)
    router.outer = "8.8.8.8"
    end = time.monotonic() + 10.0
    while router.calls.count(("host",)) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    mapped.close()
    assert mapped.address == "8.8.8.8:7200"
    _, line = said
    assert line == (
        "warning: the router's public address has changed: peers reach this worker at 8.8.8.8:7200, no longer at 9.9.9.9:7200. "
        "The broker learns it when this worker joins again: restart farflung join"
    )


def test_a_renewal_that_fails_is_reported_once_and_tried_again() -> None:
    router, said = Recorded("renew", "unmap"), list[str]()
    mapped = MappedPort(7100, lambda: router, said.append, lease=1)
    end = time.monotonic() + 10.0
    while sum(call[0] == "map" for call in router.calls) < 4 and time.monotonic() < end:
        time.sleep(0.05)
    mapped.close()
    assert sum(call[0] == "map" for call in router.calls) >= 4
    assert [line for line in said if "was not renewed" in line] == [
        "warning: the mapping of 9.9.9.9:7200 was not renewed and may end: the router is busy"
    ]
    assert said[-1] == (
        "the router did not remove the mapping of 9.9.9.9:7200: it ends in 1 s, or never if the router has no mappings that end "
        "(the router is gone)"
    )


@pytest.mark.parametrize("refuses", ["find", "map"])
def test_without_a_mapping_the_worker_joins_and_the_reason_is_logged(refuses: str) -> None:
    said = list[str]()

    def find() -> Recorded:
        if refuses == "find":
            raise ConnectionLost("the router is busy")
        return Recorded(refuses)

    mapped = MappedPort(7100, find, said.append)
    assert mapped.address == ""
    mapped.close()
    (line,) = said
    assert line.startswith("warning: --map-port: the router is busy. This worker joins without a mapping; forward a port by hand")
    assert [one for one in threading.enumerate() if one.name == "port-mapping"] == []


def test_nobody_asks_a_router_without_the_owners_wish() -> None:
    assert mapped_port(WorkerOptions(), "10.0.0.2:7100", lambda line: None) is None
    assert mapped_port(WorkerOptions(map_port=True, listen=""), "", lambda line: None) is None
