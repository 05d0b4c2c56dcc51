"""Landlock (Linux 5.13 and newer): a process gives up all files but those below some paths, and TCP."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Iterable, Sequence

__all__ = ["restrict_files"]

#: System calls, the same on all architectures.
_CREATE, _ADD_RULE, _RESTRICT = 444, 445, 446
_VERSION, _PATH_BENEATH = 1, 1
#: Rights: execute, write a file, read a file, list a folder; below 13 are those of version 1; 13: rename and link across folders,
#: 14: truncate, 15: commands of devices.
_EXECUTE, _WRITE, _READ, _LIST = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_FIRST_RIGHTS, _REFER, _TRUNCATE, _DEVICES = (1 << 13) - 1, 1 << 13, 1 << 14, 1 << 15
_FOR_FILES = _EXECUTE | _WRITE | _READ | _TRUNCATE | _DEVICES
_BIND, _CONNECT = 1 << 0, 1 << 1


class _Ruleset(ctypes.Structure):
    _fields_ = [("files", ctypes.c_uint64), ("network", ctypes.c_uint64), ("scopes", ctypes.c_uint64)]


class _Beneath(ctypes.Structure):
    _pack_ = 1
    _layout_ = "ms"
    _fields_ = [("rights", ctypes.c_uint64), ("descriptor", ctypes.c_int32)]


def restrict_files(readable: Iterable[str], writable: Iterable[str], devices: Sequence[str] = (), *, tcp: bool = False) -> bool:
    """Let this thread read below ``readable`` and write below ``writable`` only, and use ``devices``; none may be absent.

    ``tcp``: leave TCP to the process. Returns whether the kernel does it. ``no_new_privs`` must be set.
    """
    library = ctypes.CDLL(None, use_errno=True)
    version = library.syscall(_CREATE, None, ctypes.c_size_t(0), _VERSION)
    if version < 1:
        return False
    every = _FIRST_RIGHTS
    every |= (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0) | (_DEVICES if version >= 5 else 0)
    rules = _Ruleset(every, _BIND | _CONNECT if version >= 4 and not tcp else 0, 3 if version >= 6 else 0)
    size = 8 if version < 4 else 16 if version < 6 else 24
    ruleset = library.syscall(_CREATE, ctypes.byref(rules), ctypes.c_size_t(size), 0)
    if ruleset < 0:
        return False
    try:
        for paths, rights in (
            (readable, _READ | _LIST | _EXECUTE),
            (devices, _READ | _WRITE | _LIST | _DEVICES),
            (writable, every),
        ):
            for path in paths:
                _allow(library, ruleset, path, rights & every)
        return bool(library.syscall(_RESTRICT, ruleset, 0) == 0)
    finally:
        os.close(ruleset)


def _allow(library: ctypes.CDLL, ruleset: int, path: str, rights: int) -> None:
    try:
        place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    except OSError:
        return  # it is not there
    try:
        rights &= -1 if os.path.isdir(path) else _FOR_FILES
        rule = _Beneath(rights, place)
        library.syscall(_ADD_RULE, ruleset, _PATH_BENEATH, ctypes.byref(rule), 0)
    finally:
        os.close(place)
