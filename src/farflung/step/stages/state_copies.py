"""Periodic copies of stage states: a worker's own older state, and the states that it stores for others (as their guard).

The leader's verdict begins a copy interval, only when the copies of the interval before are complete everywhere. So all workers
always have one complete interval in common, and at most one more is under way. Memory: two states of the own stages, and two of
each guarded worker's. After a step's update the states are copied in memory. A thread sends them piece by piece, behind
everything else on the links, coded against the copy before, which the guard has complete (``copy_coding``).
"""

from __future__ import annotations

import math
import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from farflung.engines.base import Array
from farflung.errors import FarflungError, WireError
from farflung.messages.data import CopyEnd, CopyLacksBase, CopyPiece, CopyWhole
from farflung.messages.router import PeerRouter
from farflung.messages.schema import Message
from farflung.optim import state_bytes
from farflung.protocol.retained_states import Decision, RetainedState
from farflung.step.context import StepContext
from farflung.step.run_setup import RunSetup
from farflung.step.stages.copy_coding import Coder, Incoming, MakePiece, Version
from farflung.step.stages.local_stages import LocalStages
from farflung.step.stages.state_hashes import state_hashes
from farflung.step.transfer.outbox import Outbox, OutgoingMessage
from farflung.thread_group import ThreadGroup
from farflung.transports.base import Urgency
from farflung.units import Bytes, counted

__all__ = ["StateCopies", "StateCopy", "most_state_bytes", "most_state_tensors"]

#: Beside the optimizer's own slots, a state with its other slots takes at most ``_SLOTS`` times its bytes, and ``_MORE`` bytes.
_SLOTS, _MORE = 5, 1 << 20
#: A state has at most ``_TENSORS`` tensors, and a peer sends ``_MORE_TENSORS`` besides, such as sample caches.
_TENSORS, _MORE_TENSORS = 64, 4096


def most_state_bytes(setup: RunSetup, names: Collection[str]) -> int:
    """Return the most bytes that the states ``names`` take with all their slots: a bound for what a peer sends."""
    states = sum(setup.graph.state[name].spec.nbytes for name in names if name in setup.graph.state)
    return _MORE + _SLOTS * states + math.ceil(state_bytes(setup.job.optimizer, setup.graph, names))


def most_state_tensors(names: Collection[str]) -> int:
    """Return the most tensors that a peer sends for the states ``names``."""
    return _MORE_TENSORS + _TENSORS * len(names)


