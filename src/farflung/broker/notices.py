"""Messages to people: lines for the broker's operator, and messages for the watchers of a run."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from farflung.broker.records.run_log import RunLog
from farflung.messages.schema import Message
from farflung.messages.watching import Note, RecordLine
from farflung.telemetry.log_line import Detail

__all__ = ["MessageTaker", "Notices", "WatchedRun"]

#: Takes the name of a run, what its watchers receive, and how many records came before that. It never waits.
MessageTaker = Callable[[str, Message, int], None]


def _no_log(run: str, message: Message, records: int) -> None:
    del run, message, records


class WatchedRun(Protocol):
    """A run whose watchers receive messages."""

    @property
    def run(self) -> str:
        """Its name."""

    @property
    def log(self) -> RunLog:
        """What its watchers receive."""


class WatchedRuns(Protocol):
    """The runs in memory."""

    def find(self, run: str, /) -> WatchedRun | None:
        """Return the run called ``run``, or None."""

    def wake(self) -> None:
        """Wake the threads that send messages to watchers."""


class Notices:
    """Any thread may call. Nothing here waits, except for ``RunTable.changed``."""

    def __init__(self, say: Callable[[str], None], runs: WatchedRuns, log_message: MessageTaker = _no_log) -> None:
        """``say`` shows a line to the operator. ``log_message`` logs what the watchers of a run receive."""
        self._say, self._runs, self._log_message = say, runs, log_message

    def operator(self, line: str) -> None:
        """Show ``line`` to the operator."""
        self._say(line)

    def operator_of(self, run: str, text: str, *, detail: bool = False) -> None:
        """Show ``text`` about ``run`` to the operator; ``detail``: with ``--verbose`` only."""
        line = f"run {run}: {text}"
        self._say(Detail(line) if detail else line)

    def watchers(self, live: WatchedRun, message: Message) -> None:
        """Send ``message`` to the watchers of a run."""
        records = live.log.mark(message)
        self._log_message(live.run, message, records)
        self._runs.wake()

    def record(self, live: WatchedRun, line: str) -> None:
        """Send a record that is in the metrics file already to the watchers of a run."""
        live.log.record(line)
        self._log_message(live.run, RecordLine(line=line), live.log.records)
        self._runs.wake()

    def everybody(self, run: str, text: str) -> None:
        """Show ``text`` about ``run`` to the operator, and to the watchers of the run unless the broker has forgotten the run."""
        self.operator_of(run, text)
        if (live := self._runs.find(run)) is not None:
            self.watchers(live, Note(text=text))
