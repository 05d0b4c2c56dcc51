"""One stage on one device: forward, backward, accumulation, update."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import numpy as np

from farflung.engines.base import Array, EngineSettings, Forward, MicroBatch
from farflung.engines.host.gradients import HostGradients
from farflung.engines.host.states import check_array
from farflung.engines.jax.compiled_stage import CompiledStage, Kept
from farflung.engines.jax.states import JaxStates
from farflung.engines.stateful_runner import trained_states
from farflung.errors import GraphError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Use, ValueRef

__all__ = ["JaxRunner"]


class JaxRunner(HostGradients):
    """Runs one stage (see ``farflung.engines.base.StageRunner``)."""

    state: JaxStates

    def __init__(self, subgraph: SubGraph, settings: EngineSettings, device: Any, share: JaxRunner | None) -> None:
        trained = trained_states(subgraph, settings)
        shared = None if share is None else share.state
        super().__init__(subgraph, settings, JaxStates(subgraph, device, trained, settings.budget, shared))
        self._stage = CompiledStage(subgraph, settings, device, trained)
        self._kept: dict[MicroBatch, Kept] = {}
        #: Gradients of parameters that ``backward_weights`` adds.
        self._late: dict[MicroBatch, Mapping[Use, Array]] = {}

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
        self.complete(self._late.pop(key, {}))

    def discard(self) -> None:
        """Clear gradients and kept activations."""
        self._kept.clear()
        self._late.clear()
        self.state.clear()


def _check_shape(what: str, array: Array | None, shape: tuple[int, ...], stage: int) -> None:
    if array is None:
        raise GraphError(f"{what} of stage {stage} is missing")
    if array.shape != shape:
        raise GraphError(f"{what} is declared {list(shape)} but the given array is {list(array.shape)}")


def _hand_out(value: Any, changing: frozenset[int]) -> Array:
    """``value`` as an array; copied if its memory is a state's."""
    found = np.asarray(value)
    return found.copy() if found.ctypes.data in changing else found
