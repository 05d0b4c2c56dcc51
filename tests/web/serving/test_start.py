"""How a dashboard reaches its broker."""

from __future__ import annotations

from pathlib import Path

from farflung.broker.process import Broker
from farflung.security import new_key
from farflung.web.serving.start import open_own_client


def test_the_dashboard_leaves_no_ticket_in_the_list(tmp_path: Path) -> None:
    broker = Broker(tmp_path / "broker", listen="127.0.0.1:0")
    try:
        client = open_own_client(tmp_path / "broker", new_key())
        assert client.status()["members"] == []
        client.close()
        assert broker.tickets.list() == ()
    finally:
        broker.close()
