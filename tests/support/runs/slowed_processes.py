"""A real process that gets a part of the time only: it is stopped and woken again and again."""

from __future__ import annotations

import signal
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["slowed"]


@contextmanager
def slowed(process: subprocess.Popen[bytes], share: float, period: float) -> Iterator[None]:
    """Inside, ``process`` runs for ``share`` of each ``period`` (seconds)."""
    over = threading.Event()

    def act() -> None:
        while not over.wait(period * share):
            process.send_signal(signal.SIGSTOP)
            over.wait(period * (1 - share))
            process.send_signal(signal.SIGCONT)

    thread = threading.Thread(target=act, daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
        process.send_signal(signal.SIGCONT)
