"""The audit log of a broker: who did what, one JSON object a line, in a file that is only ever appended to.

Several processes may append: the broker, and ``farflung ticket``. Each line is written by one call of the system. Foreign text is
escaped, so no name or address can forge a line. A full file is renamed, and the oldest one is removed, so space is bounded.
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path

__all__ = ["AUDIT_FILE", "AuditLog"]

#: The name of the file in the broker's folder.
AUDIT_FILE = "audit.jsonl"
#: The default bytes of a full file, and how many full ones are kept.
_FULL, _KEPT = 64 << 20, 4
#: The most characters of one text.
_MOST = 500


class AuditLog:
    """Appends to the audit log in the broker's folder. Any thread may call."""

    def __init__(
        self, home: Path, now: Callable[[], float], warn: Callable[[str], None] = lambda text: None, *, full: int = _FULL
    ) -> None:
        """``now``: seconds since 1970. ``warn`` receives a text the first time that a line can't be written.

        ``full``: the bytes from which a file is full.
        """
        self._full = full
        self._path, self._now, self._warn = home / AUDIT_FILE, now, warn
        self._lock = threading.Lock()
        self._failed = False

    def write(self, event: str, /, **facts: str) -> None:
        """Append ``event`` with ``facts``; those that are empty are left out."""
        stamp = datetime.fromtimestamp(self._now(), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {"time": stamp, "event": event} | {key: text[:_MOST] for key, text in facts.items() if text}
        line = json.dumps(body).encode("ascii") + b"\n"  # escapes everything that is not a printable ASCII character
        try:
            with self._lock:
                self._rename_full()
                descriptor = os.open(self._path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
                try:
                    os.write(descriptor, line)
                finally:
                    os.close(descriptor)
                self._failed = False
        except OSError as error:
            first, self._failed = not self._failed, True
            if first:
                self._warn(f"warning: cannot write {self._path}: {error.strerror}; what members do is not recorded meanwhile")

    def _rename_full(self) -> None:
        """Make room: ``audit.1.jsonl`` is the newest of the full files."""
        try:
            if self._path.stat().st_size < self._full:
                return
        except FileNotFoundError:
            return
        names = [self._path, *(self._path.with_name(f"{self._path.stem}.{number}.jsonl") for number in range(1, _KEPT + 1))]
        for older, newer in zip(reversed(names[1:]), reversed(names[:-1]), strict=True):
            if newer.exists():
                newer.replace(older)
