"""Waits for what other processes do at their own pace."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from farflung.errors import FarflungError

__all__ = ["until"]

_PATIENCE = 90.0


def until(holds: Callable[[], object], patience: float = _PATIENCE) -> None:
    """Wait until ``holds()`` is true.

    Raises:
        FarflungError: it was not within ``patience`` seconds.
    """
    end, pause = time.monotonic() + patience, threading.Event()
    while not holds():
        if time.monotonic() > end:
            raise FarflungError(f"what was waited for has not come within {patience:g} s")
        pause.wait(0.05)
