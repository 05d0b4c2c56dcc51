"""What this machine's network looks like from inside: its own address, addresses as text, congestion control."""

from __future__ import annotations

import hashlib
import ipaddress
import socket
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

__all__ = ["congestion_control", "global_ipv6", "host_and_port", "host_id", "own_host", "reachable_host"]

_MACHINE = (Path("/proc/sys/kernel/random/boot_id"), Path("/etc/machine-id"))
_CONGESTION = Path("/proc/sys/net/ipv4/tcp_congestion_control")


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
