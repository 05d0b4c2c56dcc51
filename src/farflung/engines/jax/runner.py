"""One stage on one device: forward, backward, accumulation, update."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from farflung.engines.base import Array, EngineSettings, Forward, MicroBatch
from farflung.engines.host.optimizer import Optimizer, stage_optimizer
from farflung.engines.host.states import check_array
from farflung.engines.jax.compiled_stage import CompiledStage, Kept
from farflung.engines.jax.states import JaxStates
from farflung.errors import GraphError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Use, ValueRef
from farflung.job.groups import is_frozen

__all__ = ["JaxRunner"]


class JaxRunner:
    """Runs one stage (see ``farflung.engines.base.StageRunner``)."""

    def __init__(self, subgraph: SubGraph, settings: EngineSettings, device: Any, share: JaxRunner | None) -> None:
        self.subgraph = subgraph
        self._settings = settings
        graph = subgraph.graph
        names = subgraph.states if settings.training else ()
        trained = frozenset(n for n in names if n in graph.trained and not is_frozen(settings.optimizer, n))
        self.state: JaxStates = JaxStates(subgraph, device, trained, settings.budget, None if share is None else share.state)
        self._stage = CompiledStage(subgraph, settings, device, trained)
        self._kept: dict[MicroBatch, Kept] = {}
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
        return self.state.expose(names)

    # Forward and backward

    def forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Forward:
        """Forward of one micro-batch (see ``StageRunner``).

        Raises:
            GraphError: a value, an input or a state is missing or has another shape; an operator fails.
        """
        stage = self._stage
        self._check(values, data)
        found, kept = stage.forward(key, self.state, values, data)
        if self._settings.training:
            self._kept[key] = kept
            for name, value in self.subgraph.graph.state_updates:
                if value in stage.updates:
                    self.state.replace(name, np.asarray(found[value]))
        changing = self.state.addresses()
        return Forward(
            values={value: _hand_out(found[value], changing) for value in stage.sends},
            outputs={name: _hand_out(found[value], changing) for name, value in stage.outputs.items()},
        )

    def _check(self, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> None:
        graph, stage = self.subgraph.graph, self.subgraph.stage
        for edge in self.subgraph.takes:
            _check_shape(f"value {edge.value}", values.get(edge.value), edge.spec.shape, stage)
        for name in self.subgraph.placeholders:
            _check_shape(f"input {name!r}", data.get(name), graph.op(name).outputs[0].shape, stage)
            check_array(f"input {name!r}", data[name], graph.op(name).outputs[0])

    def backward(self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> Mapping[ValueRef, Array]:
        """Backward of one micro-batch (see ``StageRunner``).

        Raises:
            GraphError: the micro-batch has no forward, or a gradient is missing or has another shape.
        """
        kept = self._kept.pop(key, None)
        if kept is None:
            raise GraphError(f"stage {self.subgraph.stage} has no forward of {key} to go back from")
        self._late[key], sent = self._stage.backward(kept, gradients, weight)
        if not self._settings.split_backward:
            self.backward_weights(key)
        return sent

    def backward_weights(self, key: MicroBatch) -> None:
        """Add the gradients of parameters that ``backward`` has computed."""
        for use, gradient in self._late.pop(key, {}).items():
            self.state.accumulate(use, gradient)
        watched, self._watch = self._watch, []
        for names, index in watched:
            if names and names <= self.state.single() and self._ready is not None:
                self._ready(index)

    # Gradients

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
        """Add the uses of each tied parameter, the last use first."""
        self.state.finish(uses)

    def gradients(self) -> Mapping[str, Array]:
        """Copies of the finished gradients."""
        return {name: array.copy() for name, array in self.state.gradients().items()}

    def gradient_views(self, names: Collection[str]) -> Mapping[str, Array]:
        """Finished gradients, sharing memory."""
        return {name: array for name, array in self.state.gradients().items() if name in names}

    def set_gradients(self, gradients: Mapping[str, Array]) -> None:
        """Set finished gradients.

        Raises:
            GraphError: a parameter is not trained here, or a gradient has another shape or element type.
        """
        self.state.set_gradients(gradients)

    def gradient_norms(self) -> Mapping[str, float]:
        """Euclidean norms of the finished gradients."""
        return {name: float(np.linalg.norm(array.reshape(-1))) for name, array in self.state.gradients().items()}

    def spoilt_gradients(self) -> tuple[str, ...]:
        """The parameters whose finished gradient holds a NaN or an infinity."""
        return tuple(name for name, array in self.state.gradients().items() if not np.isfinite(array).all())

    def watch(self, groups: Sequence[Collection[str]], ready: Callable[[int], None]) -> None:
        """Report complete gradients at the end of the next backward, which XLA computes as one (see ``StageRunner``)."""
        self._watch = [(frozenset(names), index) for index, names in enumerate(groups)]
        self._ready = ready

    # Update

    def update(self, rates: Sequence[float], scale: Array | None, names: Collection[str] | None = None) -> None:
        """One optimizer step; see ``StageRunner``.

        Raises:
            InputError: not as many rates as groups.
        """
        with self.state.updating(names) as gradients:
            factor = None if scale is None else np.float32(scale)
            scaled = gradients if factor is None else {name: array * factor for name, array in gradients.items()}
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


def _check_shape(what: str, array: Array | None, shape: tuple[int, ...], stage: int) -> None:
    if array is None:
        raise GraphError(f"{what} of stage {stage} is missing")
    if array.shape != shape:
        raise GraphError(f"{what} is declared {list(shape)} but the given array is {list(array.shape)}")


def _hand_out(value: Any, changing: frozenset[int]) -> Array:
    """``value`` as an array; copied if its memory is a state's."""
    found = np.asarray(value)
    return found.copy() if found.ctypes.data in changing else found
