"""Who may use the API: holders of the key, or, without a key, programs of this machine but no web page."""

from __future__ import annotations

import hmac
import ipaddress
from typing import Any

from starlette.requests import Request

from farflung.serving.answers import error_body

__all__ = ["Refused", "check_access"]


class Refused(Exception):
    """The request gets an error as its answer."""

    def __init__(self, status: int, body: dict[str, Any]) -> None:
        super().__init__(status)
        self.status, self.body = status, body


def check_access(request: Request, key: str) -> None:
    """Refuse a request without the server's ``key``. If that is empty, refuse one that a web page makes.

    A page of another site names that site as its origin. A site can also let its own name lead to this machine. Then it names
    itself as the host.

    Raises:
        Refused: the request is not allowed.
    """
    if key:
        kind, _, given = request.headers.get("authorization", "").partition(" ")
        if not (kind.lower() == "bearer" and hmac.compare_digest(given.encode(), key.encode())):
            text = "the key is missing or wrong: send the server's key as a bearer token (Authorization: Bearer KEY)"
            raise Refused(401, error_body(text, code="invalid_api_key"))
        return
    host, origin = request.headers.get("host", ""), request.headers.get("origin")
    if origin is not None and origin.lower() != f"http://{host.lower()}":
        text = f"pages of {origin!r:.100} may not use this server, which has no key: start it with --api-key, and send that key"
        raise Refused(403, error_body(text))
    if not _is_plain(host):
        text = f"this server has no key, so it does not answer as {host!r:.100}: use localhost or an IP address, or add --api-key"
        raise Refused(403, error_body(text))


def _is_plain(host: str) -> bool:
    """Whether ``host`` (with or without a port) is an IP address or ``localhost``, which no other site can have as its name."""
    name = host.partition("]")[0].removeprefix("[") if host.startswith("[") else host.partition(":")[0]
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return name.lower() == "localhost"
    return True
