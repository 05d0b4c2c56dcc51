"""What a worker reports of its peers while some of them are slow."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.worker.links import peer_links
from farflung.worker.links.peer_links import PeerLinks


def test_a_slow_peer_does_not_delay_what_is_known_of_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_links, "_MOST_SECONDS", 0.5)
    closed = threading.Event()

    def reach(peer: str, address: str, seconds: float) -> bool:
        return peer == "quick" or closed.wait()

    endpoint: Any = SimpleNamespace(reach=reach, close=closed.set)
    punching: Any = SimpleNamespace(close=lambda: None, join=lambda: None)
    links = PeerLinks(endpoint, punching)
    assert links.reach({"quick": "x:1", "slow": "x:2"}, 0.1) == {"quick": True, "slow": False}
    links.close()
    assert [thread for thread in threading.enumerate() if thread.name == "reach"] == []


def test_the_address_of_a_mapped_port_is_first_and_goes_with_the_links() -> None:
    over: list[str] = []
    endpoint: Any = SimpleNamespace(address="10.0.0.2:7100", close=lambda: over.append("endpoint"))
    punching: Any = SimpleNamespace(close=lambda: None, join=lambda: None)
    mapped: Any = SimpleNamespace(address="9.9.9.9:7200", close=lambda: over.append("mapping"))
    links = PeerLinks(endpoint, punching, mapped)
    assert (links.address, links.inner_address) == ("9.9.9.9:7200", "10.0.0.2:7100")
    links.close()
    assert over == ["mapping", "endpoint"]
    mapped.address = ""
    assert (links.address, links.inner_address) == ("10.0.0.2:7100", "")
    assert (PeerLinks(endpoint, punching).address, PeerLinks(endpoint, punching).inner_address) == ("10.0.0.2:7100", "")
