"""A router that forwards a port to this machine: UPnP Internet Gateway Device, by the library ``async_upnp_client``.

Source: UPnP Forum, WANIPConnection:1 (2001) and WANPPPConnection:1 (2000), actions AddPortMapping and DeletePortMapping.

Whoever is in the local network can answer a search. So only answers of this machine's default gateway count, and only that
address gets requests. Sizes, requests and time are limited. What a router says is checked before it is used.
"""

from __future__ import annotations

import asyncio
import ipaddress
import secrets
import socket
import struct
from collections.abc import Coroutine, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, TypeVar
from urllib.parse import urlsplit

from aiohttp import ClientSession, ClientTimeout
from async_upnp_client.client import UpnpRequester, UpnpService
from async_upnp_client.client_factory import UpnpFactory
from async_upnp_client.const import HttpRequest, HttpResponse
from async_upnp_client.exceptions import UpnpActionError, UpnpCommunicationError
from async_upnp_client.search import SsdpSearchListener
from async_upnp_client.utils import CaseInsensitiveDict

from farflung.errors import ConnectionLost
from farflung.foreign_code import first_line, translated
from farflung.foreign_text import printable
from farflung.nat_types import is_private

__all__ = ["Router", "default_gateway", "find_router"]

T = TypeVar("T")

_SEARCHED = "urn:schemas-upnp-org:device:InternetGatewayDevice:1"
_SERVICES = (":service:WANIPConnection", ":service:WANPPPConnection")
_MULTICAST = ("239.255.255.250", 1900)
_DESCRIPTION = "farflung"
#: Seconds: for all answers to a search (which is sent twice), for one request, and for one job with several requests.
_SEARCH, _REQUEST, _JOB = 3.0, 3.0, 8.0
#: Bytes of one answer. Descriptions of real routers have some 20 kB.
_MOST_BYTES = 256 << 10
#: Requests of one job. Most are for a description, which has one for each service.
_MOST_REQUESTS = 40
#: Outer ports that are tried when one is taken.
_TRIES, _FIRST_PORT, _LAST_PORT = 5, 20000, 60000
_ROUTES = Path("/proc/thread-self/net/route")
_GATEWAY_FLAG = 0x2
#: Codes of errors: the outer port belongs to another machine; only mappings without an end are supported.
_CONFLICT, _PERMANENT_ONLY = 718, 725


def default_gateway(routes: Path = _ROUTES) -> str:
    """Return the IPv4 address of the router that this machine's default route leads to (empty: there is none)."""
    found: list[tuple[int, str]] = []
    with suppress(OSError, ValueError, UnicodeDecodeError):
        for line in routes.read_text(encoding="ascii").splitlines()[1:]:
            _, destination, gateway, flags, _, _, metric, mask, *_ = line.split()
            if int(destination, 16) == int(mask, 16) == 0 and int(flags, 16) & _GATEWAY_FLAG:
                found.append((int(metric), socket.inet_ntoa(struct.pack("=I", int(gateway, 16)))))
    return min(found)[1] if found else ""


class _OneHost(UpnpRequester):
    """Requests to one address, with limits: nothing that it answers can lead to another one."""

    def __init__(self, host: str) -> None:
        self._host = host
        self.begin()

    def begin(self) -> None:
        """Allow the requests of another job."""
        self._left = _MOST_REQUESTS

    async def async_http_request(self, http_request: HttpRequest) -> HttpResponse:
        if urlsplit(http_request.url).hostname != self._host:
            raise UpnpCommunicationError(message=f"it leads to another address than {self._host}")
        self._left -= 1
        if self._left < 0:
            raise UpnpCommunicationError(message=f"it asks for more than {_MOST_REQUESTS} requests")
        async with (
            ClientSession(timeout=ClientTimeout(total=_REQUEST), auto_decompress=False, trust_env=False) as session,
            session.request(
                http_request.method,
                http_request.url,
                headers={"Accept-Encoding": "identity", **http_request.headers},
                data=http_request.body,
                allow_redirects=False,
            ) as response,
        ):
            body = bytearray()
            async for piece in response.content.iter_chunked(1 << 14):
                body += piece
                if len(body) > _MOST_BYTES:
                    raise UpnpCommunicationError(message=f"its answer has more than {_MOST_BYTES} bytes")
            return HttpResponse(response.status, response.headers, body.decode("utf-8", "replace"))


