"""Calls on threads of their own."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import Any

__all__ = ["PATIENCE", "later"]

#: Seconds that a test waits for such a call.
PATIENCE = 60.0


def later(action: Callable[[], Any]) -> Future[Any]:
    """``action`` on a thread of its own."""
    future: Future[Any] = Future()

    def run() -> None:
        try:
            future.set_result(action())
        except BaseException as error:  # noqa: BLE001 - it belongs to the future
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return future
