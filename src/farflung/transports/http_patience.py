"""HTTP connections that do not send a request in time are closed. uvicorn itself waits for a request forever."""

from __future__ import annotations

import asyncio
from typing import Any

__all__ = ["REQUEST_SECONDS", "patient_protocol"]

#: Seconds for a connection to send the head of a request, and for a request to send its body.
REQUEST_SECONDS = 30.0


def patient_protocol(seconds: float = REQUEST_SECONDS) -> type[asyncio.Protocol]:
    """Return uvicorn's protocol with a deadline: a connection without a request for ``seconds`` is closed.

    Silent connections, and heads that come byte by byte, would otherwise use up the descriptors of the server.
    """
    from uvicorn.protocols.http.auto import AutoHTTPProtocol  # here: only the extras with a server have it

    base: Any = AutoHTTPProtocol

    class PatientProtocol(base):  # type: ignore[misc]  # uvicorn chooses the base when it is loaded
        def connection_made(self, transport: asyncio.Transport) -> None:
            super().connection_made(transport)
            self.loop.call_later(seconds, self._check, None)

        def _check(self, before: Any) -> None:
            """Close the connection if no request has come since the last check, which saw the request ``before``."""
            if self.transport.is_closing() or self.transport.get_protocol() is not self:
                return  # the second: it is a web socket now
            if self.cycle is before and (self.cycle is None or self.cycle.response_complete):
                self.transport.close()
            else:
                self.loop.call_later(seconds, self._check, self.cycle)

    return PatientProtocol
