"""A stage on all ranks of a site: sharded data parallel over whole micro-batches.

Each rank has the stage's parameters, and computes micro-batches of its own. The gradient's sum, the optimizer state and the
update of a parameter belong to one rank (``shards``). This rank sends the new parameter to the others. Ranks compute whole
micro-batches, so each gradient has the bits that one device gives it. Owners add in the job's order (or, if the job allows
any order, as torch.distributed adds).
A stage may divide its parameters, too (ZeRO stage 3): then owners add gradients during the backward, block by block.
Source: ZeRO stages 1 and 2 (Rajbhandari et al. 2020, sections 5.1 and 5.2), PyTorch's ``ZeroRedundancyOptimizer``.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from farflung.engines.base import Array, EngineSettings, Forward, MicroBatch
from farflung.engines.encoded_value import SentValues
from farflung.engines.isolated.arena import Arena
from farflung.engines.isolated.control import Done, Fold, Method
from farflung.engines.isolated.service import write_use
from farflung.engines.site.rank import Pending, RankStage, wait_for_all
from farflung.engines.site.shards import owners
from farflung.graph.cut import SubGraph
from farflung.graph.ir import StateKind, Use, ValueRef

__all__ = ["SiteRunner"]

Item = TypeVar("Item")


@dataclass(slots=True)
class _Sum:
    """The step's sum: what the ranks have to add, in the job's order, and what they add now. Runners of one stage share it."""

    folds: list[Fold] = field(default_factory=list)
    under_way: list[Pending[Done]] = field(default_factory=list)
    #: The rank that has the activations of a micro-batch.
    ranks: dict[MicroBatch, int] = field(default_factory=dict)

    def wait(self, stages: Sequence[RankStage]) -> None:
        """Wait for the additions that were begun."""
        under_way, self.under_way = self.under_way, []
        wait_for_all(under_way, [stage.attempt for stage in stages], "the fold")


class SiteRunner:
    """See ``StageRunner``. Not thread-safe, as any runner."""

    def __init__(
        self,
        stages: Sequence[RankStage],
        subgraph: SubGraph,
        settings: EngineSettings,
        share: SiteRunner | None,
        together: list[Pending[Any]],
    ) -> None:
        """``stages``: of the ranks, in their order. ``together``: the forwards or backwards that were begun together, with the
        ranks that only assist. All runners of a site share this list: any of them may be discarded first.
        """
        self.subgraph, self.stages = subgraph, tuple(stages)
        self._settings = settings
        self._owner: Mapping[str, int] = owners(subgraph, settings, len(stages)) if share is None else share._owner
        #: Whether each rank has a part of the parameters only. Then all ranks take part in each forward and backward.
        self.sharded: bool = settings.sharded if share is None else share.sharded
        self._together = together
        #: How many micro-batches compute at the same time. Forwards that change states come one after the other.
        own = set(subgraph.positions)
        changes = any(subgraph.graph.position[value.op] in own for _, value in subgraph.graph.state_updates)
        self.lanes = 1 if changes or not settings.training else len(stages)
        self._sum: _Sum = _Sum() if share is None else share._sum
        self._forwards: dict[MicroBatch, Pending[Forward]] = {}
        self._backwards: dict[MicroBatch, Pending[SentValues]] = {}
        self._weights: dict[MicroBatch, Pending[Done]] = {}

    # -- micro-batches ------------------------------------------------------------------------------------------------

    def begin_forwards(self, work: Sequence[tuple[MicroBatch, Mapping[ValueRef, Array], Mapping[str, Array]]]) -> None:
        """Begin forwards, at most ``lanes``; ``forward`` waits for each."""
        for rank, (key, values, data) in enumerate(work):
            if self._settings.training:
                self._sum.ranks[key] = rank
            self._forwards[key] = self.stages[rank].begin_forward(key, values, data)
        self._assist("assist_forward", {rank: self._forwards[key] for rank, (key, _, _) in enumerate(work)})

    def begin_backwards(self, work: Sequence[tuple[MicroBatch, Mapping[ValueRef, Sequence[Array]], float]]) -> None:
        """Begin backwards of micro-batches on different ranks; ``backward`` waits for each."""
        self._fold()
        folds = tuple(Fold(key.step, key.index, self._sum.ranks[key]) for key, _, _ in work) if self.sharded else ()
        for key, gradients, weight in work:
            self._backwards[key] = self.stages[self._sum.ranks[key]].begin_backward(key, gradients, weight, folds)
        self._assist("assist_backward", {self._sum.ranks[key]: self._backwards[key] for key, _, _ in work}, folds)

    def _assist(self, method: Method, computing: Mapping[int, Pending[Any]], folds: tuple[Fold, ...] = ()) -> None:
        """Let the ranks that compute nothing send and receive with those that do; ``computing``: by rank."""
        if self.sharded:
            self._together[:] = [
                computing[rank] if rank in computing else stage.begin_call(method, lambda _: {"folds": folds})
                for rank, stage in enumerate(self.stages)
            ]

    def _wait_together(self) -> None:
        """Wait for all ranks where they wait for each other: an error of one ends the site."""
        together = self._together.copy()
        self._together.clear()
        wait_for_all(together, [stage.attempt for stage in self.stages], "a block's parameters")

    def begin_weights(self, keys: Sequence[MicroBatch]) -> None:
        """Begin the rest of split backwards of micro-batches on different ranks; ``backward_weights`` waits for each."""
        self._fold()
        for key in keys:
            stage = self.stages[self._sum.ranks[key]]
            self._weights[key] = stage.begin_call("backward_weights", lambda _, key=key: {"key": key})  # type: ignore[misc]

    def forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Forward:
        """See ``StageRunner``."""
        if key not in self._forwards:
            self.begin_forwards([(key, values, data)])
        self._wait_together()
        return self._forwards.pop(key).result()

    def backward(self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> SentValues:
        """See ``StageRunner``."""
        if key not in self._backwards:
            self.begin_backwards([(key, gradients, weight)])
        self._wait_together()
        found = self._backwards.pop(key).result()
        if not self._settings.split_backward:
            self._note(key)
        return found

    def backward_weights(self, key: MicroBatch) -> None:
        """See ``StageRunner``."""
        if key not in self._weights:
            self.begin_weights([key])
        self._weights.pop(key).result()
        self._note(key)

    def watch(self, groups: Sequence[Collection[str]], ready: Callable[[int], None]) -> None:
        """Report nothing: gradients are complete when the ranks have added them, after the backward."""
        del groups, ready

    # -- the sum ------------------------------------------------------------------------------------------------------

    def _note(self, key: MicroBatch) -> None:
        self._sum.folds.append(Fold(key.step, key.index, self._sum.ranks.pop(key)))

    def _fold(self, *, whole: bool = False) -> None:
        """Let the ranks add what was computed; ``whole``: now the owners need all of it."""
        if not self._sum.folds or (self._settings.any_order and not whole):
            return
        self._sum.wait(self.stages)
        folds, self._sum.folds = tuple(self._sum.folds), []
        self._sum.under_way = self._begin("fold", lambda rank, arena: {"folds": folds, "last": whole})

    def _complete(self) -> None:
        """Wait until the owners have all that was computed."""
        self._fold(whole=True)
        self._sum.wait(self.stages)

    def close_part(self, *, last: bool = False) -> None:
        """See ``StageRunner``."""
        self._sum.folds.append(Fold(0, -1, 0, close=True, last=last))
        if last:
            self._fold(whole=True)

    def take_gradients(self) -> Mapping[Use, Array]:
        """See ``StageRunner``."""
        return self._uses("take_gradients")

    def put_gradients(self, gradients: Mapping[Use, Array]) -> None:
        """See ``StageRunner``."""
        self._deal_uses("put_gradients", gradients)

    def use_gradients(self) -> Mapping[Use, Array]:
        """See ``StageRunner``."""
        return self._uses("use_gradients")

    def finish_gradients(self, uses: Mapping[Use, Array]) -> None:
        """See ``StageRunner``."""
        self._deal_uses("finish_gradients", uses)

    def gradients(self) -> Mapping[str, Array]:
        """See ``StageRunner``."""
        self._complete()
        return self._in_order({name: array for stage in self.stages for name, array in stage.runner.gradients().items()})

    def gradient_views(self, names: Collection[str]) -> Mapping[str, Array]:
        """Copies, always."""
        self._complete()
        wanted = [[name for name in names if self._owner.get(name) == rank] for rank in range(len(self.stages))]
        found = (stage.runner.gradient_views(own) for stage, own in zip(self.stages, wanted, strict=True))
        return self._in_order({name: array for arrays in found for name, array in arrays.items()})

    def set_gradients(self, gradients: Mapping[str, Array]) -> None:
        """See ``StageRunner``."""
        self._deal("set_gradients", {name: (array, name) for name, array in gradients.items()})

    def gradient_norms(self) -> Mapping[str, float]:
        """See ``StageRunner``: each norm is of a whole parameter, so it has the bits of one process."""
        self._complete()
        return self._in_order({name: norm for stage in self.stages for name, norm in stage.runner.gradient_norms().items()})

    def spoilt_gradients(self) -> tuple[str, ...]:
        """See ``StageRunner``."""
        self._complete()
        found = {name for stage in self.stages for name in stage.runner.spoilt_gradients()}
        return tuple(name for name in self.subgraph.states if name in found)

    def update(self, rates: Sequence[float], scale: Array | None, names: Collection[str] | None = None) -> None:
        """See ``StageRunner``: each rank updates what it owns, and sends it to the others."""
        chosen = None if names is None else tuple(names)

        def make(rank: int, arena: Arena) -> Mapping[str, object]:
            written = None if scale is None else arena.write(scale)
            return {"rates": tuple(rates), "scale": written, "names": chosen}

        self._everywhere("update", make)

    def discard(self) -> None:
        """See ``StageRunner``. Ranks that wait for each other are awaited together: if one has failed, the site ends."""
        self._wait_together()
        self._sum.folds.clear()
        self._sum.ranks.clear()
        self._forwards.clear()
        self._backwards.clear()
        self._weights.clear()
        self._everywhere("discard")

    # -- states -------------------------------------------------------------------------------------------------------

    def initialize(self, names: Sequence[str]) -> None:
        """See ``StageRunner``: every rank draws the same values."""
        self._everywhere("initialize", lambda rank, arena: {"names": tuple(names)})

    def load(self, states: Mapping[str, Array]) -> None:
        """See ``StageRunner``."""
        for rank, stage in enumerate(self.stages):
            stage.runner.load({name: array for name, array in states.items() if self._lies(name, rank)})

    def _lies(self, name: str, rank: int) -> bool:
        """Whether the state ``name`` lies on ``rank`` all the time."""
        return not self.sharded or self._owner.get(name, rank) == rank

    def states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """Copies of states, always, from the first rank that has them."""
        if not self.sharded:
            return self.stages[0].runner.states(names, copy=copy)
        state = self.subgraph.graph.state
        kept = [n for n in self.subgraph.states if state[n].persistent and state[n].kind is not StateKind.CONSTANT]
        wanted = kept if names is None else [name for name in self.subgraph.states if name in names]
        found: dict[str, Array] = {}
        for rank, stage in enumerate(self.stages):
            own = [name for name in wanted if self._owner.get(name, 0) == rank]
            found |= stage.runner.states(own, copy=copy) if own else {}
        return self._in_order(found)

    def exposed(self, names: Collection[str]) -> Mapping[str, Array]:
        """None: the states lie in other processes."""
        del names
        return {}

    def optimizer_states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """Copies, always."""
        found = (stage.runner.optimizer_states(names, copy=copy) for stage in self.stages)
        return {key: array for slots in found for key, array in slots.items()}

    def load_optimizer(self, states: Mapping[str, Array], *, more: bool = False) -> None:
        """See ``StageRunner``."""
        self._deal("load_optimizer", {key: (array, key.partition("/")[2]) for key, array in states.items()}, more=more)

    # -- calls on all ranks -------------------------------------------------------------------------------------------

    def _begin(self, method: Method, make: Callable[[int, Arena], Mapping[str, object]]) -> list[Pending[Done]]:
        return [
            stage.begin_call(method, lambda arena, rank=rank: make(rank, arena))  # type: ignore[misc]
            for rank, stage in enumerate(self.stages)
        ]

    def _everywhere(self, method: Method, make: Callable[[int, Arena], Mapping[str, object]] = lambda rank, arena: {}) -> None:
        """Call ``method`` on all ranks at the same time."""
        self._complete()
        begun = self._begin(method, make)
        wait_for_all(begun, [stage.attempt for stage in self.stages], f"the {method.replace('_', ' ')}")

    def _deal(self, method: Method, arrays: Mapping[str, tuple[Array, str]], *, more: bool = False) -> None:
        """Call ``method`` on all ranks, each with the arrays whose state it owns. ``arrays``: name -> array and state."""

        def make(rank: int, arena: Arena) -> Mapping[str, object]:
            own = {name: array for name, (array, state) in arrays.items() if self._owner.get(state, 0) == rank}
            return {"values": {name: (arena.write(array),) for name, array in own.items()}, "more": more}

        self._everywhere(method, make)

    def _deal_uses(self, method: Method, gradients: Mapping[Use, Array]) -> None:
        self._deal(method, {write_use(use): (array, use.state) for use, array in gradients.items()})

    def _uses(self, method: Method) -> dict[Use, Array]:
        self._complete()
        found = (getattr(stage.runner, method)() for stage in self.stages)
        return {use: array for uses in found for use, array in uses.items()}

    def _in_order(self, found: Mapping[str, Item]) -> dict[str, Item]:
        return {name: found[name] for name in self.subgraph.states if name in found}
