"""One stage: forward, backward, accumulation, update."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from farflung.engines.base import Array, EngineSettings, Forward, MicroBatch
from farflung.engines.host.gradients import HostGradients
from farflung.engines.host.operators import host_dtype
from farflung.engines.host.states import StageStates
from farflung.engines.reference.evaluation import Evaluator
from farflung.engines.reference.passes import StagePass
from farflung.engines.stateful_runner import trained_states
from farflung.errors import GraphError
from farflung.graph.cut import SubGraph
from farflung.graph.drift import drifting
from farflung.graph.ir import Use, ValueRef

__all__ = ["ReferenceRunner"]


@dataclass(slots=True)
class _Again:
    """What makes a forward pass again: its inputs, and the states that forwards change."""

    values: Mapping[ValueRef, Array]
    data: Mapping[str, Array]
    states: Mapping[str, Array]


class ReferenceRunner(HostGradients):
    """Runs one stage (see ``farflung.engines.base.StageRunner``)."""

    def __init__(self, subgraph: SubGraph, settings: EngineSettings, share: ReferenceRunner | None, *, wide: bool) -> None:
        trained = trained_states(subgraph, settings)
        shared = None if share is None else share.state
        super().__init__(subgraph, settings, StageStates(subgraph, trained, settings.budget, shared))
        graph = subgraph.graph
        self._evaluator = Evaluator(settings.seed, wide=wide)
        self._outputs = {
            name: value for name, value in graph.outputs if subgraph.start <= graph.position[value.op] < subgraph.stop
        }
        self._sends = tuple(dict.fromkeys(edge.value for edge in subgraph.gives))
        self._updates = tuple((n, v) for n, v in graph.state_updates if graph.position[v.op] in subgraph.positions)
        self._drifting = drifting(subgraph) if settings.recompute and settings.training else frozenset()
        self._kept: dict[MicroBatch, StagePass | _Again] = {}
        #: Gradients of parameters that ``backward_weights`` adds.
        self._late: dict[MicroBatch, Mapping[Use, Array]] = {}

    def exposed(self, names: Collection[str]) -> Mapping[str, Array]:
        """The memory of states."""
        return {name: self.state.array(name).reshape(-1) for name in names if self.state.array(name).flags.c_contiguous}

    # Forward

    def forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Forward:
        """Forward of one micro-batch (see ``StageRunner``).

        Raises:
            GraphError: a value, an input or a state is missing or has another shape; an operator fails.
        """
        step = self._pass(key, {})
        step.run(values, data)
        if self._settings.training:
            self._kept[key] = self._again(values, data) if self._settings.recompute else step
            for name, value in self._updates:
                self.state.replace(name, self._sent(value, step))
        return Forward(
            values={value: self._sent(value, step) for value in self._sends},
            outputs={name: self._sent(value, step) for name, value in self._outputs.items()},
        )

    def _pass(self, key: MicroBatch, states: Mapping[str, Array]) -> StagePass:
        return StagePass(self.subgraph, self.state, self._evaluator, key, states)

    def _again(self, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> _Again:
        return _Again(
            values={value: array.copy() for value, array in values.items()},
            data={name: array.copy() for name, array in data.items()},
            states={name: self.state.array(name).copy() for name in self._drifting},
        )

    def _sent(self, value: ValueRef, step: StagePass) -> Array:
        declared = self.subgraph.graph.op(value.op).outputs[value.index].dtype
        return np.array(step.found[value].array, dtype=host_dtype(declared), order="K")

    # Backward

    def backward(self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> Mapping[ValueRef, Array]:
        """Backward of one micro-batch (see ``StageRunner``).

        Raises:
            GraphError: the micro-batch has no forward, or a gradient is missing or has another shape.
        """
        kept = self._kept.pop(key, None)
        if kept is None:
            raise GraphError(f"stage {self.subgraph.stage} has no forward of {key} to go back from")
        step = kept if isinstance(kept, StagePass) else self._pass(key, kept.states)
        if isinstance(kept, _Again):
            step.run(kept.values, kept.data)
        reached = step.go_back(gradients, self._outputs.get("loss"), weight)
        uses = {use: self._as_state(use.state, reached[leaf]) for use, leaf in step.leaves.items() if leaf in reached}
        self._late[key] = uses
        if not self._settings.split_backward:
            self.backward_weights(key)
        sent: dict[ValueRef, Array] = {}
        for edge in self.subgraph.sends_gradients:
            parts = [reached.get(leaf, np.zeros(edge.spec.shape)) for leaf in step.received[edge.value]]
            arrays = [part.astype(host_dtype(edge.spec.dtype)) for part in parts]
            sent[edge.value] = arrays[0] if len(arrays) == 1 else np.stack(arrays)
        return sent

    def backward_weights(self, key: MicroBatch) -> None:
        """Add the gradients of parameters that ``backward`` has computed."""
        self.complete(self._late.pop(key, {}))

    def _as_state(self, name: str, gradient: Array) -> Array:
        return np.array(gradient, dtype=host_dtype(self.subgraph.graph.state[name].spec.dtype), order="C")

    def discard(self) -> None:
        """Clear gradients and kept activations."""
        self._kept.clear()
        self._late.clear()
        self.state.clear()
