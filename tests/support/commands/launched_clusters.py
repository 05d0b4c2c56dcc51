"""A person who starts clusters from files, a small job for them, and a search for tickets where none may be."""

from __future__ import annotations

import sys
from collections.abc import Iterable
from pathlib import Path

import psutil

from tests.support.commands.command_processes import Program
from tests.support.commands.job_files import LIBRARY, job_text

#: Seconds that a command may take: it starts several workers, which load PyTorch at the same time.
_PATIENCE = 280.0
JOB = job_text(steps=2, data=LIBRARY)


class Person:
    """Calls the command line as a user of the machine ``place``."""

    def __init__(self, place: Path, python: str = sys.executable) -> None:
        self.place, self.python = place, python
        self.calls = 0

    def start(self, *arguments: str) -> Program:
        self.calls += 1
        return Program(self.place, f"call-{self.calls}", *arguments, python=self.python)

    def call(self, *arguments: str) -> str:
        return self.start(*arguments).ends_cleanly(0, _PATIENCE)


def secrets_in(place: Path) -> list[Path]:
    """Files with a ticket."""
    return [path for path in place.rglob("*") if path.is_file() and b"farflung1-" in path.read_bytes()]


def shown_tickets(files: Iterable[Path]) -> list[Path]:
    """The ``files`` whose ticket is in the command line of a process of this machine."""
    lines = []
    for process in psutil.process_iter():
        try:
            lines.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return [path for path in files if any(path.read_text() in line for line in lines)]
