"""One micro-batch on its way through a stage: the forward, and where its gradients enter and end."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from farflung.engines.base import Array, MicroBatch, gradient_parts
from farflung.engines.host.states import StageStates, check_array
from farflung.engines.reference.evaluation import Evaluator
from farflung.engines.reference.tape import Value, detach, gradients
from farflung.errors import GraphError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Op, StateRef, TensorSpec, Use, ValueRef

__all__ = ["StagePass"]


@dataclass(frozen=True, slots=True)
class _Read:
    """A read of a received value whose readers each send a gradient back."""

    op: str
    number: int
    leaf: Value


@dataclass
class StagePass:
    """A forward pass. ``states``: values that replace the present ones.

    ``found``: all values. ``leaves``: each use of a trained parameter. ``received``: the leaves of each received value that
    carries a gradient, in the order in which their gradients are sent back.
    """

    subgraph: SubGraph
    state: StageStates
    evaluator: Evaluator
    key: MicroBatch
    states: Mapping[str, Array] = field(default_factory=dict)
    found: dict[ValueRef, Value] = field(default_factory=dict)
    leaves: dict[Use, Value] = field(default_factory=dict)
    received: dict[ValueRef, list[Value]] = field(default_factory=dict)
    _plain: dict[str, Value] = field(default_factory=dict)
    _reads: dict[ValueRef, list[_Read]] = field(default_factory=dict)

    def run(self, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> None:
        """Compute all values.

        Raises:
            GraphError: a value, an input or a state is missing or has another shape; an operator fails.
        """
        graph = self.subgraph.graph
        self._receive(values, data)
        for edge in self.subgraph.sends_gradients:
            if gradient_parts(self.subgraph, edge.value) > 1:
                self._reads[edge.value] = []
            else:
                leaf = self.found[edge.value] = detach(self.found[edge.value])
                self.received[edge.value] = [leaf]
        self._compute(graph.ops[position] for position in self.subgraph.positions)
        for value, reads in self._reads.items():
            reads.sort(key=lambda read: (-graph.position[read.op], read.number))
            self.received[value] = [read.leaf for read in reads]

    def _receive(self, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> None:
        graph = self.subgraph.graph
        for edge in self.subgraph.requires_activations:
            if edge.alias_of is None:
                self.found[edge.value] = self._given(f"value {edge.value}", values.get(edge.value), edge.spec)
        for name in self.subgraph.placeholders:
            spec = graph.op(name).outputs[0]
            if name in data:
                check_array(f"input {name!r}", data[name], spec)
            self.found[ValueRef(name)] = self._given(f"input {name!r}", data.get(name), spec)
        for edge in self.subgraph.requires_activations:
            self._compute(graph.ops[position] for position in (edge.views if edge.alias_of is not None else ()))

    def _compute(self, ops: Iterable[Op]) -> None:
        for op in ops:
            if op.target == "farflung.input" or ValueRef(op.name) in self.found:
                continue
            results = self.evaluator.run(op, self.key, self._read)
            self.found.update((ValueRef(op.name, index), item) for index, item in enumerate(results))

    def _given(self, what: str, array: Array | None, spec: TensorSpec) -> Value:
        if array is None:
            raise GraphError(f"{what} of stage {self.subgraph.stage} is missing")
        if array.shape != spec.shape:
            raise GraphError(f"{what} is declared {list(spec.shape)} but the given array is {list(array.shape)}")
        return Value(array.astype(self.evaluator.dtype(spec.dtype)))

    def _read(self, op: Op, ref: ValueRef | StateRef, number: int) -> Value:
        """What ``op`` reads at its read ``number`` of ``ref``."""
        if isinstance(ref, StateRef):
            return self._read_state(op, ref.name)
        if ref in self._reads and op.name in self.subgraph.graph.grad_ops:
            leaf = detach(self.found[ref])
            self._reads[ref].append(_Read(op.name, number, leaf))
            return leaf
        return self.found[ref]

    def _read_state(self, op: Op, name: str) -> Value:
        graph, use = self.subgraph.graph, Use(name, op.name)
        learns = name in self.state.trained and use in graph.gradient_uses[name]
        known = self.leaves.get(use) if learns else self._plain.get(name)
        if known is None:
            array = self.states[name] if name in self.states else self.state.array(name)
            known = Value(array.astype(self.evaluator.dtype(graph.state[name].spec.dtype)))
            if learns:
                self.leaves[use] = known
            else:
                self._plain[name] = known
        return known

    def go_back(self, arrived: Mapping[ValueRef, Sequence[Array]], loss: ValueRef | None, weight: float) -> dict[Value, Array]:
        """The gradients of ``leaves`` and ``received``, where any flows back.

        Raises:
            GraphError: a gradient is missing or has another shape.
        """
        seeds: dict[Value, Array] = {}
        for value in dict.fromkeys(edge.value for edge in self.subgraph.requires_gradients):
            seeds[self.found[value]] = self._arrived(value, arrived.get(value, ()))
        if loss is not None:
            root = self.found[loss]
            own = np.full(root.array.shape, weight, root.array.dtype)
            seeds[root] = seeds[root] + own if root in seeds else own
        leaves = [*self.leaves.values(), *(leaf for group in self.received.values() for leaf in group)]
        with np.errstate(all="ignore"):
            return gradients(seeds, leaves)

    def _arrived(self, value: ValueRef, arrays: Sequence[Array]) -> Array:
        """The sum of what came back for ``value``, in the given order."""
        root = self.found[value].array
        total: Array | None = None
        for array in arrays:
            for part in array if array.ndim == root.ndim + 1 else (array,):
                if part.shape != root.shape:
                    raise GraphError(f"the gradient of {value} has shape {list(part.shape)}, its value {list(root.shape)}")
                total = part.astype(root.dtype) if total is None else total + part
        if total is None:
            raise GraphError(f"no gradient came back for {value} of stage {self.subgraph.stage}")
        return total
