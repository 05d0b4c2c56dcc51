"""A stage whose ranks compute each micro-batch together (tensor parallelism, ``graph.tensor_parallel``).

All ranks get the inputs of each micro-batch. What the first one returns is whole on all ranks, except for results such as
logits, whose parts are joined here. States, optimizer states and gradients come and go as whole arrays. So checkpoints, sums over
replicas and recovery do not know of the division.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from math import sqrt
from typing import TypeVar

from farflung.engines.base import Array, EngineSettings, Forward, MicroBatch
from farflung.engines.encoded_value import SentValues
from farflung.engines.isolated.arena import Arena
from farflung.engines.isolated.control import Method
from farflung.engines.isolated.runner import IsolatedRunner
from farflung.engines.isolated.service import write_use
from farflung.engines.site.parts import joined, part_of
from farflung.engines.site.rank import RankEngine, wait_for_all
from farflung.engines.site.runner import SiteRunner
from farflung.engines.site.shards import owners
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Use, ValueRef
from farflung.graph.tensor_parallel import Division, divide

__all__ = ["TensorSiteRunner"]

Key = TypeVar("Key", str, Use)


class TensorSiteRunner(SiteRunner):
    """See ``StageRunner``. Not thread-safe, as any runner."""

    def __init__(
        self,
        opened: Sequence[IsolatedRunner],
        ranks: Sequence[RankEngine],
        subgraph: SubGraph,
        settings: EngineSettings,
        share: TensorSiteRunner | None,
    ) -> None:
        """``opened``: the stage on each of ``ranks``."""
        self.division: Division = divide(subgraph, len(ranks), None if share is None else share.division.states)
        local = self.division.local
        stages = [
            engine.runner(IsolatedRunner(engine, runner.number, local, settings))
            for engine, runner in zip(ranks, opened, strict=True)
        ]
        super().__init__(stages, subgraph, replace(settings, any_order=False), share, [])
        self._owner = owners(subgraph, settings, len(stages), self.division.states)
        self._values = dict(subgraph.graph.outputs)
        self.lanes = 1

    # -- micro-batches ------------------------------------------------------------------------------------------------

    def forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Forward:
        """See ``StageRunner``."""
        begun = [stage.begin_forward(key, values, data) for stage in self.stages]
        found = wait_for_all(begun, [stage.attempt for stage in self.stages], "the forward")
        return replace(found[0], outputs={name: self._result(name, found) for name in found[0].outputs})

    def _result(self, name: str, found: Sequence[Forward]) -> Array:
        """The whole of a result of which each rank may have a part."""
        split = self.division.values.get(self._values[name])
        return found[0].outputs[name] if split is None else joined([one.outputs[name] for one in found], split)

    def backward(self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> SentValues:
        """See ``StageRunner``."""
        begun = [stage.begin_backward(key, gradients, weight) for stage in self.stages]
        return wait_for_all(begun, [stage.attempt for stage in self.stages], "the backward")[0]

    def backward_weights(self, key: MicroBatch) -> None:
        """Nothing: ``backward`` has computed all gradients."""
        del key

    def close_part(self, *, last: bool = False) -> None:
        """See ``StageRunner``."""
        self._everywhere("close_part", lambda rank, arena: {"last": last})

    # -- gradients ----------------------------------------------------------------------------------------------------

    def take_gradients(self) -> Mapping[Use, Array]:
        """See ``StageRunner``."""
        return self._joined([stage.runner.take_gradients() for stage in self.stages], lambda use: use.state)

    def put_gradients(self, gradients: Mapping[Use, Array]) -> None:
        """See ``StageRunner``."""
        self._give("put_gradients", gradients, lambda use: use.state, write_use)

    def use_gradients(self) -> Mapping[Use, Array]:
        """See ``StageRunner``."""
        return self._joined([stage.runner.use_gradients() for stage in self.stages], lambda use: use.state)

    def finish_gradients(self, uses: Mapping[Use, Array]) -> None:
        """See ``StageRunner``."""
        self._give("finish_gradients", uses, lambda use: use.state, write_use)

    def gradients(self) -> Mapping[str, Array]:
        """See ``StageRunner``."""
        return self._joined([stage.runner.gradients() for stage in self.stages], _itself)

    def gradient_views(self, names: Collection[str]) -> Mapping[str, Array]:
        """Copies, always."""
        return self._joined([stage.runner.gradient_views(names) for stage in self.stages], _itself)

    def set_gradients(self, gradients: Mapping[str, Array]) -> None:
        """See ``StageRunner``."""
        self._give("set_gradients", gradients, _itself, _itself)

    def gradient_norms(self) -> Mapping[str, float]:
        """See ``StageRunner``: the root of the sum of squares, where ranks have parts."""
        found = [stage.runner.gradient_norms() for stage in self.stages]
        split = self.division.states
        return {n: sqrt(sum(norms[n] ** 2 for norms in found)) if n in split else norm for n, norm in found[0].items()}

    # -- states -------------------------------------------------------------------------------------------------------

    def load(self, states: Mapping[str, Array]) -> None:
        """See ``StageRunner``."""
        for rank, stage in enumerate(self.stages):
            stage.runner.load({name: self._part(array, name, rank) for name, array in states.items()})

    def states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """Copies, always."""
        first = self.stages[0].runner.states(names, copy=copy)
        split = [name for name in first if name in self.division.states]
        others = [stage.runner.states(split, copy=copy) for stage in self.stages[1:]] if split else []
        return self._joined([first, *others], _itself)

    def optimizer_states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """Copies, always."""
        return self._joined([stage.runner.optimizer_states(names, copy=copy) for stage in self.stages], _parameter)

    def load_optimizer(self, states: Mapping[str, Array], *, more: bool = False) -> None:
        """See ``StageRunner``."""

        def make(rank: int, arena: Arena) -> Mapping[str, object]:
            own = {key: array for key, array in states.items() if self._owner.get(_parameter(key), rank) == rank}
            written = {key: (arena.write(self._part(array, _parameter(key), rank)),) for key, array in own.items()}
            return {"values": written, "more": more}

        self._everywhere("load_optimizer", make)

    # -- arrays -------------------------------------------------------------------------------------------------------

    def _part(self, array: Array, name: str, rank: int) -> Array:
        """What ``rank`` has of an array of the state ``name``; an array of another shape is the same on all ranks."""
        split = self.division.states.get(name)
        whole = split is None or array.shape != self.subgraph.graph.state[name].spec.shape
        return array if whole or split is None else part_of(array, split, rank, len(self.stages))

    def _joined(self, found: Sequence[Mapping[Key, Array]], state: Callable[[Key], str]) -> dict[Key, Array]:
        """The whole arrays of what the ranks have ``found``; ``state``: the state that a key belongs to."""
        whole: dict[Key, Array] = {}
        local = self.division.local.graph.state
        for key, array in ((key, array) for arrays in found for key, array in arrays.items()):
            name = state(key)
            if key in whole:
                continue
            divided = name in self.division.states and array.shape == local[name].spec.shape
            parts = [arrays[key] for arrays in found] if divided else [array]
            whole[key] = joined(parts, self.division.states[name]) if divided else array
        return whole

    def _give(
        self, method: Method, arrays: Mapping[Key, Array], state: Callable[[Key], str], write: Callable[[Key], str]
    ) -> None:
        """Call ``method`` on all ranks, each with its part of ``arrays``."""

        def make(rank: int, arena: Arena) -> Mapping[str, object]:
            return {"values": {write(key): (arena.write(self._part(one, state(key), rank)),) for key, one in arrays.items()}}

        self._everywhere(method, make)


def _itself(name: str) -> str:
    return name


def _parameter(key: str) -> str:
    """The parameter of an optimizer state."""
    return key.partition("/")[2]
