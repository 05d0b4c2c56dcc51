"""A router that forwards a port to this machine: Port Control Protocol (RFC 6887), opcodes ANNOUNCE and MAP over IPv4.

A request and its answer are one datagram each. Only datagrams of the default gateway's port count, and an answer must contain the
random number of its request. What a router says is checked before it is used.
"""

from __future__ import annotations

import ipaddress
import secrets
import socket
import struct
from contextlib import suppress
from typing import ClassVar

from farflung.errors import ConnectionLost
from farflung.nat_types import is_private

__all__ = ["PCP_PORT", "PcpRouter"]

PCP_PORT = 5351
_VERSION, _ANNOUNCE, _MAP, _ANSWER = 2, 0, 1, 0x80
_TCP = 6
#: Version, opcode, lifetime, this machine's address; then what MAP adds: random number, protocol, inner and outer port, address.
_REQUEST, _MAPPING = struct.Struct("!BBxxI16s"), struct.Struct("!12sBxxxHH16s")
#: Version, opcode, result, lifetime in an answer, which MAP continues in the same way.
_HEAD = struct.Struct("!BBxBI16x")
_MOST_BYTES = 1100
#: Seconds after which a request is sent again, and after the last one nothing is expected any more.
_WAITS = (0.25, 0.5, 1.0)
_ANY_ADDRESS = b"\0" * 10 + b"\xff\xff" + b"\0" * 4
_REFUSALS = {
    2: "it does not allow this machine to map ports",
    8: "it has no room for another mapping",
    10: "this machine has too many mappings",
    11: "the port is taken",
    12: "another NAT stands between it and this machine",
}


class PcpRouter:
    """The router at ``address``. Each method waits for it, 2 s at most. One thread at a time may call."""

    protocol: ClassVar[str] = "PCP"

    def __init__(self, address: str, port: int = PCP_PORT) -> None:
        """Ask whether it speaks PCP.

        Raises:
            ConnectionLost: it does not.
        """
        self.address, self._port = address, port
        #: It identifies the mapping of this worker when that is renewed.
        self._nonce = secrets.token_bytes(12)
        self._inner, self._outer_host = 0, ""
        with suppress(_Refused):  # some routers know no ANNOUNCE, but PCP
            self._ask(_ANNOUNCE, 0)

    def outer_host(self) -> str:
        """Return the address of the last mapping (empty: there was none)."""
        return self._outer_host

    def map_port(self, inner: int, lease: int, outer: int = 0) -> int:
        """Forward a port of the router to the port ``inner`` of this machine, for ``lease`` seconds. Return the router's port.

        ``outer``: the port that is to be renewed (0: choose one, ``inner`` if it is free).

        Raises:
            ConnectionLost: the router refuses, or does not answer.
        """
        granted, found, host = self._map(inner, lease, outer or inner)
        refusal = ""
        if granted < lease:
            refusal = f"it keeps a mapping for {granted} s only, and {lease} s are needed"
        elif outer not in (0, found):
            refusal = f"its port {outer} is taken now"
        elif host is None or is_private(host):
            refusal = f"it has no public IPv4 address ({host}), so that a mapping of its port is of no use"
        if refusal:
            with suppress(ConnectionLost):
                self._map(inner, 0, 0)
            raise ConnectionLost(f"the router {self.address} maps no port: {refusal}")
        self._inner, self._outer_host = inner, str(host)
        return found

    def unmap_port(self, outer: int) -> None:
        """Forward the router's port ``outer``, which ``map_port`` has returned, no more.

        Raises:
            ConnectionLost: the router refuses, or does not answer.
        """
        self._map(self._inner, 0, outer)

    def _map(self, inner: int, lease: int, outer: int) -> tuple[int, int, ipaddress.IPv4Address | None]:
        """Return for how many seconds the router forwards, its port and its address."""
        wanted = _MAPPING.pack(self._nonce, _TCP, inner, outer if lease else 0, _ANY_ADDRESS)
        granted, body = self._ask(_MAP, lease, wanted)
        _, _, _, found, host = _MAPPING.unpack_from(body)
        return granted, found, ipaddress.IPv6Address(host).ipv4_mapped

    def _ask(self, opcode: int, lease: int, wanted: bytes = b"") -> tuple[int, bytes]:
        """Send a request until it is answered. Return the lifetime and the rest of the answer.

        Raises:
            ConnectionLost: the router refuses, or does not answer.
        """
        what = "maps no port by PCP" if opcode == _MAP else "offers no PCP"
        try:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
                sock.connect((self.address, self._port))  # the kernel drops what others send
                own = _ANY_ADDRESS[:12] + socket.inet_aton(sock.getsockname()[0])
                for wait in _WAITS:
                    sock.send(_REQUEST.pack(_VERSION, opcode, lease, own) + wanted)
                    sock.settimeout(wait)
                    with suppress(TimeoutError):
                        return self._answer(sock, opcode, wanted)
        except OSError as error:
            raise ConnectionLost(f"the router {self.address} {what}: {error.strerror or error}") from None
        raise ConnectionLost(f"the router {self.address} {what} (no answer in {sum(_WAITS):g} s)")

    def _answer(self, sock: socket.socket, opcode: int, wanted: bytes) -> tuple[int, bytes]:
        """Return the answer to a request; skip what is none.

        Raises:
            ConnectionLost: the router refuses.
            TimeoutError: there is none in time.
        """
        while True:
            found = sock.recv(_MOST_BYTES)
            if len(found) < _HEAD.size + len(wanted):
                continue  # a router that speaks NAT-PMP only answers with 8 bytes
            version, kind, result, granted = _HEAD.unpack_from(found)
            body = found[_HEAD.size :]
            # the random number, the protocol and the inner port
            if (version, kind) != (_VERSION, _ANSWER | opcode) or body[:18] != wanted[:18]:
                continue
            if result:
                reason = _REFUSALS.get(result, f"error {result}")
                raise _Refused(f"the router {self.address} maps no port: {reason}")
            return granted, body


class _Refused(ConnectionLost):
    """The router speaks PCP, and refuses."""
