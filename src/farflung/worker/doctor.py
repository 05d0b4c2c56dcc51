"""What stands in the way of training on a machine: ports and NAT, clock, congestion control, buffers, disk, memory, versions."""

from __future__ import annotations

import ipaddress
import platform
import shutil
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Literal

import psutil

from farflung.clock import date_text, monotonic, wall_time
from farflung.engines import ComputeDevice, get_engine
from farflung.engines.isolated.lockdown import PROTECTIONS
from farflung.engines.isolation import missing
from farflung.errors import ConnectionLost, EngineCrashed, InputError
from farflung.extras import ENGINE_LIBRARIES, installed_engines, require_upnp
from farflung.foreign_code import first_line, translated
from farflung.nat_types import NatType, is_private
from farflung.security import split_address
from farflung.transports.addresses import congestion_control, is_loopback, reachable_host
from farflung.transports.punching.nat_probe import find_nat
from farflung.units import Bytes, counted
from farflung.version import __version__
from farflung.worker.links.mapped_port import find_port_router

__all__ = ["Finding", "diagnose"]

#: Seconds for a connection.
_TIMEOUT = 5.0
#: Bytes of a socket's buffer: less cannot fill a fast link over a long round trip.
_BUFFER = 4 << 20
#: Bytes that should be free.
_DISK, _MEMORY = 5e9, 2e9
#: Unix seconds: an earlier clock is wrong, and certificates would count as not valid yet.
_YEAR_2025 = 1735689600.0
_ANY = "0.0.0.0"  # noqa: S104 - compared, not bound


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that was looked at. ``level``: ``good``, ``hint`` (slower or less than could be), ``bad`` (it will not work)."""

    what: str
    found: str
    level: Literal["good", "hint", "bad"] = "good"
    remedy: str = ""

    @property
    def mark(self) -> str:
        """How the line begins."""
        return {"good": "ok", "hint": "hint", "bad": "BAD"}[self.level]


def diagnose(
    *,
    port: int = 0,
    broker: str | None = None,
    root: Path = Path("/proc/sys/net"),
    devices: Mapping[str, Callable[[], Sequence[ComputeDevice]]] | None = None,
    nvidia: Path = Path("/proc/driver/nvidia/gpus"),
) -> list[Finding]:
    """Look at this machine; nothing is changed. Connections go to ``broker``, and questions to the router in front of it.

    ``devices`` lists what each engine can compute on (None: the installed engines do); ``nvidia`` is where Linux lists NVIDIA's
    GPUs.

    Raises:
        SecurityError: ``broker`` is not ``host:port``.
    """
    looks: list[Callable[[], Finding]] = [
        _versions,
        *(partial(_accelerators, name, listed, nvidia) for name, listed in (devices or _engine_devices()).items()),
        lambda: _port(port),
        _address,
        lambda: _congestion(root),
        lambda: _buffers(root),
        _clock,
        _memory,
        _isolation,
        _disk,
    ]
    findings = [look() for look in looks]
    if broker is not None:
        findings += [_broker(broker), _nat(broker)]
        if not is_loopback(split_address(broker)[0]) and is_private(ipaddress.IPv4Address(reachable_host(_ANY))):
            findings.append(_port_mapping())
    return findings


def _versions() -> Finding:
    found = f"farflung {__version__}, Python {platform.python_version()}"
    try:
        names = installed_engines()
    except InputError as error:
        return Finding(what="versions", found=found, level="bad", remedy=str(error))
    return Finding(what="versions", found=", ".join([found, *map(_library, names)]))


def _library(engine: str) -> str:
    """The library of ``engine`` and its version (a copy that nobody has installed has none)."""
    module = ENGINE_LIBRARIES[engine].module
    try:
        return f"{module} {version(module)}"
    except PackageNotFoundError:
        return module


def _engine_devices() -> Mapping[str, Callable[[], Sequence[ComputeDevice]]]:
    try:
        names = installed_engines()
    except InputError:
        return {}
    return {name: partial(_devices, name) for name in names}


def _devices(engine: str) -> Sequence[ComputeDevice]:
    return get_engine(engine).devices()


def _accelerators(engine: str, devices: Callable[[], Sequence[ComputeDevice]], nvidia: Path) -> Finding:
    title = ENGINE_LIBRARIES[engine].title
    what = f"accelerators of {title}"
    try:
        with translated(partial(_failed, title)):
            found = devices()
    except InputError as error:
        return Finding(what=what, found=f"not known: {error}", level="bad", remedy=f"pip install 'farflung[{engine}]'")
    except EngineCrashed as error:
        remedy = f"install it anew, or uninstall it: pip install --force-reinstall 'farflung[{engine}]'"
        return Finding(what=what, found=f"not known: {error}", level="bad", remedy=remedy)
    accelerators = [str(device) for device in found if device.kind != "cpu"]
    if accelerators:
        return Finding(what=what, found=", ".join(accelerators))
    there = f"none; its workers use the CPU ({counted(found[-1].cores, 'core')})"
    if nvidia.is_dir() and any(nvidia.iterdir()):
        remedy = f"this machine has an NVIDIA GPU that {title} does not see: install its CUDA build and a matching driver"
        return Finding(what=what, found=there, level="hint", remedy=remedy)
    return Finding(what=what, found=there)


def _failed(title: str, error: Exception) -> Exception:
    """What to report where a library that is installed raises ``error``, as one does whose parts do not fit together."""
    return error if isinstance(error, InputError) else EngineCrashed(f"{title} fails: {first_line(error)}")


def _port(port: int) -> Finding:
    what = f"port {port}" if port else "ports"
    try:
        with socket.create_server(("0.0.0.0", port)) as server:  # noqa: S104 - as a worker listens
            return Finding(what=what, found=f"can listen (at {server.getsockname()[1]})")
    except OSError as error:
        remedy = "stop the program that uses it, or choose another port with --listen"
        return Finding(what=what, found=f"cannot listen: {error.strerror}", level="bad", remedy=remedy)


def _address() -> Finding:
    host = reachable_host(_ANY)
    place = ipaddress.ip_address(host)
    if place.is_loopback:
        return Finding(what="address", found="no network", level="bad", remedy="connect this machine")
    if place.is_private:
        remedy = (
            "machines outside cannot connect to it: it connects to them, by hole punching where NATs allow it, or uses a relay; "
            "--broker HOST:PORT finds the type of NAT"
        )
        return Finding(what="address", found=f"{host}, private: behind NAT, or a local network", level="hint", remedy=remedy)
    return Finding(what="address", found=host)


def _congestion(root: Path) -> Finding:
    told = congestion_control(root / "ipv4" / "tcp_congestion_control")
    allowed = _words(root / "ipv4" / "tcp_allowed_congestion_control")
    if not told:
        return Finding(what="congestion control", found="not known on this system", level="hint", remedy="BBR is best")
    name = told.removeprefix("TCP congestion control: ").split(" ")[0]
    if name == "bbr" or "bbr" in allowed:
        return Finding(what="congestion control", found="bbr" if name == "bbr" else f"{name}; links between workers use bbr")
    remedy = "lossy links are much slower without bbr: modprobe tcp_bbr; sysctl net.ipv4.tcp_congestion_control=bbr"
    return Finding(what="congestion control", found=name, level="hint", remedy=remedy)


def _buffers(root: Path) -> Finding:
    sizes = {name: _words(root / "ipv4" / name) for name in ("tcp_wmem", "tcp_rmem")}
    largest = {name: int(words[-1]) for name, words in sizes.items() if words and words[-1].isdecimal()}
    if not largest:
        return Finding(what="buffers", found="not known on this system", level="hint", remedy="links use more connections")
    found = ", ".join(f"{name} {Bytes(size)}" for name, size in largest.items())
    if min(largest.values()) < _BUFFER:
        remedy = "long fast links need more connections: sysctl net.ipv4.tcp_wmem and tcp_rmem with 4 MB or more"
        return Finding(what="buffers", found=found, level="hint", remedy=remedy)
    return Finding(what="buffers", found=found)


def _words(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="ascii").split()
    except (OSError, UnicodeDecodeError):
        return []


def _clock() -> Finding:
    now = wall_time()
    text = date_text("%Y-%m-%d %H:%M:%S UTC", now, utc=True)
    if now < _YEAR_2025:
        return Finding(what="clock", found=text, level="bad", remedy="certificates are not yet valid: set the clock (NTP)")
    return Finding(what="clock", found=text)


def _memory() -> Finding:
    free = psutil.virtual_memory().available
    level: Literal["good", "hint"] = "good" if free >= _MEMORY else "hint"
    remedy = "" if level == "good" else "stop other programs to train larger parts"
    return Finding(what="memory", found=f"{Bytes(free)} free", level=level, remedy=remedy)


def _isolation() -> Finding:
    """Lock a process up, as ``farflung join`` does for each job."""
    what = "isolation of jobs"
    if not sys.platform.startswith("linux"):
        return Finding(what=what, found=f"none on {sys.platform}", level="hint", remedy="jobs run with all that a worker may do")
    words = [sys.executable, "-m", "farflung.engines.isolated.lockdown"]
    try:
        held = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout.split()  # noqa: S603
    except (OSError, subprocess.SubprocessError) as error:
        return Finding(what=what, found=f"not known: {error}", level="hint", remedy="see docs/isolation.md")
    lacks = missing(held)
    if not lacks:
        return Finding(what=what, found="full: " + ", ".join(PROTECTIONS))
    remedy = "a newer kernel, or user namespaces (sysctl user.max_user_namespaces), protect this machine better from jobs"
    return Finding(what=what, found=f"without protection of {', '.join(lacks)}", level="hint", remedy=remedy)


def _disk() -> Finding:
    free = shutil.disk_usage(Path.cwd()).free
    level: Literal["good", "hint"] = "good" if free >= _DISK else "hint"
    remedy = "" if level == "good" else "checkpoints may not fit: free some space"
    return Finding(what="disk", found=f"{Bytes(free)} free in {Path.cwd()}", level=level, remedy=remedy)


def _broker(address: str) -> Finding:
    try:
        begin = monotonic()
        with socket.create_connection(split_address(address), timeout=_TIMEOUT):
            return Finding(what="broker", found=f"{address} answers after {1e3 * (monotonic() - begin):.1f} ms")
    except OSError as error:
        cause = error.strerror or str(error)
        remedy = "check address, port and firewall on the broker's machine"
        return Finding(what="broker", found=f"cannot reach {address}: {cause}", level="bad", remedy=remedy)


def _nat(broker: str) -> Finding:
    """Let the broker say from which address and port it sees this machine, at two of its ports."""
    try:
        nat = find_nat(split_address(broker))
    except ConnectionLost as error:
        return Finding(what="NAT", found=f"not known: {error}", level="hint", remedy="give --broker the address of a broker")
    if nat is not NatType.SYMMETRIC:
        return Finding(what="NAT", found=nat.plain)
    remedy = "forward a port (farflung join --listen 0.0.0.0:PORT --advertise HOST) for direct connections with all machines"
    return Finding(what="NAT", found=nat.plain, level="hint", remedy=remedy)


def _port_mapping() -> Finding:
    """Ask the router whether it forwards ports; none is forwarded."""
    what = "port mapping"
    try:
        require_upnp("the question whether the router forwards ports")
    except InputError as error:
        return Finding(what=what, found="not known", level="hint", remedy=str(error))
    try:
        router = find_port_router()
        place = f" at {host}" if (host := router.outer_host()) else ""
    except ConnectionLost as error:
        return Finding(what=what, found=f"none: {error}")
    found = f"the router {router.address} offers it{place} ({router.protocol}): farflung join TICKET --map-port"
    return Finding(what=what, found=found)