class StateCopy:
    """A copy of states after some step."""

    def __init__(self, retained_state: RetainedState, arrays: Mapping[str, Array]) -> None:
        self.retained_state, self._arrays = retained_state, arrays

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
        #: Guards ``_own``, ``_guarded`` and ``_interval``: the compute thread begins copies, transport threads complete them.
        self._lock = threading.Lock()
        #: The own states of the last complete interval and of the one under way.
        self._own: list[StateCopy] = []
        #: owner -> the same of its states
        self._guarded: dict[str, list[StateCopy]] = {}
        #: owner -> the copy that it sends. No lock: one transport thread handles all copy frames of an owner.
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
        retained_state = RetainedState(step=step + 1, committed=stages.committed, states=stages.names, copied=True)
        copy = StateCopy(retained_state, stages.packed())
        with self._lock:  # all copies of the interval before are complete, or this one would not begin
            before = self._own[-1] if self._own else None
            self._own = [*self._own[-1:], copy]
            oldest = self._own[0].retained_state.step
            self._guarded = {o: [one for one in held if one.retained_state.step >= oldest] for o, held in self._guarded.items()}
        guards = self._rounds.guards.get(self._context.setup.device, ())
        if guards:
            self._count += 1
            base = None if before is None else before.retained_state
            self._begin(guards, copy, None if base is None or before is None else (base.step, before.read(base.states)))

    def _begin(self, guards: Sequence[str], copy: StateCopy, base: Version | None) -> None:
        # a thread of its own: ``post`` waits while the queue of a slow link is full, and the compute thread must not
        self._threads.spawn(f"copies-{self._context.setup.device}", self._send, guards, copy, base)

    def close(self) -> None:
        """Wait for the threads that send copies; the outbox must be closed."""
        self._threads.join()

    def register(self, router: PeerRouter) -> None:
        """Register what takes copies, and messages about them (transport threads).

        The handlers raise:
            WireError: the message is not expected here.
        """
        router.register(CopyPiece, lambda peer, piece: self._incoming(peer).add(piece))
        router.register(CopyEnd, self._end)
        router.register(CopyWhole, lambda guard, whole: self._whole(whole.owner, guard, whole.step, whole.nbytes))
        router.register(CopyLacksBase, lambda guard, _: self._send_whole(guard))

    def _incoming(self, owner: str) -> Incoming:
        """The copy that ``owner`` sends. Frames of one urgency are handled in order, by one thread for each peer."""
        if self._context.setup.device not in self._rounds.guards.get(owner, ()):
            raise WireError(f"{owner} keeps no copies here")
        incoming = self._coming.get(owner)
        if incoming is None:
            incoming = self._coming[owner] = Incoming(
                self._limits(owner), self._context.setup.budget, lambda step: self._version(owner, step)
            )
        return incoming

    def _end(self, peer: str, end: CopyEnd) -> None:
        """The copy of ``peer`` is complete: store it, and report that to the leader."""
        setup, incoming, step = self._context.setup, self._incoming(peer), end.step
        del self._coming[peer]
        if incoming.lacks:
            self._post(peer, CopyLacksBase(run=setup.run))
            return
        states = frozenset(name for stage in setup.plan.stages_of(peer) for name in setup.subgraphs[stage.index].states)
        copy = StateCopy(RetainedState(step=step, committed=end.committed, states=states, copied=True), incoming.arrays())
        with self._lock:
            self._guarded[peer] = [*self._guarded.get(peer, [])[-1:], copy]
        if setup.device == setup.leader:
            self._whole(peer, setup.device, step - 1, incoming.nbytes)
        else:
            self._post(setup.leader, CopyWhole(run=setup.run, owner=peer, step=step - 1, nbytes=incoming.nbytes))

    def retained(self) -> list[StateCopy]:
        """Return all copies on this worker, the oldest first."""
        with self._lock:
            return [*self._own, *(copy for held in self._guarded.values() for copy in held)]

    def _post(self, peer: str, message: Message) -> None:
        self._context.outbox.post(peer, OutgoingMessage(make=lambda: message, urgency=Urgency.CONTROL))

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
            found = [copy for copy in self._guarded.get(owner, ()) if copy.retained_state.step == step]
        return found[0].read(found[0].retained_state.states) if found else None

    def _limits(self, owner: str) -> tuple[int, int]:
        setup = self._context.setup
        names = {name for stage in setup.plan.stages_of(owner) for name in setup.subgraphs[stage.index].states}
        return most_state_bytes(setup, names), most_state_tensors(names)

    def _send(self, guards: Sequence[str], copy: StateCopy, base: Version | None) -> None:
        outbox, run, retained_state = self._context.outbox, self._context.setup.run, copy.retained_state
        arrays = copy.read(retained_state.states)
        end = CopyEnd(run=run, step=retained_state.step, committed=retained_state.committed)
        try:
            self._context.hooks.on_copied(retained_state.step, state_hashes(arrays))  # it arrives before the copy is complete
            for guard in guards:
                for make in self._coder.pieces(run, arrays, base):
                    # Made on the thread that sends it, which knows the link's rate then.
                    made = partial(_made, make, outbox, guard)
                    outbox.post(guard, OutgoingMessage(make=made, urgency=Urgency.SPARE))
                outbox.post(guard, OutgoingMessage(make=lambda: end, urgency=Urgency.SPARE))
        except (FarflungError, KeyError):
            return  # the run is over; whoever ended it has reported that


def _made(make: MakePiece, outbox: Outbox, guard: str) -> CopyPiece:
    return make(outbox.rate(guard))
