"""The real programs as processes: a broker with its dashboard, and workers, with logs that a benchmark waits for."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from farflung.child_processes import end_all
from farflung.errors import TrainingError

__all__ = ["Program", "broker", "child_of", "start"]


@dataclass(slots=True)
class Program:
    """A process and its output."""

    process: subprocess.Popen[bytes]
    log: Path

    def until(self, pattern: str, seconds: float = 180.0) -> re.Match[str]:
        """Wait for output that matches ``pattern``.

        Raises:
            TrainingError: the process has ended, or the time is over.
        """
        end = time.monotonic() + seconds
        while (found := re.search(pattern, self.log.read_text(errors="replace"))) is None:
            if self.process.poll() is not None or time.monotonic() > end:
                raise TrainingError(f"no line of the process matches {pattern!r}: {self.log.read_text(errors='replace')[-600:]}")
            time.sleep(0.05)
        return found


def start(command: Sequence[str], log: Path) -> Program:
    """Start ``command``; the caller ends it."""
    with log.open("wb") as file:
        process = subprocess.Popen(list(command), stdin=subprocess.DEVNULL, stdout=file, stderr=file)  # noqa: S603 - our own
    return Program(process, log)


@contextmanager
def broker(home: Path, *more: str) -> Iterator[Program]:
    """A broker with a dashboard; ``more``: options of ``farflung broker``."""
    home.mkdir(parents=True, exist_ok=True)
    command = ["broker", "--listen", "127.0.0.1:0", "--home", str(home), "--web", "127.0.0.1:0", *more]
    started = start([sys.executable, "-u", "-m", "farflung", *command], home / "broker.out")
    try:
        started.until("Press Ctrl-C")
        yield started
    finally:
        end_all([started.process], 15.0)


def child_of(process: int, word: str) -> list[int]:
    """The child processes of ``process`` whose command has the argument ``word``."""
    return [child.pid for child in psutil.Process(process).children() if word in child.cmdline()]
