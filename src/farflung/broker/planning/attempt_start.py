"""Where an attempt of a run begins: with retained states, with the newest checkpoint, or with the first states."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property

from farflung.checkpoint import Manifest
from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.messages.commands import LiveStart
from farflung.messages.conversions.retained_states import decision_item
from farflung.messages.schema import UNSET
from farflung.plan.model import Plan
from farflung.protocol.retained_states import Resume, RetainedState, choose, moves

__all__ = ["Start"]


@dataclass(frozen=True, kw_only=True)
class Start:
    """An attempt begins after ``step`` steps, of which ``committed`` count, with states from ``source``.

    ``source``: ``checkpoint``, ``weights`` (sent by the submitter), ``file`` or ``init``; where ``live`` is given it goes on from
    workers' memory, and ``source`` and ``kept`` (step and committed) are what a rollback goes back to. ``moves``: device ->
    holder -> states. ``hashes``: of states that workers have as copies.
    """

    attempt: int
    step: int
    committed: int
    source: str
    kept: tuple[int, int] = (0, 0)
    live: Resume | None = None
    moves: Mapping[str, Mapping[str, tuple[str, ...]]] = field(default_factory=dict)
    sizes: Mapping[str, int] = field(default_factory=dict)
    hashes: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, attempt: int, newest: Manifest | None, otherwise: str) -> Start:
        """A start from the ``newest`` checkpoint, or from the first states, which come from ``otherwise``."""
        if newest is None:
            return cls(attempt=attempt, step=0, committed=0, source=otherwise)
        committed = newest.ledger.get("steps", newest.step)
        return cls(attempt=attempt, step=newest.step, committed=committed, source="checkpoint", kept=(newest.step, committed))

    def or_live(self, held: Mapping[str, Sequence[RetainedState]], graph: Graph, plan: Plan) -> Start:
        """The same, or one from what the workers in ``held`` hold, where that is no older."""
        pieces = cut(graph, plan.bounds)
        states = {device: {n for stage in plan.stages_of(device) for n in pieces[stage.index].states} for device in plan.devices}
        live = choose(held, set().union(*states.values()))
        if live is None or live.step < self.step:
            return self
        sizes = {name: graph.state[name].spec.nbytes for name in live.holders}
        going = moves(live, states, sizes)
        return replace(self, step=live.step, committed=live.committed, live=live, moves=going, sizes=sizes)

    def with_hashes(self, copied: Mapping[int, Mapping[str, str]]) -> Start:
        """The same with the hashes of copies; ``copied``: step -> state -> hash."""
        return self if self.live is None or not self.live.copied else replace(self, hashes=dict(copied.get(self.step, {})))

    @cached_property
    def lenders(self) -> frozenset[str]:
        """Who gives something to others."""
        return frozenset(holder for parts in self.moves.values() for holder in parts)

    @property
    def moved(self) -> int:
        """Bytes of states that go from worker to worker, without optimizer slots."""
        return sum(self.sizes[name] for parts in self.moves.values() for names in parts.values() for name in names)

    @property
    def came_from(self) -> str:
        """For records: ``memory``, ``copies``, ``checkpoint`` or ``start``."""
        if self.live is not None:
            return "copies" if self.live.copied else "memory"
        return "checkpoint" if self.source == "checkpoint" else "start"

    def live_start(self, device: str) -> LiveStart | None:
        """Return where the states of ``device`` are (None: no worker retains any)."""
        if self.live is None:
            return None
        moves = dict(self.moves.get(device, {}))
        hashes = {name: self.hashes[name] for names in moves.values() for name in names if name in self.hashes}
        decision = decision_item(self.live.decision)
        return LiveStart(step=self.step, committed=self.committed, decision=decision, moves=moves, hashes=hashes or UNSET)
