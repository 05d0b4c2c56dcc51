"""Connections that send no request are closed, and others are served meanwhile."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Awaitable, Callable

import pytest

from farflung.transports.http_patience import patient_protocol

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
