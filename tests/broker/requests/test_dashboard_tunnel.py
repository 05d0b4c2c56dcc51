"""The places of connections with the dashboard: the clients of one ticket leave some to others."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from farflung.broker.requests.dashboard_tunnel import DASHBOARD_FILE, DashboardTunnel
from farflung.errors import InputError
from farflung.security import Caller


class CallOf:
    """A call of a client, which stays open."""

    def __init__(self, name: str) -> None:
        self.caller = Caller(name=name, role="client")

    def on_end(self, act: Any) -> None:
        del act


@contextmanager
def dashboard(home: Path) -> Iterator[None]:
    """A dashboard that sends one byte over each connection, and keeps it open."""
    taken: list[socket.socket] = []

    def accept() -> None:
        with suppress(OSError):  # the end
            while True:
                taken.append(listening.accept()[0])
                taken[-1].sendall(b"x")

    with socket.create_server(("127.0.0.1", 0)) as listening:
        (home / DASHBOARD_FILE).write_text(json.dumps({"url": f"http://127.0.0.1:{listening.getsockname()[1]}"}))
        thread = threading.Thread(target=accept)
        thread.start()
        try:
            yield
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            thread.join()
            for one in taken:
                one.close()


def test_the_clients_of_one_ticket_take_half_of_the_places(tmp_path: Path) -> None:
    tunnel = DashboardTunnel(tmp_path, lambda name: name.partition("-")[0])

    def opened(name: str) -> Any:
        """A connection of ``name``, over which a byte has come."""
        call: Any = CallOf(name)
        answers: Any = tunnel.serve(call, iter(()))
        assert next(answers).sections == (b"x",)
        return answers

    with dashboard(tmp_path), closing(tunnel), ExitStack() as ending:
        greedy = [ending.enter_context(closing(opened(f"greedy-{number}"))) for number in range(32)]
        text = "the broker carries 32 connections of ticket greedy with its dashboard already: close some pages"
        with pytest.raises(InputError, match=text):
            opened("greedy-32")
        for number in range(32):
            ending.enter_context(closing(opened(f"{number}-a")))
        with pytest.raises(InputError, match="the broker carries 64 connections with its dashboard already: close some pages"):
            opened("late-a")
        greedy[0].close()
        ending.enter_context(closing(opened("late-a")))
