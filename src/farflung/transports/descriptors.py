"""How many files and sockets this process may have open."""

from __future__ import annotations

import resource
from contextlib import suppress

__all__ = ["descriptor_limit", "raise_descriptor_limit"]

#: A limit above this changes nothing for this program.
_ENOUGH = 1 << 16


def descriptor_limit() -> int:
    """Return the number of descriptors that this process may have."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return _ENOUGH if soft == resource.RLIM_INFINITY else min(soft, _ENOUGH)


def raise_descriptor_limit() -> int:
    """Raise the limit of this process as far as the system allows without rights; return the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with suppress(OSError, ValueError):  # some systems refuse a limit that they say they allow
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return descriptor_limit()
