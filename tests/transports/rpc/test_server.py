"""The door of a broker: what those may do of whom nothing is known."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import Any

import grpc
import pytest

from farflung.errors import FarflungError, WireError
from farflung.transports import Insecure
from farflung.transports.rpc import RpcClient
from farflung.transports.rpc import server as rpc_server
from farflung.transports.rpc.calls import Call, FrameStream
from farflung.transports.rpc.channel import PEER_KEY, CallThreads
from farflung.transports.rpc.server import RPC_PREFIX, RpcHost, RpcServer
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


def _silent_calls(address: str, count: int, silent: threading.Event) -> tuple[grpc.Channel, list[Any]]:
    """``count`` calls over one connection that never send their message."""

    def nothing() -> Iterator[bytes]:
        silent.wait(PATIENCE)
        yield from ()

    channel = grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)])
    call = channel.stream_unary(f"{RPC_PREFIX}join", None, None)
    return channel, [call.future(nothing()) for _ in range(count)]


@pytest.mark.parametrize("connections", [1, 80])
def test_calls_that_never_send_their_message_keep_nobody_out(door: Door, connections: int) -> None:
    """Whether they come over one connection or over many: a caller with a message is served at once."""
    silent = threading.Event()
    before = door.threads()
    opened = [_silent_calls(door.address, 80 // connections, silent) for _ in range(connections)]
    try:
        with closing(RpcClient(door.address, Insecure(name="w"))) as client:
            for _ in range(3):
                assert client.call("join", Frame("join")).kind == "joined"
        assert door.threads() - before <= 64
    finally:
        silent.set()
        for channel, _ in opened:
            channel.close()


def test_messages_at_the_door_are_small(door: Door) -> None:
    with closing(RpcClient(door.address, Insecure(name="w"))) as client:
        assert client.call("join", Frame("join", {"request": b"x" * 8000})).kind == "joined"
        with pytest.raises(WireError, match="refused a message"):
            client.call("join", Frame("join", {"request": b"x" * 100_000}))


def test_a_server_without_threads_lives(door: Door, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """The system gives no thread for one call: that call fails, later ones have an answer."""
    start, failed = threading.Thread.start, threading.Event()

    def none_left(thread: threading.Thread) -> None:
        if thread.name == "call-control" and not failed.is_set():
            failed.set()
            raise RuntimeError("can't start new thread")
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", none_left)
    with closing(RpcClient(door.address, Insecure(name="w"))) as client:
        with pytest.raises(FarflungError, match=r"failed inside: .*can't start new thread"):
            client.call("join", Frame("join"))
        assert failed.is_set()
        assert client.call("join", Frame("join")).kind == "joined"
    assert door.threads() <= 1
    caplog.clear()  # gRPC's thread ends with its last server, to which the logged defect refers


def test_what_begins_when_a_call_has_ended_still_has_a_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    """A server that is closed waits for it before it joins the threads."""
    server, order = RpcServer(Insecure(name="broker")), list[str]()
    serving, joining = threading.Event(), threading.Event()
    tasks: list[asyncio.Task[None]] = []

    async def end(call: Call) -> None:
        await call.on_thread(lambda: joining.wait(0.5))
        await call.on_thread(lambda: order.append("end"))

    async def serve(call: Call, stream: FrameStream) -> None:
        serving.set()
        try:
            await stream.receive()
        finally:
            tasks.append(asyncio.create_task(end(call)))

    shutdown = CallThreads.shutdown

    def join(threads: CallThreads) -> None:
        order.append("threads")
        joining.set()
        shutdown(threads)

    monkeypatch.setattr(CallThreads, "shutdown", join)
    server.coroutine("session", serve)
    address = server.listen("127.0.0.1:0")
    server.start()
    with closing(RpcClient(address, Insecure(name="w"))) as client:
        client.session("session")
        assert serving.wait(PATIENCE)
        server.close(0.1)
    assert order == ["end", "threads"]


def test_a_small_frame_that_repeats_is_decoded_once() -> None:
    server, got = RpcServer(Insecure(name="broker")), list[Frame]()

    async def serve(call: Call, stream: FrameStream) -> None:
        while (frame := await stream.receive()) is not None:
            got.append(frame)
            await stream.send(frame)

    server.coroutine("session", serve)
    address = server.listen("127.0.0.1:0")
    server.start()
    beat, large = Frame("beat", {"disk": 1.0}), Frame("text", {"text": "x" * 1000})
    said = [beat, beat, Frame("beat", {"disk": 2.0}), beat, large, large]
    with closing(RpcClient(address, Insecure(name="w"))) as client, closing(client.session("session")) as session:
        for frame in said:
            session.send(frame)
        answers = [answer for _, answer in zip(said, session, strict=False)]
        session.end()
    server.close(0.1)
    assert got == answers == said
    assert got[0] is got[1]
    assert got[4] is not got[5], "large frames are not remembered"


def test_messages_wait_in_the_network_until_their_caller_is_admitted_and_has_a_place(monkeypatch: pytest.MonkeyPatch) -> None:
    """gRPC would take all of them into memory: each call of a connection, with the largest message."""
    monkeypatch.setattr(rpc_server, "_SMALL_REQUEST", 1000)
    entered, go_on = threading.Semaphore(0), threading.Event()

    def slow(call: Call, frame: Frame) -> Frame:
        entered.release()
        go_on.wait(PATIENCE)
        return Frame("done", {"bytes": len(frame.header["text"])})

    host = RpcHost(groups=lambda caller: {f"member {caller.name}": 128})
    server = RpcServer(Insecure(name="broker"), host=host)
    server.unary("slow", slow)
    address = server.listen("127.0.0.1:0")
    server.start()
    with closing(RpcClient(address, Insecure(name="w"))) as client, ThreadPoolExecutor(12) as callers:
        try:
            large = [callers.submit(client.call, "slow", Frame("slow", {"text": "x" * 5000})) for _ in range(8)]
            for _ in range(4):
                assert entered.acquire(timeout=PATIENCE)
            with closing(RpcClient(address, Insecure(name="v"))) as other:
                answer = callers.submit(other.call, "slow", Frame("slow", {"text": "x" * 2000}))
                assert entered.acquire(timeout=PATIENCE), "another member has places of its own"
                assert not entered.acquire(timeout=0.2), "the fifth message of the first one waits"
                go_on.set()
                assert answer.result(PATIENCE).header["bytes"] == 2000
            assert {one.result(PATIENCE).header["bytes"] for one in large} == {5000}
        finally:
            go_on.set()
    server.close(0.1)


def test_a_request_that_does_not_come_ends_the_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rpc_server, "_REQUEST_SECONDS", 0.2)
    server, silent = RpcServer(Insecure(name="broker")), threading.Event()
    server.unary("slow", lambda call, frame: frame)
    address = server.listen("127.0.0.1:0")
    server.start()
    try:
        with grpc.insecure_channel(address, [("grpc.use_local_subchannel_pool", 1)]) as channel:

            def nothing() -> Iterator[bytes]:
                silent.wait(PATIENCE)
                yield from ()

            call = channel.stream_unary(f"{RPC_PREFIX}slow", None, None)
            with pytest.raises(grpc.RpcError, match=r"the request did not come within 0.2 s: try again over a faster connection"):
                call(nothing(), metadata=((PEER_KEY, "w"),), timeout=PATIENCE)
    finally:
        silent.set()
        server.close(0.1)
