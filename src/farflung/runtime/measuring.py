"""Fresh measurements before a plan is made: workers of one machine measure one after another, different machines at once.

Workers that join at the same moment disturb each other's first measurement, and a planner would take one for much slower than
its neighbour. So the broker asks again when it plans, with the job's number of threads. Speeds decide where a run computes, never
what it computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from farflung.protocol.broker import Member
from farflung.protocol.events import MemberMeasured
from farflung.wire.frames import Frame

__all__ = ["Measuring"]

#: A worker that does not answer in this time keeps its older figures.
PATIENCE = 30.0


class Measuring:
    """Asks workers for measurements; ``answer`` is called by their sessions."""

    def __init__(self, send: Callable[[str, Frame], None], present: Callable[[str], bool], patience: float = PATIENCE) -> None:
        """``present``: whether a worker is still there."""
        self._send, self._present, self._patience = send, present, patience
        self._guard = threading.Lock()
        self._hosts: dict[str, threading.Lock] = {}
        self._waiting: dict[str, threading.Event] = {}

    def measure(self, members: Sequence[Member], threads: int) -> None:
        """Ask all ``members`` and return once each has answered, is gone, or has had its time."""
        hosts: dict[str, list[str]] = {}
        for member in members:
            hosts.setdefault(member.offer.host or member.name, []).append(member.name)
        workers = [
            threading.Thread(target=self._one_host, args=(host, names, threads), daemon=True) for host, names in hosts.items()
        ]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()

    def asks(self, name: str) -> bool:
        """Whether ``name`` measures now."""
        with self._guard:
            return name in self._waiting

    def answer(self, event: MemberMeasured) -> None:
        """The worker has measured."""
        self.gone(event.name)

    def gone(self, name: str) -> None:
        """Do not wait for ``name``."""
        with self._guard:
            waiting = self._waiting.pop(name, None)
        if waiting is not None:
            waiting.set()

    def _one_host(self, host: str, names: Sequence[str], threads: int) -> None:
        with self._guard:
            busy = self._hosts.setdefault(host, threading.Lock())
        with busy:  # another run may be planned for other workers of this machine
            for name in names:
                done = threading.Event()
                with self._guard:
                    self._waiting[name] = done
                if self._present(name):
                    self._send(name, Frame("measure", {"threads": threads}))
                    done.wait(self._patience)
                self.gone(name)
