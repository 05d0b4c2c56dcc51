"""What runs on the nodes of a Ray cluster: an actor for each worker, which starts, watches and ends the worker's process.

The nodes need farflung, since Ray imports this module there. An actor's process may be killed at any time. The kernel then sends
SIGTERM to the worker, which drains.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path

from farflung.launchers.host_requests import ProcessStart
from farflung.telemetry.log_file import LogPart, read_last, read_more

__all__ = ["WorkerActor"]

#: prctl(2): the signal that this process gets when its parent ends.
_SIGNAL_AT_PARENTS_END = 1


def _end_with_the_parent() -> None:
    ctypes.CDLL(None).prctl(_SIGNAL_AT_PARENTS_END, signal.SIGTERM, 0, 0, 0)


class WorkerActor:
    """A worker on a node. Ray calls one method at a time."""

    def __init__(self, start: ProcessStart) -> None:
        """Start the worker. Its ticket is in its environment, which other users cannot read."""
        self._log = Path(tempfile.mkdtemp(prefix="farflung-")) / f"{start.name}.log"
        environment = {**os.environ, **start.environment, "FARFLUNG_TICKET": start.ticket}
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(  # noqa: S603 - this very program, without a shell
                [sys.executable, "-u", "-m", "farflung", *start.words],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=environment,
                preexec_fn=_end_with_the_parent,  # noqa: PLW1509 - it calls nothing that takes a lock
            )

    def state(self) -> tuple[bool, str]:
        """Return whether the worker runs, and the node."""
        return self._process.poll() is None, socket.gethostname()

    def stop(self, seconds: float) -> None:
        """Ask the worker to leave; after ``seconds`` kill it."""
        self._process.terminate()
        try:
            self._process.wait(seconds)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()

    def last(self, lines: int) -> LogPart:
        """Return the end of the log."""
        return read_last(self._log, lines)

    def more(self, position: int) -> tuple[LogPart, bool]:
        """Return what was added to the log after ``position``, and whether the worker runs."""
        running = self._process.poll() is None
        return read_more(self._log, position), running
