"""What a server sends to its helpers: states at the beginning of a step, tasks, and the next step's states ahead of it."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace

from farflung.errors import ConnectionLost, FarflungError
from farflung.messages.schema import Message
from farflung.step.transfer.outbox import Outbox, OutgoingMessage
from farflung.transports.base import Urgency

__all__ = ["HelperLinks", "MakeForHelper"]

#: Builds a message on the sender's thread. The argument: whether the helper has had no states yet.
MakeForHelper = Callable[[bool], Message]


@dataclass(slots=True)
class _Helper:
    """``fed``: its states come from this server, not from another one of the stage. ``ahead_step``: the step whose states it has
    been sent, or will be, ahead."""

    stage: int
    fed: bool
    blank: bool = True
    ahead_step: int = -1


class HelperLinks:
    """The helpers of one server. Any thread may call. Messages for a helper that has left are dropped."""

    def __init__(self, outbox: Outbox, lost: Callable[[str, str], None]) -> None:
        """``lost``: called with name and cause when a helper cannot be reached."""
        self._outbox, self._lost = outbox, lost
        #: Guards both fields below. Messages are posted under it, so that none follows the last one to a helper that has left. It
        #: is held for a short time, because these messages do not wait for room in a queue (``waits=False``).
        self._lock = threading.Lock()
        self._helpers: dict[str, _Helper] = {}
        #: All helpers so far: messages that they sent may still arrive.
        self.known: set[str] = set()

    def add(self, name: str, stage: int, *, fed: bool) -> None:
        """``name`` helps ``stage`` from now on; messages for an earlier part of it are dropped."""
        helper = _Helper(stage, fed)
        with self._lock:
            self._helpers[name] = helper
            self.known.add(name)
            self._outbox.remove_guest(name)
            self._outbox.add_guest(name, lambda error: self._lost_one(name, helper, error))

    def remove(self, name: str) -> int | None:
        """``name`` helps no more; return the stage that it helped (None: it did not)."""
        with self._lock:
            helper = self._helpers.pop(name, None)
            if helper is None:
                return None
            self._outbox.remove_guest(name)
            return helper.stage

    def stage(self, name: str) -> int | None:
        """Return the stage that ``name`` helps (None: it does not)."""
        with self._lock:
            helper = self._helpers.get(name)
            return None if helper is None else helper.stage

    def is_fed(self, name: str) -> bool:
        """Return whether this server sends ``name`` its states."""
        with self._lock:
            helper = self._helpers.get(name)
            return helper is not None and helper.fed

    def post(self, name: str, make: MakeForHelper) -> None:
        """Send a task."""
        with self._lock:
            helper = self._helpers.get(name)
            if helper is not None:
                self._outbox.post(name, OutgoingMessage(make=lambda: make(helper.blank), waits=False))

    def begin_step(self, name: str, make: MakeForHelper) -> None:
        """Send the states of a step that begins; tasks of the step before that still wait are dropped."""
        with self._lock:
            helper = self._helpers.get(name)
            if helper is None:
                return

            def states() -> Message:
                blank, helper.blank = helper.blank, False  # only this thread reads and writes it
                return make(blank)

            self._outbox.withdraw(name, Urgency.VALUES)
            for ahead in self._outbox.withdraw(name, Urgency.BULK):  # these are the states of the step that begins
                self._outbox.post(name, replace(ahead, urgency=Urgency.VALUES))
            self._outbox.post(name, OutgoingMessage(make=states, waits=False))

    def post_ahead(self, name: str, step: int, make: Callable[[], Message]) -> None:
        """Send the states of ``step``, the next one, behind everything else."""
        with self._lock:
            helper = self._helpers.get(name)
            if helper is not None:
                helper.ahead_step = step
                self._outbox.withdraw(name, Urgency.BULK)
                self._outbox.post(name, OutgoingMessage(make=make, urgency=Urgency.BULK, waits=False))

    def has_ahead(self, name: str, step: int) -> bool:
        """Return whether ``name`` was sent the states of ``step`` ahead of it."""
        with self._lock:
            helper = self._helpers.get(name)
            return helper is not None and helper.ahead_step == step

    def forget(self, name: str) -> None:
        """Drop the tasks that wait for ``name``: they are of another step."""
        self._outbox.withdraw(name, Urgency.VALUES)

    def close(self) -> None:
        """Send nothing more."""
        with self._lock:
            for name in self._helpers:
                self._outbox.remove_guest(name)
            self._helpers.clear()

    def _lost_one(self, name: str, helper: _Helper, error: BaseException) -> None:
        with self._lock:
            current = self._helpers.get(name) is helper
        if current:
            self._lost(name, str(error if isinstance(error, FarflungError) else ConnectionLost.of(error)))
