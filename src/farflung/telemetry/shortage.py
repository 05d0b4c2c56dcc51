"""Which errors of the system mean that something is used up, and will be free again; and how much space is left."""

from __future__ import annotations

import errno
import shutil
from collections.abc import Iterable
from pathlib import Path

__all__ = ["free_space", "remedy_of"]

_FREE_SPACE = "free space or choose another folder"
_REMEDIES = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EMFILE: "raise the limit of open files (ulimit -n) and start this process again",
    errno.ENFILE: "close other programs, or raise fs.file-max",
}


def remedy_of(error: OSError) -> str:
    """Return what helps if ``error`` means that space or descriptors are used up (empty: it means something else)."""
    return _REMEDIES.get(error.errno or 0, "")


def free_space(folders: Iterable[Path]) -> float | None:
    """Return the free bytes of the fullest of the disks with ``folders``, which may not exist yet (None: unknown)."""
    found = []
    for folder in folders:
        there = next((place for place in (folder, *folder.absolute().parents) if place.is_dir()), None)
        try:
            found += [] if there is None else [shutil.disk_usage(there).free]
        except OSError:
            continue
    return float(min(found)) if found else None
