"""Fresh measurements before a plan is made: workers of one host measure one after another, then together; hosts independently.

Workers that join at the same moment disturb each other's first measurement, and a planner would take one for much slower than
its neighbor. So the broker asks again when it plans, with the job's number of threads. Workers that share the processors of a
host then measure at the same time, which gives the capacity of the host (``protocol.hosts``), with all that they compete for:
cores, caches, memory bandwidth. That is repeated only when another worker or another number of threads comes. Speeds decide where
a run computes, never what it computes.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from farflung.protocol.broker import Member
from farflung.protocol.events import HostMeasured, MemberMeasured
from farflung.protocol.hosts import host_groups
from farflung.wire.frames import Frame

__all__ = ["Measuring"]

#: A worker that does not answer in this time keeps its older figures.
PATIENCE = 30.0


class Measuring:
    """Asks workers for measurements; ``answer`` is called by their sessions."""

    def __init__(
        self,
        send: Callable[[str, Frame], None],
        present: Callable[[str], bool],
        patience: float = PATIENCE,
        on_host: Callable[[HostMeasured], None] | None = None,
    ) -> None:
        """``present``: whether a worker is still there. ``on_host``: receives the capacities of hosts."""
        self._send, self._present, self._patience, self._on_host = send, present, patience, on_host
        #: What workers reached together, of those who were asked last.
        self._shares: dict[str, float] = {}
        #: The groups whose capacity is known, with their threads.
        self._known: set[tuple[frozenset[tuple[str, int]], int]] = set()
        self._guard = threading.Lock()
        self._hosts: dict[str, threading.Lock] = {}
        self._waiting: dict[str, threading.Event] = {}

    def measure(self, members: Sequence[Member], threads: int) -> None:
        """Ask all ``members`` and return once each has answered, is gone, or has had its time."""
        hosts: dict[str, list[Member]] = {}
        for member in members:
            hosts.setdefault(member.offer.host or member.name, []).append(member)
        workers = [
            threading.Thread(target=self._one_host, args=(host, found, threads), name=f"measure-{host[:8]}", daemon=True)
            for host, found in hosts.items()
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
        if event.share is not None:
            with self._guard:
                self._shares[event.name] = event.share
        self.gone(event.name)

    def gone(self, name: str) -> None:
        """Do not wait for ``name``."""
        with self._guard:
            waiting = self._waiting.pop(name, None)
        if waiting is not None:
            waiting.set()

    def _one_host(self, host: str, members: Sequence[Member], threads: int) -> None:
        with self._guard:
            busy = self._hosts.setdefault(host, threading.Lock())
        with busy:  # another run may be planned for other workers of this host
            for member in members:
                self._ask([member.name], {"threads": threads})
            for group in host_groups(members):
                self._together(group, threads)

    def _together(self, group: Sequence[Member], threads: int) -> None:
        """Measure what the workers of ``group`` reach at the same time, unless that is known."""
        key = frozenset((member.name, member.generation) for member in group), threads
        if self._on_host is None or key in self._known:
            return
        names = [member.name for member in group]
        with self._guard:
            for name in names:
                self._shares.pop(name, None)
        self._ask(names, {"threads": threads, "together": True})
        with self._guard:
            shares = [share for name in names if (share := self._shares.pop(name, None)) is not None]
        if len(shares) == len(names):
            self._known.add(key)
            self._on_host(HostMeasured(names=tuple(names), capacity=max(1.0, sum(shares))))

    def _ask(self, names: Sequence[str], header: Mapping[str, object]) -> None:
        """Ask all of ``names`` at once; returns once each has answered, is gone, or has had its time."""
        waiting = [(name, threading.Event()) for name in names]
        with self._guard:
            self._waiting |= dict(waiting)
        for name, _ in waiting:
            if self._present(name):
                self._send(name, Frame("measure", dict(header)))
            else:
                self.gone(name)
        until = time.monotonic() + self._patience
        for name, done in waiting:
            done.wait(max(0.0, until - time.monotonic()))
            self.gone(name)
