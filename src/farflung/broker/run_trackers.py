"""Runs whose jobs have a ``[report]`` are reported to experiment trackers, from this machine."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from farflung.broker.live_run import LiveRun
from farflung.broker.run_table import RunTable
from farflung.errors import InputError
from farflung.job import JobSpec
from farflung.messages.schema import Message
from farflung.messages.watching import Started
from farflung.security import Caller
from farflung.tracking import FILE_TRACKERS, TrackerProcesses, check_installed, check_names
from farflung.tracking.cursor import Cursor

__all__ = ["RunTrackers"]


class RunTrackers:
    """Any thread may call. ``say(run, text)`` shows a line about a run to the operator and to the watchers of the run.

    Trackers use the accounts of the broker's operator (keys in the environment), so submitters may use only those in ``allowed``
    and those that only write files.
    """

    def __init__(self, runs: RunTable, say: Callable[[str, str], None], allowed: tuple[str, ...] = ()) -> None:
        self._runs, self._allowed = runs, {*FILE_TRACKERS, *allowed}
        self._processes = TrackerProcesses(say)

    def check(self, job: JobSpec, caller: Caller) -> None:
        """Whether ``job``, which ``caller`` submits, can be reported from here.

        Raises:
            InputError: a tracker is unknown, is not installed here, or may not be used by ``caller``.
        """
        check_names(job.report.to)
        for name in job.report.to:
            if caller.role != "owner" and name not in self._allowed:
                raise InputError(
                    f"report.to: {name!r} uses the accounts of the broker's operator, who allows it to submitters with farflung "
                    f"broker --trackers {name}; or leave it out, and use: {', '.join(sorted(self._allowed))}"
                )
            check_installed(name, "on the broker's machine")

    def message(self, run: str, message: Message, records: int) -> None:
        """Watchers of ``run`` receive ``message``: its report begins when it trains."""
        del records
        if isinstance(message, Started) and (live := self._runs.find(run)) is not None:
            self._begin(live)

    def resume(self) -> None:
        """Report what runs of an earlier broker process have recorded and trackers do not have yet."""
        for live in self._runs.all():
            if live.store.folder.metrics.is_file():
                self._begin(live)

    def close(self) -> None:
        """End the processes and join the thread; the next broker continues."""
        self._processes.close()

    def _begin(self, live: LiveRun) -> None:
        root = live.store.root
        names = [name for name in live.job.report.to if live.result is None or not _over(root, name)]
        with suppress(RuntimeError):  # no more threads: the run must not end for that, and the next attempt tries again
            self._processes.begin(live.run, root, names)


def _over(root: Path, name: str) -> bool:
    cursor = Cursor.load(root, name)
    return cursor.complete or cursor.refused
