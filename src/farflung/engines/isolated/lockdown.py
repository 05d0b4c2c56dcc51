"""What a process gives up before it computes for a stranger's job: network, files, other processes, privileges, memory.

``python -m farflung.engines.isolated.lockdown`` locks itself up and prints what this machine can do, for
``farflung doctor``.
Source: landlock(7), seccomp(2), user_namespaces(7), capabilities(7). Cost: 2 ms.
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import resource
import signal
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass

from farflung.engines.isolated.landlock import restrict_files
from farflung.engines.isolated.seccomp import restrict_calls

__all__ = ["PROTECTIONS", "Limits", "adopt_orphans", "lock_down", "new_namespaces", "raise_loopback"]

#: What a whole sandbox takes away.
PROTECTIONS = ("network", "files", "processes", "privileges", "memory")
_NEW_USER, _NEW_NETWORK, _NEW_IPC, _NEW_PID = 0x10000000, 0x40000000, 0x08000000, 0x20000000
_SET_DEATH_SIGNAL, _SET_DUMPABLE, _DROP_BOUNDING, _NO_NEW_PRIVILEGES = 1, 4, 24, 38
_ADOPT = 36
_SET_INTERFACE_FLAGS = 0x8914
_LAST_CAPABILITY = 40
_CAPABILITIES_VERSION = 0x20080522
#: What libraries read besides themselves: the processor's features (without them, kernels and results differ), and memory.
_SYSTEM = (
    "/usr", "/lib", "/lib64", "/etc/ld.so.cache", "/etc/localtime", "/proc/self", "/proc/cpuinfo", "/proc/meminfo", "/proc/stat",
    "/proc/sys/vm/overcommit_memory", "/sys/devices/system", "/sys/fs/cgroup", "/dev/urandom",
)  # fmt: skip
#: What Gloo reads before it opens a socket: the kinds of PCI devices, and interfaces.
_INTERFACES = ("/sys/bus/pci/devices", "/sys/devices", "/sys/class/net")
_DEVICES = ("/dev", "/proc", "/sys")
#: What a process may have beside its tensors' memory, in bytes, and as a share of it: holes in the heap, stacks of threads.
_MORE, _SHARE = 256 << 20, 4
#: Address space for threads' heaps, of which most is never used.
_ADDRESSES = 4 << 30
_DESCRIPTORS, _FILE_BYTES = 256, 1 << 30


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """``memory``: bytes for tensors (0: no limit). ``accelerator``: it may use devices. ``scratch``: a folder to write.

    ``speaks``: it is a rank of a site, and may use the network of its namespace. ``disk``: bytes that a file may have (at least
    a gigabyte).
    """

    memory: int = 0
    accelerator: bool = False
    scratch: str = ""
    speaks: bool = False
    disk: int = 0


def adopt_orphans() -> None:
    """Make this process the parent of descendants whose parent has ended: in a container, nobody else may collect them."""
    _control(ctypes.CDLL(None, use_errno=True), _ADOPT, 1)


def new_namespaces() -> bool:
    """Move this process (which must have one thread) out of the network; its next child is alone among processes.

    Returns whether the kernel allows it.
    """
    library = ctypes.CDLL(None, use_errno=True)
    return bool(library.unshare(_NEW_USER | _NEW_NETWORK | _NEW_IPC | _NEW_PID) == 0)


def raise_loopback() -> None:
    """Switch on the loopback interface of a new network namespace, which has no other. If it fails, the ranks can't connect."""
    name, up = b"lo", 0x1  # IFF_UP
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control, suppress(OSError):
        fcntl.ioctl(control, _SET_INTERFACE_FLAGS, struct.pack("16sh22x", name, up))


def lock_down(limits: Limits, *, namespaces: bool) -> tuple[str, ...]:
    """Give up all that computing does not need; return those of ``PROTECTIONS`` that hold now. Call it before threads start.

    ``namespaces``: ``new_namespaces`` has succeeded in a parent. The process ends with its parent.
    """
    library = ctypes.CDLL(None, use_errno=True)
    _control(library, _SET_DEATH_SIGNAL, signal.SIGKILL)
    _set_limits(limits)
    alone = _control(library, _NO_NEW_PRIVILEGES, 1)
    files = alone and restrict_files(
        [*_readable(), *(_INTERFACES if limits.speaks else ())],
        [limits.scratch] if limits.scratch else [],
        _DEVICES if limits.accelerator else (),
        tcp=limits.speaks,
    )
    dropped = alone and _drop_capabilities(library)
    _control(library, _SET_DUMPABLE, 0)
    calls = alone and restrict_calls(sockets=limits.speaks)
    holds = {
        "network": namespaces or (calls and not limits.speaks),
        "files": files,
        "processes": calls,
        "privileges": dropped,
        "memory": limits.memory > 0 and not limits.accelerator,
    }
    return tuple(name for name in PROTECTIONS if holds[name])


def _control(library: ctypes.CDLL, option: int, value: int) -> bool:
    zero = ctypes.c_ulong(0)
    return bool(library.prctl(option, ctypes.c_ulong(value), zero, zero, zero) == 0)


def _set_limits(limits: Limits) -> None:
    _lower(resource.RLIMIT_CORE, 0)
    _lower(resource.RLIMIT_NOFILE, _DESCRIPTORS)
    _lower(resource.RLIMIT_FSIZE, max(_FILE_BYTES, limits.disk))
    if limits.memory and not limits.accelerator:  # drivers of accelerators map far more than they use
        with open("/proc/self/statm", encoding="ascii") as sizes:
            pages = [int(word) for word in sizes.read().split()]
        _lower(resource.RLIMIT_DATA, pages[5] * mmap.PAGESIZE + limits.memory + limits.memory // _SHARE + _MORE)
        _lower(
            resource.RLIMIT_AS, pages[0] * mmap.PAGESIZE + 2 * limits.memory + _ADDRESSES
        )  # memory that RLIMIT_DATA leaves out


def _lower(kind: int, most: int) -> None:
    hard = resource.getrlimit(kind)[1]
    bound = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (bound, bound))


def _readable() -> Iterable[str]:
    """Where this Python and its libraries lie."""
    own = [sys.prefix, sys.base_prefix, os.path.dirname(sys.executable), *(path for path in sys.path if path)]
    return dict.fromkeys((*_SYSTEM, *(os.path.abspath(path) for path in own)))


def _drop_capabilities(library: ctypes.CDLL) -> bool:
    for capability in range(_LAST_CAPABILITY + 1):
        _control(library, _DROP_BOUNDING, capability)  # fails where there are none
    header = (ctypes.c_uint32 * 2)(_CAPABILITIES_VERSION, 0)
    return bool(library.capset(ctypes.byref(header), ctypes.byref((ctypes.c_uint32 * 6)())) == 0)


def main(arguments: Sequence[str] = ()) -> None:
    """Print the protections that this machine can give a process, one a line."""
    del arguments
    read, write = os.pipe()
    if os.fork() == 0:
        alone = new_namespaces()
        holds = lock_down(Limits(memory=1 << 34), namespaces=alone)
        os.write(write, " ".join([*holds, *(["namespaces"] if alone else [])]).encode())
        os._exit(0)
    os.close(write)
    os.wait()
    sys.stdout.write(os.read(read, 4096).decode() + "\n")


if __name__ == "__main__":
    main()
