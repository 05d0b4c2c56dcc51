"""Ending processes that were started here, whatever interrupts it."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence
from typing import Any

__all__ = ["end_all"]


def end_all(processes: Sequence[subprocess.Popen[Any]], seconds: float) -> None:
    """End ``processes`` in this order: a request first, then, after ``seconds`` in all or when interrupted, by force.

    Nobody lives when this is left, by a second Ctrl-C too: one that still wrote would do so into folders that are being removed.

    Raises:
        KeyboardInterrupt: or whatever else a signal raises; all have ended.
    """
    interrupted: BaseException | None = None
    try:
        for process in processes:
            process.terminate()  # nothing happens to one that has ended: its id is kept until it was waited for
    except BaseException as error:  # noqa: BLE001 - an interrupt is passed on when all have ended
        interrupted = error
    end = time.monotonic() + seconds
    for process in processes:
        while process.poll() is None:
            try:
                if interrupted is not None or time.monotonic() >= end:
                    process.kill()
                    process.wait()
                else:
                    process.wait(max(end - time.monotonic(), 0.0))
            except subprocess.TimeoutExpired:
                continue
            except BaseException as error:  # noqa: BLE001 - an interrupt is passed on when all have ended
                interrupted = error
    if interrupted is not None:
        raise interrupted
