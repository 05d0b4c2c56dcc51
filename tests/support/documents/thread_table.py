"""The table of threads in docs/architecture.md, and the threads of it that outlive their owners."""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

PAGE = Path(__file__).resolve().parents[3] / "docs" / "architecture.md"
#: How long a thread may take to end after its owner has been closed without joining it.
_SECONDS = 5.0


@dataclass(frozen=True)
class Row:
    """``name``: the constant parts of the thread's name, with ``*`` for what is inserted. ``file``: below ``src/farflung``."""

    name: str
    file: str
    text: str


def rows(page: str | None = None) -> list[Row]:
    """The rows of the table: lines of the section "Threads" that begin with a name and a file in backticks."""
    text = PAGE.read_text() if page is None else page
    section = text.partition("\n## Threads\n")[2].partition("\n## ")[0]
    found = [re.match(r"\| `([^`]+)` \| `([^`]+)` \|", line) for line in section.splitlines()]
    return [Row(match[1], match[2], match.string) for match in found if match is not None]


def surviving(before: Collection[threading.Thread], table: Collection[Row], seconds: float = _SECONDS) -> list[str]:
    """The threads of ``table`` that run, and did not in ``before``: each with its row.

    A thread that is about to end gets ``seconds``.
    """
    until = time.monotonic() + seconds
    found = []
    for thread in threading.enumerate():
        mine = [row for row in table if re.fullmatch(".*".join(map(re.escape, row.name.split("*"))), thread.name)]
        if thread in before or not mine:
            continue
        thread.join(max(until - time.monotonic(), 0.0))
        if thread.is_alive():
            found.append(f"{thread.name}: {' or '.join(row.text for row in mine)}")
    return found
