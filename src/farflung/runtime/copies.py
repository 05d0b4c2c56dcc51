"""Copies of stage states at a cadence: a worker's own older state, and those that it keeps for others.

A round begins where the leader's verdict says so, which it does only when the copies of the round before are whole everywhere. So
all workers always have one whole round in common, and at most one more is under way: memory holds two states of the own
stages and two of each guarded one. After a step's update the states are copied inside memory; a thread sends them piece by
piece, behind everything else on the links.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from farflung.checkpoint import pack
from farflung.engines.base import Array
from farflung.errors import FarflungError, WireError
from farflung.protocol.holdings import Decision, Holding
from farflung.runtime.fields import table, whole
from farflung.runtime.links import Parcel
from farflung.runtime.tensors import read_arrays, write_arrays
from farflung.transports.base import Urgency
from farflung.wire.frames import Frame

if TYPE_CHECKING:
    from farflung.runtime.executor import Executor

__all__ = ["Copies", "KeptStates", "Rounds", "read_rounds"]

#: A state with its optimizer slots takes at most so many times its bytes, and some more.
_SLOTS, _MORE = 5, 1 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """``every``: steps between rounds (0: there are none); ``guards``: device -> who keeps copies of its states."""

    every: int = 0
    guards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def header(self) -> dict[str, Any]:
        """As plain values."""
        return {"every": self.every, "guards": {device: list(guards) for device, guards in self.guards.items()}}


def read_rounds(header: Mapping[str, Any]) -> Rounds:
    """What ``Rounds.header`` gave.

    Raises:
        WireError: it is malformed.
    """
    guards = table(header, "guards")
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in guards.values()):
        raise WireError("bad message: guards must be lists of names")
    return Rounds(every=whole(header, "every"), guards={device: tuple(names) for device, names in guards.items()})


class KeptStates:
    """Copied states of one step; see ``holding.Held``."""

    def __init__(self, holding: Holding, arrays: Mapping[str, Array]) -> None:
        self.holding, self._arrays = holding, arrays

    def advance(self, decision: Decision) -> None:
        """Copies are never ready with another step."""
        raise AssertionError(decision)

    def read(self, states: Collection[str]) -> Mapping[str, Array]:
        """``states`` with their optimizer slots, packed."""
        wanted = frozenset(states)
        return {key: array for key, array in self._arrays.items() if (key if key in wanted else key.split("/", 2)[-1]) in wanted}


class Copies:
    """One executor's part in the rounds."""

    def __init__(self, executor: Executor, rounds: Rounds) -> None:
        self._executor, self.rounds = executor, rounds
        self._lock = threading.Lock()
        #: The own states of the last whole round and of the one under way.
        self._own: list[KeptStates] = []
        #: owner -> the same of its states
        self._guarded: dict[str, list[KeptStates]] = {}
        self._coming: dict[str, list[Frame]] = {}
        self._sizes: dict[str, int] = {}
        #: On the leader: the round under way and who has still to tell that its copy is whole; None: no round has been yet.
        self._round: int | None = None
        self._open: set[tuple[str, str]] = set()

    def due(self, step: int) -> bool:
        """Asked on the leader: whether a round begins after ``step``."""
        if not self.rounds.every:
            return False
        with self._lock:
            if self._open or (self._round is not None and step - self._round < self.rounds.every):
                return False
            self._round = step
            self._open = {(device, guard) for device, guards in self.rounds.guards.items() for guard in guards}
            return True

    def take(self, step: int) -> None:
        """A round begins after ``step`` (compute thread): copy the own states, and send them behind everything else."""
        executor = self._executor
        setup = executor.setup
        values: dict[str, Array] = {}
        slots: dict[str, Array] = {}
        for index in setup.own_stages:
            runner = executor.base(index)
            values |= runner.states(list(runner.subgraph.states))
            slots |= runner.optimizer_states()
        states = frozenset(name for index in setup.own_stages for name in setup.subgraphs[index].states)
        holding = Holding(step=step + 1, committed=executor.committed, states=states, copied=True)
        kept = KeptStates(holding, pack(values, slots))
        with self._lock:  # all copies of the round before are whole, or this one would not begin
            self._own = [*self._own[-1:], kept]
            oldest = self._own[0].holding.step
            self._guarded = {o: [one for one in held if one.holding.step >= oldest] for o, held in self._guarded.items()}
        guards = self.rounds.guards.get(setup.device, ())
        if guards:
            args = (guards, holding, kept.read(states))
            threading.Thread(target=self._send, args=args, name=f"copies-{setup.device}", daemon=True).start()

    def receive(self, peer: str, frame: Frame) -> None:
        """A piece of a copy, or the word that one is whole, came from ``peer`` (transport thread).

        Raises:
            WireError: it is not expected here.
        """
        header, setup = frame.header, self._executor.setup
        if frame.kind == "copied":
            self._whole(str(header.get("owner")), peer, whole(header, "step"))
            return
        if setup.device not in self.rounds.guards.get(peer, ()):
            raise WireError(f"{peer} keeps no copies here")
        pieces = self._coming.setdefault(peer, [])
        if header.get("end") is not True:
            self._sizes[peer] = self._sizes.get(peer, 0) + sum(memoryview(section).nbytes for section in frame.sections)
            if self._sizes[peer] > self._limit(peer):
                raise WireError(f"{peer} sends more than the states of its stages")
            pieces.append(Frame("tensor", header, frame.sections))
            return
        step, committed = whole(header, "step"), whole(header, "committed")
        del self._coming[peer]
        self._sizes.pop(peer, None)
        states = frozenset(name for stage in setup.plan.stages_of(peer) for name in setup.subgraphs[stage.index].states)
        kept = KeptStates(Holding(step=step, committed=committed, states=states, copied=True), read_arrays(pieces))
        with self._lock:
            self._guarded[peer] = [*self._guarded.get(peer, [])[-1:], kept]
        if setup.device == setup.leader:
            self._whole(peer, setup.device, step - 1)
            return
        word = Frame("copied", {"run": setup.run, "owner": peer, "step": step - 1})
        self._executor.links.post(setup.leader, Parcel(make=lambda: word, urgency=Urgency.CONTROL))

    def held(self) -> list[KeptStates]:
        """All that is kept here, the oldest first."""
        with self._lock:
            return [*self._own, *(kept for held in self._guarded.values() for kept in held)]

    def _whole(self, owner: str, guard: str, step: int) -> None:
        with self._lock:
            if step == self._round:
                self._open.discard((owner, guard))

    def _limit(self, owner: str) -> int:
        setup = self._executor.setup
        names = {name for stage in setup.plan.stages_of(owner) for name in setup.subgraphs[stage.index].states}
        return _MORE + _SLOTS * sum(setup.graph.state[name].spec.nbytes for name in names)

    def _send(self, guards: Sequence[str], holding: Holding, arrays: Mapping[str, Array]) -> None:
        links, run = self._executor.links, self._executor.setup.run
        try:
            for guard in guards:
                for frame in write_arrays(arrays.items()):
                    piece = Frame("copy", {**frame.header, "run": run}, frame.sections)
                    links.post(guard, Parcel(make=lambda piece=piece: piece, urgency=Urgency.SPARE))  # type: ignore[misc]
                end = Frame("copy", {"run": run, "end": True, "step": holding.step, "committed": holding.committed})
                links.post(guard, Parcel(make=lambda end=end: end, urgency=Urgency.SPARE))  # type: ignore[misc]
        except (FarflungError, KeyError):
            return  # the run is over, and whoever ended it has been told
