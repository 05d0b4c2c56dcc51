"""What this machine's network looks like from inside: its own address, addresses as text, congestion control."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from farflung.errors import InputError

__all__ = [
    "congestion_control",
    "global_ipv6",
    "host_and_port",
    "host_id",
    "is_loopback",
    "listen_at",
    "own_host",
    "reachable_host",
]

_MACHINE = (Path("/proc/sys/kernel/random/boot_id"), Path("/etc/machine-id"))
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")
_BACKLOG = 128


def congestion_control(path: Path = _CONGESTION) -> str:
    """Which TCP congestion control is in force, with a hint where it matters (empty where the system does not say).

    At 0.5 % loss (100 Mbit/s, 50 ms) BBR keeps 0.88 of a link and cubic 0.04.
    """
    try:
        name = path.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError):
        return ""
    if name == "bbr":
        return "TCP congestion control: bbr"
    hint = "on lossy long-distance links bbr is much faster: sysctl net.ipv4.tcp_congestion_control=bbr"
    return f"TCP congestion control: {name} ({hint})"


def host_id(paths: Sequence[Path] = _MACHINE) -> str:
    """A name that all processes of this machine share, and that tells nothing else about it (a hash).

    It is made of the first of ``paths`` that exists: the identity of the kernel's last start, which containers of a machine have
    in common and clones of a disk image have not, or the machine's; without either, of the host name.
    """
    source = b""
    for path in paths:
        with suppress(OSError):
            source = source or path.read_bytes()
    source = source or socket.gethostname().encode()
    return hashlib.sha256(b"farflung host\x00" + source).hexdigest()[:32]


def host_and_port(host: str, port: int) -> str:
    """``host:port``, with the brackets that an IPv6 address needs."""
    return f"[{host}]:{port}" if ":" in host and not host.startswith("[") else f"{host}:{port}"


def is_loopback(host: str) -> bool:
    """Whether the IP address ``host`` is reached from this machine alone."""
    try:
        return ipaddress.ip_address(host.strip("[]")).is_loopback
    except ValueError:
        return False


def listen_at(address: str, what: str, example: str) -> socket.socket:
    """Return a socket for clients that listens at ``address`` (``HOST:PORT``; port 0: any free port).

    ``what`` names the address in errors, and ``example`` is an address that they show.

    Raises:
        InputError: it is no address, it is not this machine's, or the port is in use.
    """
    host, _, port = address.rpartition(":")
    if not host or not port.isdecimal() or int(port) > 65535:
        raise InputError(f"{what} {address!r} is not an address: write HOST:PORT, e.g. {example}")
    try:
        family, kind, protocol, _, where = socket.getaddrinfo(host.strip("[]"), int(port), type=socket.SOCK_STREAM)[0]
        with ExitStack() as undo:
            found = undo.enter_context(socket.socket(family, kind, protocol))
            found.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            found.bind(where)
            found.listen(_BACKLOG)
            undo.pop_all()
    except OSError as error:
        raise InputError(f"{what} {address}: {error.strerror or error}; choose another address or port") from None
    return found


def own_host(host: str, port: int) -> str:
    """The address by which this machine reaches ``host``: others that reach ``host`` are likely to reach it, too.

    Raises:
        OSError: nobody answers there.
    """
    with socket.create_connection((host, port), timeout=10) as probe:
        own: str = probe.getsockname()[0]
        return f"[{own}]" if ":" in own else own


def global_ipv6() -> str:
    """Return this machine's IPv6 address that the whole internet can route to (empty: it has none)."""
    try:
        with socket.socket(socket.AF_INET6, socket.SOCK_DGRAM) as probe:
            probe.connect(("2001:db8::1", 9))  # a documentation address: nothing is sent, the kernel only picks a route
            found = str(probe.getsockname()[0]).partition("%")[0]
    except OSError:
        return ""
    return found if ipaddress.ip_address(found).is_global else ""


def reachable_host(host: str) -> str:
    """For an address that is listened at: by what other machines reach this one, as far as it can be told without asking."""
    if host not in ("0.0.0.0", "[::]", ""):  # noqa: S104 - compared, not bound
        return host
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))  # a documentation address: nothing is sent, the kernel only picks a route
            return str(probe.getsockname()[0])
        except OSError:
            return "127.0.0.1"
