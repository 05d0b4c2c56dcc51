"""What each request passes before any page sees it: cookie, origin and headers. Pure ASGI around the dashboard's app.

| request | passes if |
| --- | --- |
| the sign-in page | always |
| signing in and out (POST) | its origin is the dashboard's |
| websocket | its origin is the dashboard's, and its cookie is valid |
| anything else that is not GET or HEAD | the same |
| GET, HEAD | its cookie is valid; a page without one redirects to the sign-in page |
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import quote

from farflung.errors import FarflungError, SecurityError
from farflung.transports.http_patience import REQUEST_SECONDS
from farflung.web.serving.rights import Rights, SignedIn
from farflung.web.serving.sign_in import COOKIE_SECONDS, Session
from farflung.web.serving.sign_in_page import PAGE_POLICY, sign_in_page

__all__ = ["POLICY", "Gate"]

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[MutableMapping[str, Any]]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]

SIGN_IN, SIGN_OUT = "/sign-in", "/sign-out"
_MOST_BYTES = 16 << 10
#: Pages load from the dashboard only. Vue compiles its templates in the browser, which needs ``unsafe-eval``.
POLICY = (
    "default-src 'self'; script-src 'self' 'unsafe-inline' 'unsafe-eval'; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data:; font-src 'self' data:; connect-src 'self'; object-src 'none'; base-uri 'none'; form-action 'self'; "
    "frame-ancestors 'none'"
)
_HEADERS = {
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "no-referrer",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
}


class Gate:
    """An ASGI app around ``inner``. Pages find who asks in ``request.state.signed_in``."""

    def __init__(self, inner: App, rights: Rights, *, secure: bool) -> None:
        """``secure``: the dashboard is served with TLS."""
        self._inner, self._rights, self._secure = inner, rights, secure

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer, or pass the request on."""
        if scope["type"] not in ("http", "websocket"):
            await self._inner(scope, receive, send)
            return
        headers = {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in scope["headers"]}
        same_origin = headers.get("origin") == f"{'https' if self._secure else 'http'}://{headers.get('host', '')}"
        name = _cookie_name(headers.get("host", ""))
        cookie = self._session(headers.get("cookie", ""), name)
        signed_in = None if cookie is None else self._rights.of(cookie)
        if scope["type"] == "websocket":
            if signed_in is None or not same_origin:
                await _refuse_websocket(receive, send)
                return
        elif await self._answered(scope, receive, send, (cookie, signed_in, same_origin, name)):
            return
        scope.setdefault("state", {})["signed_in"] = signed_in
        await self._inner(scope, receive, self._with_headers(scope, send))

    async def _answered(
        self, scope: Scope, receive: Receive, send: Send, who: tuple[Session | None, SignedIn | None, bool, str]
    ) -> bool:
        """Answer a request that no page may see, or that needs none. Returns whether it is answered."""
        (cookie, signed_in, same_origin, name), path = who, scope["path"]
        reads = scope["method"] in ("GET", "HEAD")
        if not reads and not same_origin:
            await _respond(send, 403, b"the request comes from another site")
        elif path == SIGN_IN and reads:
            page = sign_in_page().encode()
            await _respond(send, 200, page, {"content-type": "text/html; charset=utf-8", "content-security-policy": PAGE_POLICY})
        elif path == SIGN_IN:
            await self._sign_in(receive, send, name)
        elif path == SIGN_OUT and not reads:
            if cookie is not None:
                self._rights.end(cookie)
            await _respond(send, 204, b"", {"set-cookie": self._cookie(name, "", 0)})
        elif signed_in is None and not path.startswith("/_nicegui") and reads:
            place = quote(path + (f"?{scope['query_string'].decode('latin-1')}" if scope["query_string"] else ""), safe="")
            await _respond(send, 303, b"", {"location": f"{SIGN_IN}?to={place}"})
        elif signed_in is None:
            await _respond(send, 401, b"sign in first")
        else:
            return False
        return True

    async def _sign_in(self, receive: Receive, send: Send, name: str) -> None:
        try:
            async with asyncio.timeout(REQUEST_SECONDS):
                given = await _body(receive)
            body = json.loads(given)
            session = await self._rights.sign_in(token=str(body.get("token", "")), ticket=str(body.get("ticket", "")))
        except (ValueError, AttributeError, RecursionError):
            await _respond(send, 400, b"not a sign-in")
        except TimeoutError:
            await _respond(send, 408, b"the sign-in did not come in time", {"connection": "close"})
        except FarflungError as error:
            await _respond(send, 403, str(error).encode())
        else:
            cookie = self._cookie(name, self._rights.sign_ins.cookie(session), int(COOKIE_SECONDS))
            await _respond(send, 204, b"", {"set-cookie": cookie})

    def _cookie(self, name: str, value: str, seconds: int) -> str:
        secure = "; Secure" if self._secure else ""
        return f"{name}={value}; Path=/; Max-Age={seconds}; HttpOnly; SameSite=Strict{secure}"

    def _session(self, header: str, name: str) -> Session | None:
        try:
            found = SimpleCookie(header).get(name)
        except CookieError:
            return None
        return None if found is None else self._rights.sign_ins.session(found.value)

    def _with_headers(self, scope: Scope, send: Send) -> Send:
        page = not scope["path"].startswith("/_nicegui")

        async def sending(message: MutableMapping[str, Any]) -> None:
            if message["type"] == "http.response.start":
                own = _HEADERS | {"content-security-policy": POLICY} | ({"cache-control": "no-store"} if page else {})
                kept = [(name, value) for name, value in message.get("headers", []) if name.decode().lower() not in own]
                message["headers"] = [*kept, *_encoded(own.items())]
            await send(message)

        return sending


def _cookie_name(host: str) -> str:
    """The name of the cookie, with the port that the browser sees: browsers share cookies of ports, and a tunnel has its own."""
    port = host.rpartition(":")[2]
    return f"farflung-{port if port.isascii() and port.isdecimal() else 'default'}"


async def _body(receive: Receive) -> bytes:
    data, more = b"", True
    while more:
        message = await receive()
        data += message.get("body", b"")
        more = message.get("more_body", False) and message["type"] == "http.request"
        if len(data) > _MOST_BYTES:
            raise SecurityError(f"a sign-in has at most {_MOST_BYTES} bytes")
    return data


async def _respond(send: Send, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    full = {"content-type": "text/plain; charset=utf-8", "cache-control": "no-store", **_HEADERS, **(headers or {})}
    if status != 204:
        full["content-length"] = str(len(body))
    await send({"type": "http.response.start", "status": status, "headers": _encoded(full.items())})
    await send({"type": "http.response.body", "body": body})


def _encoded(headers: Iterable[tuple[str, str]]) -> list[tuple[bytes, bytes]]:
    return [(name.encode(), value.encode()) for name, value in headers]


async def _refuse_websocket(receive: Receive, send: Send) -> None:
    await receive()
    await send({"type": "websocket.close", "code": 4403})
