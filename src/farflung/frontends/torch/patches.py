"""Replace functions of libraries while a model is captured.

A library's functions belong to the whole process. ``PATCHES`` lets one thread at a time replace them. ``replaced_here`` gives the
replacement to that thread only: other threads may train or draw random numbers meanwhile.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

__all__ = ["PATCHES", "replaced_here"]

#: Held while a capture runs: neither the functions replaced here nor the tracers of torch serve two threads at a time.
PATCHES = threading.RLock()


@contextmanager
def replaced_here(owner: Any, name: str, replacement: Callable[..., Any]) -> Iterator[None]:
    """Until the end of the block, the function ``name`` of ``owner`` is ``replacement`` in the calling thread."""
    original, thread = getattr(owner, name), threading.get_ident()

    def chosen(*args: Any, **kwargs: Any) -> Any:
        return (replacement if threading.get_ident() == thread else original)(*args, **kwargs)

    with PATCHES, patch.object(owner, name, chosen):
        yield
