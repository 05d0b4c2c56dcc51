"""The door of a broker: what those may do of whom nothing is known."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import closing

import grpc
import pytest

from farflung.errors import ConnectionLost, WireError
from farflung.transports import Insecure
from farflung.transports.rpc import RpcClient, RpcServer
from farflung.transports.rpc.server import RPC_PREFIX
from farflung.wire.frames import Frame

PATIENCE = 60.0


class Door:
    def __init__(self) -> None:
        self.server = RpcServer(Insecure(name="broker"), door=True)
        self.server.unary("join", lambda call, frame: Frame("joined"), anonymous=True)
        self.address = self.server.listen("127.0.0.1:0", anonymous=True)
        self.server.start()

    def close(self) -> None:
        self.server.close(0.1)

    def threads(self) -> int:
        return len(self.server._threads._running)


@pytest.fixture
def door() -> Iterator[Door]:
    with closing(Door()) as made:
        yield made


def test_callers_who_say_nothing_take_few_threads(door: Door) -> None:
    """More callers than the door takes at a time: those over are turned away, and when they have gone it serves again."""
    silent = threading.Event()

    def nothing() -> Iterator[bytes]:
        silent.wait(PATIENCE)
        yield from ()

    before = door.threads()
    with closing(grpc.insecure_channel(door.address)) as channel:
        call = channel.stream_unary(f"{RPC_PREFIX}join", None, None)
        calls = [call.future(nothing()) for _ in range(100)]
        refused = 0
        while refused < 100 - 64:
            refused = sum(one.done() and one.code() is grpc.StatusCode.RESOURCE_EXHAUSTED for one in calls)
            assert door.threads() - before <= 64
        with (
            closing(RpcClient(door.address, Insecure(name="w"))) as client,
            pytest.raises(ConnectionLost, match="has too many calls at once"),
        ):
            client.call("join", Frame("join"))
        for one in calls:
            one.cancel()
        silent.set()
    with closing(RpcClient(door.address, Insecure(name="w"))) as client:
        while True:
            try:
                assert client.call("join", Frame("join")).kind == "joined"
                break
            except ConnectionLost:
                continue  # the last ones are still on their way out


def test_messages_at_the_door_are_small(door: Door) -> None:
    with closing(RpcClient(door.address, Insecure(name="w"))) as client:
        assert client.call("join", Frame("join", {"request": b"x" * 8000})).kind == "joined"
        with pytest.raises(WireError, match="refused a message"):
            client.call("join", Frame("join", {"request": b"x" * 100_000}))


def test_a_server_without_threads_lives(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The system gives no thread for one call: that call has no answer, later ones have."""
    start, failed = threading.Thread.start, threading.Event()

    def none_left(thread: threading.Thread) -> None:
        if thread.name == "call-control" and not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", none_left)
    with closing(RpcClient(door.address, Insecure(name="w"))) as client:
        with pytest.raises(ConnectionLost, match="no answer in time"):
            client.call("join", Frame("join"), timeout=2.0)
        assert failed.is_set()
        assert client.call("join", Frame("join")).kind == "joined"
    assert door.threads() <= 1
