"""Processes that a command starts: their output goes to log files, and none of them outlives the command."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Self

from farflung.child_processes import end_all
from farflung.clock import monotonic, sleep
from farflung.errors import TrainingError

__all__ = ["Children"]

_LAST_LINES = 12
_POLL_SECONDS = 0.05
_GRACE_SECONDS = 5.0


class Children:
    """``farflung`` commands as processes of their own; leaving the ``with`` block ends them all, by their own ids.

    Each child is the leader of its own session, so that Ctrl-C reaches the parent only, which then ends them in order.
    """

    def __init__(self, logs: Path, environment: Mapping[str, str]) -> None:
        """``logs``: the folder for ``<name>.log``. ``environment`` is added to that of this process."""
        self._logs = logs
        self._environment = {**os.environ, **environment}
        self._running: dict[str, subprocess.Popen[bytes]] = {}
        logs.mkdir(parents=True, exist_ok=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {name: process.pid for name, process in self._running.items()}

    def start(self, name: str, arguments: Sequence[str]) -> None:
        """Start ``python -m farflung`` with ``arguments``."""
        with self.log(name).open("wb") as log, _undisturbed():
            self._running[name] = subprocess.Popen(  # noqa: S603 - this very program, without a shell
                [sys.executable, "-u", "-m", "farflung", *arguments],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                env=self._environment,
                start_new_session=True,
            )

    def log(self, name: str) -> Path:
        """Where the child's output is."""
        return self._logs / f"{name}.log"

    def await_line(self, name: str, pattern: str, seconds: float) -> re.Match[str]:
        """The first match of ``pattern`` in the child's output.

        Raises:
            TrainingError: a child ended meanwhile, or nothing matched in time.
        """
        deadline = monotonic() + seconds
        while monotonic() < deadline:
            found = re.search(pattern, self._read(name))
            if found:
                return found
            self.check()
            sleep(_POLL_SECONDS)
        raise TrainingError(f"{name} was not ready within {seconds:g} s. {self._tail(name)}")

    def check(self) -> None:
        """See that all children run.

        Raises:
            TrainingError: one has ended; the text has its exit code and the last lines of its output.
        """
        for name, process in list(self._running.items()):  # another thread may kill one
            code = process.poll()
            if code is not None:
                raise TrainingError(f"{name} ended by itself ({_describe(code)}). {self._tail(name)}")

    def kill(self, name: str) -> None:
        """Kill the child ``name`` with SIGKILL, as a power cut would; from now on ``check`` does not expect it to run."""
        process = self._running.pop(name)
        process.kill()
        process.wait()

    def close(self) -> None:
        """End all children: a request first, then, after a few seconds or another Ctrl-C, by force."""
        try:
            end_all(tuple(reversed(self._running.values())), _GRACE_SECONDS)
        finally:
            self._running.clear()

    def _read(self, name: str) -> str:
        return self.log(name).read_text(encoding="utf-8", errors="replace")

    def _tail(self, name: str) -> str:
        lines = self._read(name).rstrip().splitlines()[-_LAST_LINES:]
        shown = "".join(f"\n  | {line}" for line in lines) if lines else " nothing."
        return f"The end of {self.log(name)}:{shown}"


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Signals that Python handles wait until the block is over: one that came between a child's birth and its entry in the list
    would leave the child behind."""
    came: list[int] = []
    names = [getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP") if hasattr(signal, name)]
    handled = [number for number in names if callable(signal.getsignal(number))]
    if threading.current_thread() is not threading.main_thread():
        handled = []  # only the main thread is ever interrupted
    before = {number: signal.signal(number, lambda which, _: came.append(which)) for number in handled}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
        for number in came[:1]:
            signal.raise_signal(number)


def _describe(code: int) -> str:
    return f"exit code {code}" if code >= 0 else f"signal {-code}"
