"""One stage: forward, backward, accumulation, update."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from farflung.engines.base import Array, EngineSettings, Forward, MicroBatch
from farflung.engines.host.operators import host_dtype
from farflung.engines.host.optimizer import Optimizer, stage_optimizer
from farflung.engines.host.states import StageStates
from farflung.engines.reference.evaluation import Evaluator
from farflung.engines.reference.passes import StagePass
from farflung.errors import GraphError
from farflung.graph.cut import SubGraph
from farflung.graph.drift import drifting
from farflung.graph.ir import Use, ValueRef
from farflung.job.groups import is_frozen

__all__ = ["ReferenceRunner"]


@dataclass(slots=True)
class _Again:
    """What makes a forward pass again: its inputs, and the states that forwards change."""

    values: Mapping[ValueRef, Array]
    data: Mapping[str, Array]
    states: Mapping[str, Array]


class ReferenceRunner:
    """Runs one stage (see ``farflung.engines.base.StageRunner``)."""

    def __init__(self, subgraph: SubGraph, settings: EngineSettings, share: ReferenceRunner | None, *, wide: bool) -> None:
        self.subgraph = subgraph
        self._settings = settings
        graph = subgraph.graph
        names = subgraph.states if settings.training else ()
        trained = frozenset(n for n in names if n in graph.trained and not is_frozen(settings.optimizer, n))
        self.state: StageStates = StageStates(subgraph, trained, settings.budget, None if share is None else share.state)
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
        self._optimizer: Optimizer | None = None
        self._watch: list[tuple[frozenset[str], int]] = []
        self._ready: Callable[[int], None] | None = None

    # States

    def initialize(self, names: Sequence[str]) -> None:
        """Replay the recorded initializers of the states ``names`` under the settings' seed."""
        self.state.initialize(names, self._settings.seed)

    def load(self, states: Mapping[str, Array]) -> None:
        """Set states to given values.

        Raises:
            GraphError: a state is not in this stage, or its shape or element type is another.
        """
        self.state.load(states)

    def states(self, names: Collection[str] | None = None, *, copy: bool = True) -> Mapping[str, Array]:
        """The states ``names``, or all parameters and persistent buffers."""
        return self.state.export(names, copy=copy)

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
        for use, gradient in self._late.pop(key, {}).items():
            self.state.accumulate(use, gradient)
        self._report()

    def _as_state(self, name: str, gradient: Array) -> Array:
        return np.array(gradient, dtype=host_dtype(self.subgraph.graph.state[name].spec.dtype), order="C")

    def _report(self) -> None:
        """Report the watched groups: all gradients of this backward are complete."""
        watched, self._watch = self._watch, []
        for names, index in watched:
            if names and names <= self.state.single() and self._ready is not None:
                self._ready(index)

    # Update

    def close_part(self, *, last: bool = False) -> None:
        """End a part of the step's sum."""
        self.state.close_part(last=last)

    def take_gradients(self) -> Mapping[Use, Array]:
        """The accumulated gradients by use; they are gone from here."""
        return self.state.take()

    def put_gradients(self, gradients: Mapping[Use, Array]) -> None:
        """Set the accumulated gradients of uses.

        Raises:
            GraphError: a use is not of this stage, or its shape or element type is another.
        """
        self.state.put(gradients)

    def use_gradients(self) -> Mapping[Use, Array]:
        """Accumulated gradients of the uses here of parameters that other stages use too."""
        return self.state.use_gradients()

    def finish_gradients(self, uses: Mapping[Use, Array]) -> None:
        """Sum the uses of tied parameters; ``uses`` has those of other stages."""
        self.state.finish(uses)

    def gradients(self) -> Mapping[str, Array]:
        """The finished gradients (copies)."""
        return {name: array.copy() for name, array in self.state.gradients().items()}

    def gradient_views(self, names: Collection[str]) -> Mapping[str, Array]:
        """The finished gradients of ``names`` that have one."""
        return {name: array for name, array in self.state.gradients().items() if name in names}

    def set_gradients(self, gradients: Mapping[str, Array]) -> None:
        """Set finished gradients by parameter."""
        self.state.set_gradients(gradients)

    def gradient_norms(self) -> Mapping[str, float]:
        """The norm of each gradient."""
        return {name: float(np.linalg.norm(array.reshape(-1))) for name, array in self.state.gradients().items()}

    def spoilt_gradients(self) -> tuple[str, ...]:
        """The parameters whose finished gradient holds a NaN or an infinity."""
        return tuple(name for name, array in self.state.gradients().items() if not np.isfinite(array).all())

    def watch(self, groups: Sequence[Collection[str]], ready: Callable[[int], None]) -> None:
        """Report complete gradients at the end of the next backward (see ``StageRunner``)."""
        self._watch = [(frozenset(names), index) for index, names in enumerate(groups)]
        self._ready = ready

    def update(self, rates: Sequence[float], scale: Array | None, names: Collection[str] | None = None) -> None:
        """One optimizer step; see ``StageRunner``.

        Raises:
            InputError: not as many rates as groups.
        """
        with self.state.updating(names) as found:
            factor = None if scale is None else np.float32(scale)
            scaled = found if factor is None else {name: array * factor for name, array in found.items()}
            self._stepper().step(scaled, rates)

    def discard(self) -> None:
        """Clear gradients and kept activations."""
        self._kept.clear()
        self._late.clear()
        self.state.clear()

    def _stepper(self) -> Optimizer:
        if self._optimizer is None:
            parameters = {n: self.state.array(n) for n in self.subgraph.states if n in self.state.trained}
            self._optimizer = stage_optimizer(self._settings.optimizer, parameters)
        return self._optimizer

    def optimizer_states(self, *, copy: bool = True) -> Mapping[str, Array]:
        """Optimizer state as ``<slot>/<parameter>``."""
        return self._stepper().export(copy=copy)

    def load_optimizer(self, states: Mapping[str, Array]) -> None:
        """Set what ``optimizer_states`` gave.

        Raises:
            CheckpointError: an entry's parameter or shape does not fit this stage.
        """
        self._stepper().load(states)
