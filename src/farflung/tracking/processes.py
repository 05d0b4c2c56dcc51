"""Processes that report runs to trackers: one for each run and tracker, so that nothing a tracker does reaches the run.

A process reads the run's folder (``follower``). Its standard input is a pipe: when the pipe is closed, the process reports what
is there and ends. A process that fails is started again later. Source: our own; the pauses double as in TCP's retransmission.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from farflung.clock import monotonic
from farflung.telemetry.folder import RunFolder
from farflung.thread_group import ThreadGroup
from farflung.tracking.cursor import Cursor

__all__ = ["FAILED", "MOST_SECONDS", "REFUSED", "Reporting", "TrackerProcesses", "tracker_command"]

#: Seconds between two looks at the processes.
_POLL = 0.5
#: Seconds until a failed process is started again, the first time and at most.
_FIRST_PAUSE, _LONGEST_PAUSE = 5.0, 600.0
#: How often the report of a run that is over is tried again.
_TRIES_AFTER_END = 6
#: Seconds for processes to end when they are asked to.
_END_SECONDS = 5.0
#: How many trackers that are given up are remembered.
_MOST_REFUSED = 64
#: What a process exits with if it would fail again, and if the next try may work. The cursor holds the cause.
REFUSED, FAILED = 2, 3
#: Seconds that a process may wait for its tracker. Then it ends, with code 1.
MOST_SECONDS = 180.0


def tracker_command(name: str, folder: Path) -> list[str]:
    """Return the command of the process that reports the run in ``folder`` to the tracker ``name``."""
    return [sys.executable, "-m", "farflung.tracking", name, str(folder)]


@dataclass(slots=True, kw_only=True)
class Reporting:
    """The report of one run to one tracker. ``due``: when its process is started again, in monotonic seconds."""

    run: str
    name: str
    folder: Path
    process: subprocess.Popen[bytes] | None = None
    due: float = 0.0
    pause: float = _FIRST_PAUSE
    #: Failures in a row without progress, and whether there was a line about one.
    failures: int = 0
    failures_said: bool = False
    #: Whether it is complete or given up.
    over: bool = False
    _progress: tuple[int, int] = field(default=(0, 0))

    @property
    def works(self) -> bool:
        """Whether its process runs, or is about to be started."""
        return not self.over and (self.process is not None or self.due <= monotonic())

    def moved(self, cursor: Cursor) -> bool:
        """Whether something was reported since the last call."""
        before, self._progress = self._progress, (cursor.file, cursor.offset)
        return before != self._progress


class TrackerProcesses:
    """Starts and watches the processes on a thread "trackers", which runs while there is something to report.

    ``say(run, text)`` receives one line when a tracker fails, and one when it works again. Any thread may call.
    """

    def __init__(
        self,
        say: Callable[[str, str], None],
        command: Callable[[str, Path], list[str]] = tracker_command,
        first_pause: float = _FIRST_PAUSE,
    ) -> None:
        self._say, self._command, self._first_pause = say, command, first_pause
        self._changed = threading.Condition()
        self._reportings: dict[tuple[str, str], Reporting] = {}
        #: Trackers that are given up.
        self._refused: deque[str] = deque(maxlen=_MOST_REFUSED)
        self._closed = self._watching = False
        self._threads = ThreadGroup()

    def begin(self, run: str, folder: Path, names: Iterable[str]) -> None:
        """Report ``run``, whose files are in ``folder``, to the trackers ``names``; a second call changes nothing."""
        with self._changed:
            for name in names:
                if not self._closed and (run, name) not in self._reportings:
                    self._reportings[run, name] = Reporting(run=run, name=name, folder=folder, pause=self._first_pause)
            if self._reportings and not self._watching and not self._closed:
                self._watching = True
                self._threads.spawn("trackers", self._watch)
            self._changed.notify_all()

    def wait(self, seconds: float) -> list[str]:
        """Wait until all is reported or has failed once more, at most ``seconds``. Return the trackers that lack something."""
        until = monotonic() + seconds
        with self._changed:
            for one in self._reportings.values():
                one.due = min(one.due, monotonic())
            self._changed.notify_all()
            while (left := until - monotonic()) > 0 and any(one.works for one in self._reportings.values()):
                self._changed.wait(left)
            return [*self._refused, *(one.name for one in self._reportings.values())]

    def close(self) -> None:
        """Ask the processes to end, end those that do not, and join the thread."""
        with self._changed:
            self._closed = True
            self._changed.notify_all()
        self._threads.join()
        processes = [one.process for one in self._reportings.values() if one.process is not None]
        for process in processes:
            _ask(process)
        until = monotonic() + _END_SECONDS
        for process in processes:
            with suppress(subprocess.TimeoutExpired):
                process.wait(max(until - monotonic(), 0.0))
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # also the processes that the tracker's library started
            process.wait()

    def _watch(self) -> None:
        """Thread "trackers". Nothing is started or said under the lock: ``begin`` may be called under locks of its caller."""
        while True:
            with self._changed:
                self._reportings = {key: one for key, one in self._reportings.items() if not one.over}
                self._changed.notify_all()
                if self._reportings and not self._closed:
                    self._changed.wait(_POLL)
                if self._closed or not self._reportings:
                    self._watching = False
                    return
                current = list(self._reportings.values())
            for one in current:
                self._look(one)

    def _look(self, one: Reporting) -> None:
        if one.process is None:
            if monotonic() >= one.due:
                self._start(one)
        elif (code := one.process.poll()) is not None:
            _ask(one.process)
            one.process = None
            self._ended(one, code)

    def _start(self, one: Reporting) -> None:
        try:
            one.process = subprocess.Popen(  # noqa: S603 - our own interpreter and module
                self._command(one.name, one.folder),
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,  # libraries print addresses, which may contain passwords
                stderr=subprocess.DEVNULL,
                start_new_session=True,  # Ctrl-C is for the run, which then ends this process
            )
        except OSError as error:
            self._failed(one, f"its process cannot be started: {error.strerror}", again=True)

    def _ended(self, one: Reporting, code: int) -> None:
        cursor = Cursor.load(one.folder, one.name)
        if one.moved(cursor):
            one.failures, one.pause = 0, self._first_pause
        if code == 0 and cursor.complete:
            one.over = True
            if one.failures_said:
                self._say(one.run, f"{one.name} has the whole run now")
        else:
            cause = cursor.trouble or f"its process ended with code {code}: it could not start, or its server did not answer"
            self._failed(one, cause, again=code != REFUSED)

    def _failed(self, one: Reporting, cause: str, *, again: bool) -> None:
        one.failures += 1
        again = again and (one.failures < _TRIES_AFTER_END or not RunFolder(one.folder).result.is_file())
        one.due, one.pause = monotonic() + one.pause, min(2 * one.pause, _LONGEST_PAUSE)
        if not again:
            one.over = True
            self._refused.append(one.name)
        if not (one.failures_said and again):
            one.failures_said = True
            later = "the report is tried again" if again else f"farflung report --to {one.name} {one.folder} sends the rest"
            self._say(one.run, f"warning: {one.name} gets no report: {cause}; training is not affected, {later}")


def _ask(process: subprocess.Popen[bytes]) -> None:
    """Ask ``process`` to end: it reports what is there already."""
    if process.stdin is not None:
        process.stdin.close()
