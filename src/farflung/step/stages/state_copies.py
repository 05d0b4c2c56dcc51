"""Periodic copies of stage states: a worker's own older state, and the states that it stores for others (as their guard).

The leader's verdict begins a copy interval, only when the copies of the interval before are complete everywhere. So all workers
always have one complete interval in common, and at most one more is under way. Memory: two states of the own stages, and two of
each guarded worker's. After a step's update the states are copied in memory. A thread sends them piece by piece, behind
everything else on the links, coded against the copy before, which the guard has complete (``copy_coding``).
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farflung.engines.base import Array
from farflung.errors import FarflungError, WireError
from farflung.messages.fields import whole
from farflung.protocol.holdings import Decision, Holding
from farflung.step.context import StepContext
from farflung.step.stages.copy_coding import Coder, Incoming, Version
from farflung.step.stages.local_stages import LocalStages
from farflung.step.transfer.outbox import OutgoingFrame
from farflung.thread_group import ThreadGroup
from farflung.transports.base import Urgency
from farflung.units import Bytes, counted
from farflung.wire.frames import Frame

__all__ = ["StateCopies", "StateCopy"]

#: A state with its optimizer slots takes at most so many times its bytes, and some more.
_SLOTS, _MORE = 5, 1 << 20


class StateCopy:
    """A copy of states after some step."""

    def __init__(self, holding: Holding, arrays: Mapping[str, Array]) -> None:
        self.holding, self._arrays = holding, arrays

    def advance(self, decision: Decision) -> None:
        """A copy is never prepared for another step."""
        raise AssertionError(decision)

    def release(self) -> None:
        """Nothing: the arrays go with the copy."""

    def read(self, states: Collection[str]) -> Mapping[str, Array]:
        """Return ``states`` with their optimizer slots, packed."""
        wanted = frozenset(states)
        return {key: array for key, array in self._arrays.items() if (key if key in wanted else key.split("/", 2)[-1]) in wanted}


@dataclass(slots=True, kw_only=True)
class _Interval:
    """The newest copy interval. ``step``: None: there was none. ``open``: (owner, guard) of incomplete copies. ``nbytes``: on
    links."""

    step: int | None = None
    open: set[tuple[str, str]] = field(default_factory=set)
    nbytes: int = 0


class StateCopies:
    """One worker's part in the copy intervals."""

    def __init__(self, context: StepContext, stages: LocalStages) -> None:
        self._context, self._stages, self._rounds = context, stages, context.setup.rounds
        self._lock = threading.Lock()
        #: The own states of the last complete interval and of the one under way.
        self._own: list[StateCopy] = []
        #: owner -> the same of its states
        self._guarded: dict[str, list[StateCopy]] = {}
        self._coming: dict[str, Incoming] = {}
        self._coder = Coder()
        self._threads = ThreadGroup()
        #: On the leader.
        self._interval = _Interval()
        #: How many intervals there were.
        self._count = 0

    @property
    def cost(self) -> str:
        """Return what this worker's copies have sent so far (empty: nothing)."""
        coder = self._coder
        if not coder.raw:
            return ""
        return f"{counted(self._count, 'copy', 'copies')} of the state: {Bytes(coder.raw)}, sent as {Bytes(coder.sent)}"

    @property
    def under_way(self) -> bool:
        """Whether, on the leader, copies of the newest interval are incomplete."""
        with self._lock:
            return bool(self._interval.open)

    def due(self, step: int) -> bool:
        """Return, on the leader, whether a copy interval begins after ``step``."""
        if not self._rounds.every:
            return False
        with self._lock:
            interval = self._interval
            if interval.open or (interval.step is not None and step - interval.step < self._rounds.gap(interval.nbytes)):
                return False
            copies = {(device, guard) for device, guards in self._rounds.guards.items() for guard in guards}
            self._interval = _Interval(step=step, open=copies)
            return True

    def take(self, step: int) -> None:
        """Begin a copy interval after ``step`` (compute thread): copy the own states, and send them behind everything else."""
        stages = self._stages
        holding = Holding(step=step + 1, committed=stages.committed, states=stages.names, copied=True)
        copy = StateCopy(holding, stages.packed())
        with self._lock:  # all copies of the interval before are complete, or this one would not begin
            before = self._own[-1] if self._own else None
            self._own = [*self._own[-1:], copy]
            oldest = self._own[0].holding.step
            self._guarded = {o: [one for one in held if one.holding.step >= oldest] for o, held in self._guarded.items()}
        guards = self._rounds.guards.get(self._context.setup.device, ())
        if guards:
            self._count += 1
            self._begin(guards, copy, None if before is None else (before.holding.step, before.read(before.holding.states)))

    def _begin(self, guards: Sequence[str], copy: StateCopy, base: Version | None) -> None:
        self._threads.spawn(f"copies-{self._context.setup.device}", self._send, guards, copy, base)

    def close(self) -> None:
        """Wait for the threads that send copies; the outbox must be closed."""
        self._threads.join()

    def receive(self, peer: str, frame: Frame) -> None:
        """Store a piece of a copy, or the message that one is complete (transport thread).

        Raises:
            WireError: it is not expected here.
        """
        header, setup = frame.header, self._context.setup
        if frame.kind == "copied":
            if header.get("lacks") is True:
                self._send_whole(peer)
            else:
                self._whole(str(header.get("owner")), peer, whole(header, "step"), whole(header, "nbytes"))
            return
        if setup.device not in self._rounds.guards.get(peer, ()):
            raise WireError(f"{peer} keeps no copies here")
        incoming = self._coming.get(peer)
        if incoming is None:
            incoming = self._coming[peer] = Incoming(self._limit(peer), lambda step: self._version(peer, step))
        if header.get("end") is not True:
            incoming.add(frame)
            return
        step, committed = whole(header, "step"), whole(header, "committed")
        del self._coming[peer]
        if incoming.lacks:
            self._tell(peer, {"lacks": True})
            return
        states = frozenset(name for stage in setup.plan.stages_of(peer) for name in setup.subgraphs[stage.index].states)
        copy = StateCopy(Holding(step=step, committed=committed, states=states, copied=True), incoming.arrays())
        with self._lock:
            self._guarded[peer] = [*self._guarded.get(peer, [])[-1:], copy]
        if setup.device == setup.leader:
            self._whole(peer, setup.device, step - 1, incoming.nbytes)
        else:
            self._tell(setup.leader, {"owner": peer, "step": step - 1, "nbytes": incoming.nbytes})

    def retained(self) -> list[StateCopy]:
        """Return all copies on this worker, the oldest first."""
        with self._lock:
            return [*self._own, *(copy for held in self._guarded.values() for copy in held)]

    def _tell(self, peer: str, fields: Mapping[str, Any]) -> None:
        word = Frame("copied", {"run": self._context.setup.run, **fields})
        self._context.outbox.post(peer, OutgoingFrame(make=lambda: word, urgency=Urgency.CONTROL))

    def _whole(self, owner: str, guard: str, step: int, nbytes: int) -> None:
        with self._lock:
            interval = self._interval
            if step == interval.step and (owner, guard) in interval.open:
                interval.open.discard((owner, guard))
                interval.nbytes += nbytes

    def _send_whole(self, guard: str) -> None:
        """Send the newest copy again, uncoded: ``guard`` lacks the copy that it was coded against."""
        if guard not in self._rounds.guards.get(self._context.setup.device, ()):
            raise WireError(f"{guard} keeps no copies of this worker")
        with self._lock:
            newest = self._own[-1:]
        for copy in newest:
            self._begin((guard,), copy, None)

    def _version(self, owner: str, step: int) -> Mapping[str, Array] | None:
        """Return the stored states of ``owner`` after ``step`` steps."""
        with self._lock:
            found = [copy for copy in self._guarded.get(owner, ()) if copy.holding.step == step]
        return found[0].read(found[0].holding.states) if found else None

    def _limit(self, owner: str) -> int:
        setup = self._context.setup
        names = {name for stage in setup.plan.stages_of(owner) for name in setup.subgraphs[stage.index].states}
        return _MORE + _SLOTS * sum(setup.graph.state[name].spec.nbytes for name in names)

    def _send(self, guards: Sequence[str], copy: StateCopy, base: Version | None) -> None:
        outbox, run, holding = self._context.outbox, self._context.setup.run, copy.holding
        arrays = copy.read(holding.states)
        try:
            for guard in guards:
                for make in self._coder.pieces(arrays, base):
                    outbox.post(guard, OutgoingFrame(make=self._piece(guard, make), urgency=Urgency.SPARE))
                end = Frame("copy", {"run": run, "end": True, "step": holding.step, "committed": holding.committed})
                outbox.post(guard, OutgoingFrame(make=lambda end=end: end, urgency=Urgency.SPARE))  # type: ignore[misc]
        except (FarflungError, KeyError):
            return  # the run is over; whoever ended it has reported that

    def _piece(self, guard: str, make: Callable[[float], Frame]) -> Callable[[], Frame]:
        """Return what makes a piece for ``guard``, on the thread that sends it."""

        def made() -> Frame:
            piece = make(self._context.outbox.rate(guard))
            return Frame("copy", {**piece.header, "run": self._context.setup.run}, piece.sections)

        return made
