"""Seccomp: a process gives up system calls that computing never needs, among them new sockets, processes and programs."""

from __future__ import annotations

import ctypes
import platform
import struct

__all__ = ["restrict_calls"]

#: Architecture of the filter -> (its number in the kernel, system call -> number).
_ARCHITECTURES: dict[str, tuple[int, dict[str, int]]] = {
    "x86_64": (
        0xC000003E,
        {
            "socket": 41, "connect": 42, "accept": 43, "bind": 49, "listen": 50, "socketpair": 53, "fork": 57, "vfork": 58,
            "execve": 59, "kill": 62, "ptrace": 101, "syslog": 103, "setuid": 105, "setgid": 106, "personality": 135,
            "pivot_root": 155, "chroot": 161, "acct": 163, "mount": 165, "umount2": 166, "swapon": 167, "swapoff": 168,
            "reboot": 169, "init_module": 175, "delete_module": 176, "tkill": 200, "keyctl": 250, "add_key": 248,
            "request_key": 249, "unshare": 272, "accept4": 288, "perf_event_open": 298, "fanotify_init": 300,
            "name_to_handle_at": 303, "open_by_handle_at": 304, "setns": 308, "process_vm_readv": 310,
            "process_vm_writev": 311, "finit_module": 313, "memfd_create": 319, "kexec_load": 246, "kexec_file_load": 320,
            "bpf": 321, "execveat": 322, "userfaultfd": 323,
        },
    ),
    "aarch64": (
        0xC00000B7,
        {
            "socket": 198, "connect": 203, "accept": 202, "bind": 200, "listen": 201, "socketpair": 199, "execve": 221,
            "kill": 129, "ptrace": 117, "syslog": 116, "setuid": 146, "setgid": 144, "personality": 92, "pivot_root": 41,
            "chroot": 51, "acct": 89, "mount": 40, "umount2": 39, "swapon": 224, "swapoff": 225, "reboot": 142,
            "init_module": 105, "delete_module": 106, "tkill": 130, "keyctl": 219, "add_key": 217, "request_key": 218,
            "unshare": 97, "accept4": 242, "perf_event_open": 241, "fanotify_init": 262, "name_to_handle_at": 264,
            "open_by_handle_at": 265, "setns": 268, "process_vm_readv": 270, "process_vm_writev": 271, "finit_module": 273,
            "memfd_create": 279, "kexec_load": 104, "kexec_file_load": 294, "bpf": 280, "execveat": 281, "userfaultfd": 282,
        },
    ),
}  # fmt: skip
_SOCKETS = frozenset({"socket", "connect", "accept", "accept4", "bind", "listen", "socketpair"})
_CLONE = {"x86_64": 56, "aarch64": 220}
#: Calls with the same number everywhere: io_uring, pidfd_send_signal, pidfd_getfd, new mount calls, memfd_secret.
_EVERYWHERE = (424, 425, 426, 427, 428, 429, 430, 431, 432, 433, 438, 442, 447)
#: glibc falls back to ``clone``, whose flags a filter can see.
_CLONE3, _CLONE_THREAD, _X32 = 435, 0x00010000, 0x40000000
_LOAD, _EQUAL, _AT_LEAST, _BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_ALLOW, _KILL, _REFUSE, _NO_SYSTEM_CALL = 0x7FFF0000, 0x80000000, 0x00050000 | 1, 0x00050000 | 38
_NUMBER, _ARCHITECTURE, _FIRST_ARGUMENT = 0, 4, 16
_SET_SECCOMP, _FILTER = 22, 2


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_void_p)]


def restrict_calls(*, sockets: bool = False) -> bool:
    """Refuse the calls of the tables from now on, in this thread and all that it starts.

    ``sockets``: the ranks of a site need sockets, so they stay allowed.
    Returns whether the kernel does it. ``no_new_privs`` must be set.
    """
    machine = platform.machine()
    if machine not in _ARCHITECTURES:
        return False
    code = b"".join(_filter(machine, _SOCKETS if sockets else frozenset()))
    held = ctypes.create_string_buffer(code, len(code))
    program = _Program(len(code) // 8, ctypes.cast(held, ctypes.c_void_p))
    library = ctypes.CDLL(None, use_errno=True)
    zero = ctypes.c_ulong(0)
    return bool(library.prctl(_SET_SECCOMP, ctypes.c_ulong(_FILTER), ctypes.byref(program), zero, zero) == 0)


def _filter(machine: str, allowed: frozenset[str]) -> list[bytes]:
    """The instructions of the filter (classic BPF: code, jumps, argument)."""
    architecture, calls = _ARCHITECTURES[machine]
    found = [_do(_LOAD, _ARCHITECTURE), _do(_EQUAL, architecture, 1, 0), _do(_RETURN, _KILL), _do(_LOAD, _NUMBER)]
    if machine == "x86_64":
        found += [_do(_AT_LEAST, _X32, 0, 1), _do(_RETURN, _REFUSE)]
    found += [_do(_EQUAL, _CLONE3, 0, 1), _do(_RETURN, _NO_SYSTEM_CALL)]
    refused = [number for name, number in calls.items() if name not in allowed]
    for number in (*sorted(refused), *_EVERYWHERE):
        found += [_do(_EQUAL, number, 0, 1), _do(_RETURN, _REFUSE)]
    found += [_do(_EQUAL, _CLONE[machine], 0, 3), _do(_LOAD, _FIRST_ARGUMENT), _do(_BITS, _CLONE_THREAD, 1, 0)]
    return [*found, _do(_RETURN, _REFUSE), _do(_RETURN, _ALLOW)]


def _do(code: int, argument: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, argument)
