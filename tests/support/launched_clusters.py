"""A person who starts clusters from files, a small job for them, and a search for tickets where none may be."""

from __future__ import annotations

import sys
from pathlib import Path

import psutil

from tests.support.command_processes import Program

#: Seconds that a command may take: it starts several workers, which load PyTorch at the same time.
_PATIENCE = 280.0
JOB = """
name = "tiny"
steps = 2
micro_batch_sizes = [2, 2]
[model]
recipe = "gpt"
args = { vocab = 256, sequence = 16, layers = 3, width = 16, heads = 2 }
[data]
kind = "text"
path = "{stdlib}"
glob = "json/*.py"
tokenizer = "bytes"
sequence = 16
"""


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


def command_lines() -> str:
    """The command lines of all processes of this machine."""
    found = []
    for process in psutil.process_iter():
        try:
            found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return "\n".join(found)
