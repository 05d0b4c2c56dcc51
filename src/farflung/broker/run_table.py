"""The runs in memory, the members, and the state machine that decides about both, behind one lock."""

from __future__ import annotations

import threading

from farflung.broker.live_run import LiveRun
from farflung.errors import InputError
from farflung.protocol.broker import BrokerMachine

__all__ = ["RunTable"]

#: An error message lists at most this many run names.
_LISTED = 8


class RunTable:
    """``changed`` guards ``machine`` and the table, and wakes watchers. Do nothing slow (files, network, planning) under it."""

    def __init__(self) -> None:
        self.machine = BrokerMachine()
        #: Reentrant: a record that completes a step may raise an event while an event is handled.
        self.changed = threading.Condition(threading.RLock())
        self._live: dict[str, LiveRun] = {}

    def live(self, run: str) -> LiveRun:
        """Return the run called ``run``.

        Raises:
            InputError: there is no such run; the text lists the most recent ones.
        """
        with self.changed:
            found = self._live.get(run)
            if found is None:
                newest = list(self._live.values())[-_LISTED:]
                known = ", ".join(f"{one.run} ({one.job.name})" for one in newest) or "none"
                raise InputError(f"there is no run {run!r}; known runs: {known}")
            return found

    def find(self, run: str) -> LiveRun | None:
        """Return the run called ``run``, or None."""
        with self.changed:
            return self._live.get(run)

    def all(self) -> list[LiveRun]:
        """Return all runs, the oldest first."""
        with self.changed:
            return list(self._live.values())

    def add(self, live: LiveRun) -> None:
        """Add a run.

        Raises:
            InputError: a run of this name exists.
        """
        with self.changed:
            if live.run in self._live:
                raise InputError(f"run {live.run!r} exists already; submit again for a new name")
            self._live[live.run] = live

    def remove(self, run: str) -> None:
        """Remove ``run`` from the table; the machine must not know it any more, or not yet."""
        with self.changed:
            del self._live[run]

    def forget_finished(self, most: int) -> None:
        """Forget the oldest finished runs, so that ``most`` of them are left."""
        with self.changed:
            for run in [one.run for one in self._live.values() if one.result is not None][:-most]:
                del self._live[run]
                self.machine.forget(run)

    def serves(self, name: str, run: str) -> bool:
        """Return whether the member ``name`` works on ``run`` now."""
        with self.changed:
            member = self.machine.members.get(name)
            return member is not None and member.run == run

    def wake(self) -> None:
        """Wake all threads that wait for ``changed``."""
        with self.changed:
            self.changed.notify_all()
