"""What the kernel does for an emulation: network namespaces, TUN devices, priorities. Linux only; no other program is needed.

Namespaces have no name: they live as long as somebody holds a descriptor of them or a process runs in them. So nothing is left
behind when all of these are gone, whatever ended them.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import os
import socket
import struct
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from farflung.errors import EmulationError

__all__ = [
    "DEVICE",
    "enter_namespace",
    "inside",
    "make_namespace",
    "namespace_id",
    "open_tun",
    "processes_in",
    "raise_priority",
    "require_root",
]

#: The network device of each node.
DEVICE = "wan0"

_CLONE_NEWNET = 0x40000000
_TUNSETIFF, _TUNSETOFFLOAD = 0x400454CA, 0x400454D0
_IFF_TUN, _IFF_NO_PI, _IFF_VNET_HDR = 0x1, 0x1000, 0x4000
_OFFLOAD_TCP = 1 | 2  # checksum, TSO over IPv4
_OFFLOAD_UDP = 0x20 | 0x40  # USO, since Linux 6.2
_SIOCADDRT, _SIOCSIFADDR, _SIOCSIFNETMASK = 0x890B, 0x8916, 0x891C
_SIOCGIFFLAGS, _SIOCSIFFLAGS, _SIOCSIFMTU, _SIOCSIFTXQLEN = 0x8913, 0x8914, 0x8922, 0x8943
_IFF_UP, _RTF_UP = 1, 1
_PR_SET_TIMERSLACK = 29
_TUN_PATH = Path("/dev/net/tun")


def require_root() -> None:
    """Check what can be checked before anything is made.

    Raises:
        EmulationError: this is not Linux, not root, or there is no TUN device.
    """
    if sys.platform != "linux":
        raise EmulationError(f"emulation needs Linux (network namespaces), this is {sys.platform}; run it in a Linux machine")
    if os.geteuid() != 0:
        raise EmulationError(
            f"emulation needs root (network namespaces and TUN devices), this is user {os.geteuid()}; "
            'run it with sudo env "PATH=$PATH" farflung ..., or use `farflung submit --emulate`, which needs no rights'
        )
    if not _TUN_PATH.exists():
        raise EmulationError(f"emulation needs {_TUN_PATH}; load the module (modprobe tun) or give the container the device")


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _check(result: int, what: str) -> None:
    if result:
        code = ctypes.get_errno()
        if code == errno.EPERM:
            raise EmulationError(f"{what} is not permitted: emulation needs CAP_SYS_ADMIN and CAP_NET_ADMIN; run it as root")
        raise EmulationError(f"{what} failed: {os.strerror(code)}; this kernel may lack network namespaces")


def _own_namespace() -> int:
    return os.open("/proc/thread-self/ns/net", os.O_RDONLY | os.O_CLOEXEC)


def enter_namespace(descriptor: int) -> None:
    """Move this thread (only) into a network namespace.

    Raises:
        EmulationError: the kernel refuses.
    """
    _check(_libc().setns(descriptor, _CLONE_NEWNET), "entering a network namespace")


@contextmanager
def inside(descriptor: int) -> Iterator[None]:
    """This thread is in the network namespace for the time of the block; sockets and processes made there belong to it."""
    before = _own_namespace()
    try:
        enter_namespace(descriptor)
        try:
            yield
        finally:
            enter_namespace(before)
    finally:
        os.close(before)


def make_namespace() -> int:
    """A new network namespace with its loopback up; its descriptor. This thread stays where it is."""
    before = _own_namespace()
    try:
        _check(_libc().unshare(_CLONE_NEWNET), "making a network namespace")
        try:
            made = _own_namespace()
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                _set_up(control, "lo")
        finally:
            enter_namespace(before)
    finally:
        os.close(before)
    return made


def namespace_id(descriptor: int) -> int:
    """The number by which ``/proc/PID/ns/net`` names the namespace."""
    return os.fstat(descriptor).st_ino


def open_tun(namespace: int, address: str, mtu: int) -> int:
    """A TUN device with offloads in a namespace, with its address and a default route; a non-blocking descriptor.

    Raises:
        EmulationError: the kernel refuses.
    """
    with inside(namespace):
        try:
            tun = os.open(_TUN_PATH, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
            fcntl.ioctl(tun, _TUNSETIFF, struct.pack("16sH22x", DEVICE.encode(), _IFF_TUN | _IFF_NO_PI | _IFF_VNET_HDR))
            try:
                fcntl.ioctl(tun, _TUNSETOFFLOAD, _OFFLOAD_TCP | _OFFLOAD_UDP)
            except OSError:
                fcntl.ioctl(tun, _TUNSETOFFLOAD, _OFFLOAD_TCP)
            silence = Path(f"/proc/sys/net/ipv6/conf/{DEVICE}/disable_ipv6")
            if silence.exists():
                silence.write_text("1", encoding="ascii")
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
                _configure(control, address, mtu)
        except OSError as error:
            why = f"{error.strerror}; load the module (modprobe tun) or give the container the device"
            raise EmulationError(f"the TUN device of {address} cannot be made: {why}") from None
    return tun


def _configure(control: socket.socket, address: str, mtu: int) -> None:
    for request, value in ((_SIOCSIFADDR, address), (_SIOCSIFNETMASK, "255.255.255.0")):
        fcntl.ioctl(control, request, struct.pack("16s16s8x", DEVICE.encode(), _socket_address(value)))
    fcntl.ioctl(control, _SIOCSIFMTU, struct.pack("16si20x", DEVICE.encode(), mtu))
    fcntl.ioctl(control, _SIOCSIFTXQLEN, struct.pack("16si20x", DEVICE.encode(), 1000))
    _set_up(control, DEVICE)
    # struct rtentry; the default route lets programs find out their own address by "connecting" to some far one
    name = ctypes.create_string_buffer(DEVICE.encode())
    nowhere = _socket_address("0.0.0.0")  # noqa: S104 - a route, nothing is bound
    where = (nowhere, nowhere, nowhere, _RTF_UP, ctypes.addressof(name))
    fcntl.ioctl(control, _SIOCADDRT, struct.pack("@L16s16s16shhLPhPLLH", 0, *where[:4], 0, 0, 0, 0, where[4], 0, 0, 0))


def _socket_address(address: str) -> bytes:
    return struct.pack("=HH4s8x", socket.AF_INET, 0, socket.inet_aton(address))


def _set_up(control: socket.socket, device: str) -> None:
    asked = fcntl.ioctl(control, _SIOCGIFFLAGS, struct.pack("16sH22x", device.encode(), 0))
    flags = struct.unpack_from("=H", asked, 16)[0]
    fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sH22x", device.encode(), flags | _IFF_UP))


def raise_priority() -> str:
    """Real-time priority and exact timers for this process; which priority it got, in words. Its children do not inherit it."""
    _libc().prctl(_PR_SET_TIMERSLACK, 1, 0, 0, 0)
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO | os.SCHED_RESET_ON_FORK, os.sched_param(10))
    except OSError:
        pass
    else:
        return "real-time"
    try:
        os.setpriority(os.PRIO_PROCESS, 0, -20)
    except OSError:
        return "normal"
    return "raised (nice -20)"


def processes_in(namespaces: set[int]) -> list[int]:
    """Ids of the processes that live in these namespaces (numbers as of ``namespace_id``), without this one."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                number = (entry / "ns/net").stat().st_ino
            except OSError:
                continue  # it has ended, or is a kernel thread's
            if number in namespaces:
                found.append(int(entry.name))
    return found
