"""What a connection of the control plane costs, and how much a caller may have under way."""

from __future__ import annotations

import time
from contextlib import closing

import pytest

from farflung.transports import Insecure, TransportConfig
from farflung.transports.rpc import RpcClient
from farflung.transports.rpc.calls import Call, FrameStream
from farflung.transports.rpc.channel import RPC_LIMITS, channel_options, max_message
from farflung.transports.rpc.server import RpcServer
from farflung.transports.tcp.relay import Way
from farflung.wire.frames import Frame


@pytest.mark.parametrize(
    ("message", "window"), [(1 << 10, (1 << 16) - 1), (1 << 20, 1 << 20), (max_message(RPC_LIMITS), 8 << 20)]
)
def test_a_window_holds_a_message_and_no_more_than_its_limit(message: int, window: int) -> None:
    assert dict(channel_options(TransportConfig(), message))["grpc.http2.lookahead_bytes"] == window


def test_a_small_message_is_one_packet(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else the heartbeats of a thousand members would cost twice as much."""
    count, move = 0, Way.move

    def counted(way: Way) -> None:
        nonlocal count
        count += 1
        move(way)

    async def answer(call: Call, stream: FrameStream) -> None:
        while (frame := await stream.receive()) is not None:
            await stream.send(frame)

    server = RpcServer(Insecure(name="broker"))
    server.coroutine("session", answer)
    monkeypatch.setattr(Way, "move", counted)
    address = server.listen("127.0.0.1:0")
    server.start()
    frame = Frame("beat")
    with closing(RpcClient(address, Insecure(name="a"))) as client, closing(client.session("session")) as session:
        answers = iter(session)
        for _ in range(5):  # the connection begins
            session.send(frame)
            next(answers)
        before = count
        for _ in range(8):
            time.sleep(0.25)  # gRPC would not measure more often
            session.send(frame)
            next(answers)
        moved = count - before
        session.end()
    server.close(0.1)
    assert moved <= 20, "16 messages"
