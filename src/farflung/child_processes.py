"""Ending processes that were started here, whatever interrupts it."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from contextlib import ExitStack, suppress
from typing import Any

from farflung.clock import monotonic

__all__ = ["end_all"]


def end_all(processes: Sequence[subprocess.Popen[Any]], seconds: float) -> None:
    """End ``processes`` in this order: a request first, then, after ``seconds`` in all or when interrupted, by force.

    All of them have ended when this function is left, also by a second Ctrl-C. A process that still ran would write into folders
    that are being removed.

    Raises:
        KeyboardInterrupt: or whatever else a signal raises; all have ended.
    """
    with ExitStack() as stack:  # it calls every callback, the last one first, even if a signal raises in one of them
        for process in processes:
            stack.callback(process.wait)
            stack.callback(process.wait)  # again, since a signal can end the first wait
        for process in processes:
            stack.callback(process.kill)  # nothing happens to a process that has ended
        for process in processes:
            process.terminate()
        end = monotonic() + seconds
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(end - monotonic(), 0.0))