class Router:
    """A router that maps ports. Each method waits for the router, for a limited time. One thread at a time may call."""

    protocol: ClassVar[str] = "UPnP"

    def __init__(self, address: str, service: UpnpService, requests: _OneHost) -> None:
        """``requests``: what ``service`` sends its requests with."""
        self.address, self._service, self._requests = address, service, requests
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            probe.connect((address, 9))  # nothing is sent, the kernel only picks a route
            #: This machine's address in the router's network.
            self.inner_host = str(probe.getsockname()[0])

    def outer_host(self) -> str:
        """Return the router's address in the internet.

        Raises:
            ConnectionLost: it does not answer, or has no public IPv4 address.
        """
        answer = self._call("GetExternalIPAddress")
        told = str(answer.get("NewExternalIPAddress") or "")
        try:
            found = ipaddress.IPv4Address(told)
        except ValueError:
            raise ConnectionLost(f"the router {self.address} has no IPv4 address, it says {printable(told)[:40]!r}") from None
        if is_private(found):
            raise ConnectionLost(
                f"the router {self.address} has no public address, but {found}: another NAT is in front of it, so that a "
                "mapping of its port is of no use"
            )
        return str(found)

    def map_port(self, inner: int, lease: int, outer: int = 0) -> int:
        """Forward a port of the router to the port ``inner`` of this machine, for ``lease`` seconds. Return the router's port.

        ``outer``: the port that is to be renewed (0: choose one, ``inner`` first).

        Raises:
            ConnectionLost: the router refuses, or does not answer.
        """
        wanted = [outer] if outer else [inner, *(_random_port() for _ in range(_TRIES - 1))]
        for port in wanted[:-1]:
            with suppress(_Taken):
                self._map(port, inner, lease)
                return port
        self._map(wanted[-1], inner, lease)
        return wanted[-1]

    def unmap_port(self, outer: int) -> None:
        """Forward the router's port ``outer`` no more.

        Raises:
            ConnectionLost: the router refuses, or does not answer.
        """
        self._call("DeletePortMapping", NewRemoteHost="", NewExternalPort=outer, NewProtocol="TCP")

    def _map(self, outer: int, inner: int, lease: int) -> None:
        mapping: dict[str, Any] = {
            "NewRemoteHost": "",
            "NewExternalPort": outer,
            "NewProtocol": "TCP",
            "NewInternalPort": inner,
            "NewInternalClient": self.inner_host,
            "NewEnabled": True,
            "NewPortMappingDescription": _DESCRIPTION,
        }
        try:
            self._call("AddPortMapping", **mapping, NewLeaseDuration=lease)
        except _PermanentOnly:
            self._call("AddPortMapping", **mapping, NewLeaseDuration=0)

    def _call(self, action: str, **values: Any) -> Mapping[str, Any]:
        self._requests.begin()  # a mapping is renewed as long as the worker is there
        return _finish(self.address, self._service.async_call_action(action, **values))


class _Taken(ConnectionLost):
    """The outer port is another machine's."""


class _PermanentOnly(ConnectionLost):
    """The router has no mappings that end."""


def find_router(gateway: str | None = None, target: tuple[str, int] = _MULTICAST) -> Router:
    """Return the router behind which this machine is.

    ``gateway``: its address (None: that of the default route). ``target``: where the search is sent.

    Raises:
        ConnectionLost: there is none that maps ports.
    """
    gateway = default_gateway() if gateway is None else gateway
    if not gateway:
        raise ConnectionLost("this machine has no default route with a router (IPv4)")
    requests = _OneHost(gateway)
    return Router(gateway, _finish(gateway, _find_service(requests, gateway, target)), requests)


async def _find_service(requests: _OneHost, gateway: str, target: tuple[str, int]) -> UpnpService:
    device = await UpnpFactory(requests, non_strict=True).async_create_device(await _search(gateway, target))
    for service in device.all_services:
        if f":{service.service_type}".rpartition(":")[0].endswith(_SERVICES):
            return service
    raise ConnectionLost(f"the router {gateway} answers UPnP, but maps no ports")


async def _search(gateway: str, target: tuple[str, int]) -> str:
    """Return the URL at which the router ``gateway`` describes itself."""
    loop = asyncio.get_running_loop()
    place: asyncio.Future[str] = loop.create_future()

    def answered(headers: CaseInsensitiveDict) -> None:
        location = str(headers.get_lower("location") or "")
        if headers.get_lower("_host") == gateway and _hostname(location) == gateway and not place.done():
            place.set_result(location)

    listener = SsdpSearchListener(callback=answered, loop=loop, timeout=1, search_target=_SEARCHED, target=target)
    await listener.async_start()
    try:
        for wait in (_SEARCH / 3, 2 * _SEARCH / 3):  # a datagram may be lost
            listener.async_search()
            if (await asyncio.wait((place,), timeout=wait))[0]:
                return place.result()
    finally:
        listener.async_stop()
    raise ConnectionLost(f"the router {gateway} offers no UPnP (no answer in {_SEARCH:g} s), or its settings forbid it")


def _finish(address: str, work: Coroutine[Any, Any, T]) -> T:
    """Return the result of ``work`` on an event loop of its own.

    Raises:
        ConnectionLost: the router at ``address`` refuses, gives a wrong answer, or none in time.
    """

    def describe(error: Exception) -> Exception:
        if isinstance(error, ConnectionLost):
            return error
        if isinstance(error, TimeoutError):
            return ConnectionLost(f"the router {address} does not answer UPnP in time")
        kind = ConnectionLost
        cause = printable(first_line(error))
        if isinstance(error, UpnpActionError):
            kind = {_CONFLICT: _Taken, _PERMANENT_ONLY: _PermanentOnly}.get(error.error_code or 0, ConnectionLost)
            cause = f"error {error.error_code} ({printable(str(error.error_desc))[:100]})"
        return kind(f"the router {address} maps no port: {cause}")

    async def limited() -> T:
        return await asyncio.wait_for(work, _JOB)

    with translated(describe, chained=False):
        return asyncio.run(limited())


def _hostname(url: str) -> str:
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def _random_port() -> int:
    return _FIRST_PORT + secrets.randbelow(_LAST_PORT - _FIRST_PORT)
