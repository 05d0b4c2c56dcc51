"""Fresh device measurements before a plan is made.

Workers that join at the same moment disturb each other's first measurement. A planner would then take one for much slower than
its neighbor. So the broker asks again when it plans, with the job's number of threads:

- The workers of one host measure one after another; hosts measure independently.
- Workers that share the processors of a host then measure at the same time. That gives the capacity of the host
  (``protocol.hosts``) with everything that they compete for: cores, caches, memory bandwidth. A result well below what the
  cores allow is measured again, because another program may have computed for a moment. The capacity stays until another worker
  joins or the number of threads changes.

Training waits for a plan after a loss. So the broker does not measure a worker then if it knows the speed: that of another worker
on the same processors, or its own speed in this run before a restart of the broker.

Speeds decide where a run computes, never what it computes.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

from farflung.clock import monotonic
from farflung.messages.commands import Measure
from farflung.messages.schema import Message
from farflung.protocol.events import HostMeasured, MemberMeasured
from farflung.protocol.hosts import host_groups, processor_capacity
from farflung.protocol.members import Member
from farflung.thread_group import ThreadGroup

__all__ = ["DeviceMeasurements"]

#: Seconds. A worker that does not answer in this time keeps its older figures.
PATIENCE = 30.0
#: Common measurements of a host, 0.9 s each, at most; one that reaches this share of what its cores allow is enough.
_ROUNDS, _NEAR = 3, 0.9


class DeviceMeasurements:
    """Asks workers for measurements. Sessions of workers call ``answer``. Any thread may call."""

    def __init__(
        self,
        send: Callable[[str, Message], None],
        present: Callable[[str], bool],
        patience: float = PATIENCE,
        on_host: Callable[[HostMeasured], None] | None = None,
    ) -> None:
        """``present``: whether a worker is still connected. ``on_host``: receives the capacities of hosts."""
        self._send, self._present, self._patience, self._on_host = send, present, patience, on_host
        #: worker -> the share of its speed that it reached in the last common measurement
        self._shares: dict[str, float] = {}
        #: The groups (name and generation of each worker) whose capacity is known, with their threads.
        self._known: set[tuple[frozenset[tuple[str, int]], int]] = set()
        #: Guards ``_shares``, ``_hosts`` and ``_waiting``. It is never held while a worker measures.
        self._guard = threading.Lock()
        #: host -> held while the workers of the host measure
        self._hosts: dict[str, threading.Lock] = {}
        self._waiting: dict[str, threading.Event] = {}

    def measure(self, members: Sequence[Member], threads: int) -> None:
        """Ask all ``members``. Return once each has answered, is lost, or has exceeded its time."""
        hosts: dict[str, list[Member]] = {}
        for member in members:
            hosts.setdefault(member.offer.host or member.name, []).append(member)
        workers = ThreadGroup()
        for host, found in hosts.items():
            workers.spawn(f"measure-{host[:8]}", self._one_host, host, found, threads)
        workers.join()

    def asks(self, name: str) -> bool:
        """Return whether ``name`` measures now."""
        with self._guard:
            return name in self._waiting

    def answer(self, event: MemberMeasured) -> None:
        """The worker has measured."""
        if event.share is not None:
            with self._guard:
                self._shares[event.name] = event.share
        self.lost(event.name)

    def lost(self, name: str) -> None:
        """Do not wait for ``name`` any more."""
        with self._guard:
            waiting = self._waiting.pop(name, None)
        if waiting is not None:
            waiting.set()  # the thread that asked goes on

    def close(self) -> None:
        """Wait for no worker any more."""
        with self._guard:
            self._patience = 0.0
            waiting = list(self._waiting)
        for name in waiting:
            self.lost(name)

    def _one_host(self, host: str, members: Sequence[Member], threads: int) -> None:
        with self._guard:
            busy = self._hosts.setdefault(host, threading.Lock())
        with busy:  # another run may be planned for other workers of this host
            for member in members:
                self._ask([member.name], Measure(threads=threads))
            for group in host_groups(members):
                self._together(group, threads)

    def _together(self, group: Sequence[Member], threads: int) -> None:
        """Measure what the workers of ``group`` reach at the same time, unless it is known."""
        key = frozenset((member.name, member.generation) for member in group), threads
        if self._on_host is None or key in self._known:
            return
        names = [member.name for member in group]
        most = min(len(names), processor_capacity(group, threads))
        reached: list[float] = []
        for _ in range(_ROUNDS):
            shares = self._round(names, threads)
            if len(shares) == len(names):
                reached.append(sum(shares))
            if len(shares) < len(names) or reached[-1] >= _NEAR * most:
                break
        if reached:
            self._known.add(key)
            # a program that computes for a moment can only lower the sum, so the largest one counts
            self._on_host(HostMeasured(names=tuple(names), capacity=max(1.0, *reached)))

    def _round(self, names: Sequence[str], threads: int) -> list[float]:
        """Return the share of its speed that each worker reached while all of ``names`` computed; less if one is lost."""
        with self._guard:
            for name in names:
                self._shares.pop(name, None)
        self._ask(names, Measure(threads=threads, together=True))
        with self._guard:
            return [share for name in names if (share := self._shares.pop(name, None)) is not None]

    def _ask(self, names: Sequence[str], command: Measure) -> None:
        """Ask all of ``names`` at once. Return once each has answered, is lost, or has exceeded its time."""
        waiting = [(name, threading.Event()) for name in names]
        with self._guard:
            self._waiting |= dict(waiting)
        for name, _ in waiting:
            if self._present(name):
                self._send(name, command)
            else:
                self.lost(name)
        until = monotonic() + self._patience
        for name, done in waiting:
            done.wait(max(0.0, until - monotonic()))
            self.lost(name)
