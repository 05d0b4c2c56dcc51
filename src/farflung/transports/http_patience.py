"""HTTP connections that send no request, or take no answer, in time are closed. uvicorn itself waits forever."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["REQUEST_SECONDS", "patient_protocol"]

#: Seconds for a connection to send the head of a request, for a request to send its body, and to take some of an answer.
REQUEST_SECONDS = 30.0
#: Bytes of a request's head, and of what follows its body. Each costs some ten times as much memory.
_MOST_HEAD = 64 << 10


class _BoundedHead:
    """Before uvicorn's protocol: cuts a connection whose head, or whose fields after a body, do not end."""

    cycle: Any
    transport: Any
    #: Bytes of the present head, and of its fields.
    _head = _fields = 0

    def data_received(self, data: bytes) -> None:
        before = self.cycle
        in_body = before is not None and before.more_body
        super().data_received(data)  # type: ignore[misc]
        self._head = 0 if in_body or self.cycle is not before else self._head + len(data)
        if self._head > _MOST_HEAD:
            self.transport.abort()

    def on_message_begin(self) -> None:
        self._fields = 0
        super().on_message_begin()  # type: ignore[misc]

    def on_header(self, name: bytes, value: bytes) -> None:
        self._fields += len(name) + len(value)
        if self._fields > _MOST_HEAD:
            self.transport.abort()
        else:
            super().on_header(name, value)  # type: ignore[misc]


def patient_protocol(seconds: float = REQUEST_SECONDS) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a deadline: a connection without a request for ``seconds`` is closed.

    Silent connections, and heads that come byte by byte, would otherwise use up the descriptors of the server. So would callers
    that do not read their answers: a connection that takes nothing of an answer for ``seconds`` is cut. So is one that sends a
    head without an end, which would take all memory.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol  # here: only the extras with a server have it

    base: Any = AutoHTTPProtocol

    class PatientProtocol(_BoundedHead, base):  # type: ignore[misc]  # uvicorn chooses the base when it is loaded
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.loop.call_later(seconds, self._check, None, 0)

        def _check(self, before: Any, unsent: int) -> None:
            """Close the connection if no request has come since the last check, which saw the request ``before``.

            Cut it if as many bytes wait to be sent as at the last check, which saw ``unsent``.
            """
            transport = self.transport
            waiting = transport.get_write_buffer_size()
            if transport.get_protocol() is not self or (transport.is_closing() and not waiting):
                return  # the first: it is a web socket now
            if waiting and waiting == unsent:
                transport.abort()  # ``close`` would wait until all is sent
                return
            if self.cycle is before and (self.cycle is None or self.cycle.response_complete):
                transport.close()
            self.loop.call_later(seconds, self._check, self.cycle, waiting)

    return PatientProtocol
