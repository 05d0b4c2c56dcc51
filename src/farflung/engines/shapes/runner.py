"""One stage without arithmetic: inputs are checked, and zeros of the declared shapes and element types are handed out."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence

import numpy as np

from farflung.engines.base import Array, EngineSettings, Forward, MicroBatch, gradient_parts
from farflung.engines.host.gradients import HostGradients
from farflung.engines.host.operators import host_dtype
from farflung.engines.host.states import StageStates, check_array
from farflung.engines.stateful_runner import trained_states
from farflung.errors import GraphError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import TensorSpec, Use, ValueRef

__all__ = ["ShapeRunner", "zeros"]


def zeros(spec: TensorSpec, parts: int = 1) -> Array:
    """Zeros as ``spec`` declares them, in the memory of one element; several ``parts`` along a new first axis."""
    shape = spec.shape if parts == 1 else (parts, *spec.shape)
    return np.broadcast_to(np.zeros((), host_dtype(spec.dtype)), shape)


class _ZeroStates(StageStates):
    """States that nobody writes to: memory that stays untouched takes none."""

    def initialize(self, names: Sequence[str], seed: int) -> None:
        """Zeros for ``names``."""
        del seed
        for name in names:
            self._set(self._known(name), zeros(self._graph.state[name].spec))

    def _set(self, name: str, value: Array) -> None:
        if name not in self._constants and name not in self.arrays:
            self.arrays[name] = self._own(self._counted(value))

    def _own(self, value: Array) -> Array:
        return np.zeros(value.shape, value.dtype)

    def accumulate(self, use: Use, gradient: Array) -> None:
        """Zeros and zeros are zeros."""
        self._sums.setdefault(use, gradient)


class ShapeRunner(HostGradients):
    """Runs one stage (see ``farflung.engines.base.StageRunner``)."""

    def __init__(self, subgraph: SubGraph, settings: EngineSettings, share: ShapeRunner | None) -> None:
        trained = trained_states(subgraph, settings)
        shared = None if share is None else share.state
        super().__init__(subgraph, settings, _ZeroStates(subgraph, trained, settings.budget, shared))
        graph, own = subgraph.graph, range(subgraph.start, subgraph.stop)
        self._spec = {ValueRef(op.name, index): spec for op in graph.ops for index, spec in enumerate(op.outputs)}
        self._outputs = {name: value for name, value in graph.outputs if graph.position[value.op] in own}
        self._sends = tuple(dict.fromkeys(edge.value for edge in subgraph.gives))
        uses = [use for name in subgraph.states if name in trained for use in graph.gradient_uses[name]]
        self._learns = tuple(use for use in uses if graph.position[use.op] in own)
        self._kept: set[MicroBatch] = set()

    def exposed(self, names: Collection[str]) -> Mapping[str, Array]:
        """None: what is written to a state would be lost."""
        del names
        return {}

    def forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Forward:
        """Check the inputs and return zeros.

        Raises:
            GraphError: a value, an input or a state is missing or has another shape or element type.
        """
        for edge in self.subgraph.takes:
            _check(f"value {edge.value}", values.get(edge.value), edge.spec, self.subgraph.stage)
        for name in self.subgraph.placeholders:
            _check(f"input {name!r}", data.get(name), self.subgraph.graph.op(name).outputs[0], self.subgraph.stage)
        for name in self.subgraph.states:
            self.state.array(name)
        if self._settings.training:
            self._kept.add(key)
        return Forward(
            values={value: zeros(self._spec[value]) for value in self._sends},
            outputs={name: zeros(self._spec[value]) for name, value in self._outputs.items()},
        )

    def backward(self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> Mapping[ValueRef, Array]:
        """Return zeros.

        Raises:
            GraphError: the micro-batch has no forward, or a gradient is missing or has another shape.
        """
        if key not in self._kept:
            raise GraphError(f"stage {self.subgraph.stage} has no forward of {key} to go back from")
        for edge in self.subgraph.requires_gradients:
            for gradient in gradients.get(edge.value, (None,)):
                _check_gradient(f"gradient of {edge.value}", gradient, edge.spec, self.subgraph.stage)
        self._kept.remove(key)
        if not self._settings.split_backward:
            self.backward_weights(key)
        return {edge.value: zeros(edge.spec, gradient_parts(self.subgraph, edge.value)) for edge in self.subgraph.sends_gradients}

    def backward_weights(self, key: MicroBatch) -> None:
        """Each use of a parameter gets a gradient."""
        del key
        self.complete({use: zeros(self.subgraph.graph.state[use.state].spec) for use in self._learns})

    def update(self, rates: Sequence[float], scale: Array | None, names: Collection[str] | None = None) -> None:
        """Clear the gradients: states stay zeros."""
        del rates, scale
        with self.state.updating(names):
            pass

    def discard(self) -> None:
        """Clear gradients and what forwards have left."""
        self._kept.clear()
        self.state.clear()


def _check(what: str, array: Array | None, spec: TensorSpec, stage: int) -> None:
    if array is None:
        raise GraphError(f"{what} of stage {stage} is missing")
    check_array(what, array, spec)


def _check_gradient(what: str, array: Array | None, spec: TensorSpec, stage: int) -> None:
    if array is None:
        raise GraphError(f"{what} of stage {stage} is missing")
    if array.shape != spec.shape and array.shape[1:] != spec.shape:
        raise GraphError(f"{what} of stage {stage} is declared {list(spec.shape)} but the given array is {list(array.shape)}")
