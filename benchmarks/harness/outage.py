"""Sudden disconnections of a process: all its connections break at once, and it comes back when it may.

``away.json`` in a folder lists who is away. A process that finds its name there shuts all its TCP connections down, and waits
with its next joining until the name is gone from the list. Its memory stays, as that of a laptop behind a broken line does.
"""

from __future__ import annotations

import json
import os
import socket
import threading
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

__all__ = ["AWAY", "Outage", "cuts", "send_away", "shut_connections"]

AWAY = "away.json"
_LOOK_SECONDS = 0.02
#: Begins the names of files that count how often a member went away.
_CUT = "cut-"


def send_away(folder: Path, names: Collection[str]) -> None:
    """From now on exactly ``names`` are away."""
    _write(folder, AWAY, sorted(names))


def cuts(folder: Path) -> int:
    """How often members have gone away so far."""
    return sum(int(json.loads(file.read_text("utf-8"))) for file in folder.glob(f"{_CUT}*"))


def _write(folder: Path, name: str, value: object) -> None:
    temporary = folder / f".{name}.part"
    temporary.write_text(json.dumps(value), encoding="utf-8")
    temporary.replace(folder / name)


def shut_connections() -> int:
    """Shut down every TCP connection of this process; how many there were."""
    count = 0
    for name in os.listdir("/proc/self/fd"):
        with suppress(OSError), socket.socket(fileno=os.dup(int(name))) as held:
            if held.family in (socket.AF_INET, socket.AF_INET6) and held.type == socket.SOCK_STREAM:
                held.getpeername()  # one that listens has none
                held.shutdown(socket.SHUT_RDWR)
                count += 1
    return count


class Outage:
    """Looks after the process of the member ``name``; also its injector (``telemetry.faults``): it holds it before it joins."""

    def __init__(self, folder: Path, name: str) -> None:
        self._folder, self._name = folder, name
        self._changed = threading.Condition()
        self._away, self._cuts = False, 0

    def start(self) -> None:
        """Look from now on."""
        threading.Thread(target=self._watch, name="outage", daemon=True).start()

    def look(self) -> None:
        """See whether this process is away, and break its connections if that is new."""
        away = self._name in json.loads((self._folder / AWAY).read_text("utf-8"))
        with self._changed:
            begins, self._away = away and not self._away, away
            self._changed.notify_all()
        if begins:
            shut_connections()
            self._cuts += 1
            _write(self._folder, f"{_CUT}{self._name}", self._cuts)

    def __call__(self, name: str, facts: Mapping[str, int | str]) -> None:
        """A named point is reached."""
        del facts
        if name == "worker.before_join":
            with self._changed:
                self._changed.wait_for(lambda: not self._away)

    def _watch(self) -> None:
        pause = threading.Event()
        while not pause.wait(_LOOK_SECONDS):
            self.look()
