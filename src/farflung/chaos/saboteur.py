"""A farflung process that can be made to fail at a named point: ``python -m farflung.chaos.saboteur FILE broker ...``.

The process runs as ever until somebody writes an order into FILE: a point of ``telemetry.FAULT_POINTS`` and what to do there. The
order is taken away before it is carried out, so that a process that is started again does not fail again.

``kill``: SIGKILL, at that very instant. ``stop``: SIGSTOP (whoever gave the order sends SIGCONT). ``full_disk``: for ``seconds``
each write of a checkpoint, of metrics and of the journal finds the disk full. ``clock_jump``: the wall clock goes ``seconds``
forward (or back) at once, and stays there.
"""

from __future__ import annotations

import errno
import json
import os
import runpy
import signal
import sys
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

from farflung.clock import monotonic, shift_wall_time
from farflung.errors import InputError
from farflung.telemetry import FAULT_POINTS
from farflung.telemetry.faults import injecting

__all__ = ["ORDERS", "Order", "Saboteur", "main"]

ORDERS = ("kill", "stop", "full_disk", "clock_jump")
#: Where a disk may be full.
_DISK = "disk.before_write"


@dataclass(frozen=True, slots=True, kw_only=True)
class Order:
    """``do`` at ``point`` (empty: at whatever point comes next), once."""

    do: str
    point: str = ""
    seconds: float = 0.0

    def __post_init__(self) -> None:
        if self.do not in ORDERS:
            raise InputError(f"unknown fault {self.do!r}: known are {', '.join(ORDERS)}")
        if self.point and self.point not in FAULT_POINTS:
            raise InputError(f"unknown moment {self.point!r}: known are {', '.join(FAULT_POINTS)}")

    def give(self, file: Path) -> None:
        """Leave the order for the process that looks at ``file``."""
        temporary = file.with_name(f".{file.name}.part")
        temporary.write_text(json.dumps(asdict(self)), encoding="utf-8")
        temporary.replace(file)


class Saboteur:
    """The injector; ``end`` and ``jump`` are what it does to the process."""

    def __init__(
        self,
        file: Path,
        end: Callable[[int], None] = lambda number: os.kill(os.getpid(), number),
        now: Callable[[], float] = monotonic,
    ) -> None:
        self._file, self._end, self._now = file, end, now
        self._full_until = -1.0

    def __call__(self, name: str, facts: Mapping[str, int | str]) -> None:
        """A point is reached.

        Raises:
            OSError: the disk is full, as ordered.
        """
        if self._file.exists():
            order = Order(**json.loads(self._file.read_text(encoding="utf-8")))
            if order.point in ("", name):
                self._file.unlink(missing_ok=True)
                self._obey(order)
        if name == _DISK and self._now() < self._full_until:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _obey(self, order: Order) -> None:
        if order.do == "kill":
            self._end(signal.SIGKILL)
        elif order.do == "stop":
            self._end(signal.SIGSTOP)
        elif order.do == "full_disk":
            self._full_until = self._now() + order.seconds
        else:
            shift_wall_time(order.seconds)


def main() -> None:
    """Run ``farflung`` with the rest of the arguments."""
    file, sys.argv[1:] = Path(sys.argv[1]), sys.argv[2:]
    with injecting(Saboteur(file)):
        runpy.run_module("farflung", run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main()
