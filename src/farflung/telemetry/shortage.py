"""Which errors of the system mean that something is used up, and will be free again."""

from __future__ import annotations

import errno

__all__ = ["remedy_of"]

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
