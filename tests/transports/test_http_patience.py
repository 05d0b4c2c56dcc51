"""Connections that send no request, or read no answer, are closed, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from farflung.transports.http_patience import patient_protocol
from tests.support.network.quiet import until

uvicorn = pytest.importorskip("uvicorn")
REQUEST = b"GET / HTTP/1.1\r\nHost: x\r\n\r\n"


async def _answer(
    scope: dict[str, str], receive: Callable[[], Awaitable[object]], send: Callable[[object], Awaitable[None]]
) -> None:
    assert scope["type"] == "http"
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"2")]})
    await send({"type": "http.response.body", "body": b"ok"})


async def _ended(given: bytes, port: int) -> bytes:
    """What the server answers until it closes a connection over which ``given`` came."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(given)
    try:
        return await asyncio.wait_for(reader.read(), 30)
    finally:
        writer.close()


@pytest.mark.parametrize("given", [b"", b"GET / HT", REQUEST[:-2], REQUEST + b"GET / HTTP/1.1\r\nHo"], ids=len)
def test_a_connection_without_a_whole_request_is_closed(given: bytes) -> None:
    async def run() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            _answer,
            http=patient_protocol(0.3),
            log_level="error",
            lifespan="off",
            timeout_graceful_shutdown=1,
            timeout_keep_alive=99,
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        port = listening.getsockname()[1]
        silent, served = await asyncio.gather(_ended(given, port), _ended(REQUEST, port))
        assert silent.endswith(b"ok") == given.startswith(REQUEST)
        assert served.endswith(b"ok")
        server.should_exit = True
        await serving

    asyncio.run(run())


async def _large(
    scope: dict[str, str], receive: Callable[[], Awaitable[object]], send: Callable[[object], Awaitable[None]]
) -> None:
    assert scope["type"] == "http"
    size = 8 << 20 if scope["path"] == "/large" else 4000
    await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", str(size).encode())]})
    await send({"type": "http.response.body", "body": bytes(size)})


@pytest.mark.parametrize(("path", "requests"), [("/large", 1), ("/small", 3000)])
def test_a_caller_that_reads_no_answer_is_cut_off(path: str, requests: int) -> None:
    async def run() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            _large, http=patient_protocol(0.3), log_level="critical", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        with socket.socket() as caller:
            caller.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            caller.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(caller, listening.getsockname())
            given = f"GET {path} HTTP/1.1\r\nHost: x\r\n\r\n".encode() * requests
            sending = asyncio.create_task(loop.sock_sendall(caller, given))
            connections = server.server_state.connections
            await asyncio.to_thread(until, lambda: connections)
            await asyncio.to_thread(until, lambda: not connections)
            sending.cancel()
        server.should_exit = True
        await serving

    asyncio.run(run())


FIELD = b"A: " + b"x" * 60 + b"\r\n"


@pytest.mark.parametrize(
    ("given", "again"),
    [
        (b"GET /", b"x" * 64),
        (b"GET / HTTP/1.1\r\nA: ", b"x" * 64),
        (b"GET / HTTP/1.1\r\n", FIELD),
        (b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nx\r\n0\r\n", FIELD),
    ],
    ids=["path", "field", "fields", "trailer"],
)
def test_a_head_without_an_end_is_cut_off(given: bytes, again: bytes) -> None:
    async def run() -> None:
        listening = socket.create_server(("127.0.0.1", 0))
        config = uvicorn.Config(
            _read, http=patient_protocol(60), log_level="critical", lifespan="off", timeout_graceful_shutdown=1
        )
        server = uvicorn.Server(config)
        serving = asyncio.create_task(server.serve(sockets=[listening]))
        port = listening.getsockname()[1]
        with pytest.raises(ConnectionError):
            await _sent(given, again, port)
        writing = b"POST / HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (4 << 20, bytes(4 << 20))
        assert (await _ended(writing + REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), port)).count(b"ok") == 2
        server.should_exit = True
        await serving

    asyncio.run(run())


async def _sent(given: bytes, again: bytes, port: int) -> None:
    """Send ``given``, and 4 MiB of ``again``, to a server that answers nothing."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        writer.write(given)
        for _ in range(1024):
            writer.write(again * 64)
            await writer.drain()
        await reader.readexactly(1)
    finally:
        writer.close()


async def _read(scope: dict[str, str], receive: Callable[[], Awaitable[Any]], send: Callable[[object], Awaitable[None]]) -> None:
    while (await receive()).get("more_body"):
        pass
    await _answer(scope, receive, send)
