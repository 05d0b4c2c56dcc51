"""The forward and the backward of a stage, compiled by XLA before the first micro-batch.

The forward returns what its backward needs as arrays (``jax.vjp`` across the border of two compiled functions), so the backward
repeats nothing. With ``recompute`` only the inputs are kept, and one compiled function computes forward and backward.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax
import numpy as np

from farflung.engines.base import Array, EngineSettings, MicroBatch, gradient_parts
from farflung.engines.jax.arrays import place, placed_copy, struct
from farflung.engines.jax.draws import Draws
from farflung.engines.jax.program import Draw, Read, Source, compiled, reached_uses, trace
from farflung.engines.jax.states import JaxStates
from farflung.engines.jax.verify import narrow_types
from farflung.errors import GraphError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import TensorSpec, Use, ValueRef

__all__ = ["CompiledStage", "Kept"]


@dataclass(slots=True)
class Kept:
    """What a micro-batch's backward needs: the arrays of ``jax.vjp``, or (recompute) the inputs."""

    residuals: Any = None
    inputs: tuple[list[Any], list[Any]] | None = None


class CompiledStage:
    """The compiled functions of a stage. ``trained``: the states that get a gradient."""

    def __init__(self, subgraph: SubGraph, settings: EngineSettings, device: Any, trained: frozenset[str]) -> None:
        self._subgraph, self._settings, self._device = subgraph, settings, device
        self._narrow = settings.precision == "bf16"
        graph, own = subgraph.graph, range(subgraph.start, subgraph.stop)
        self._ops = [graph.ops[position] for position in subgraph.positions]
        self.outputs = {name: value for name, value in graph.outputs if graph.position[value.op] in own}
        self.sends = tuple(dict.fromkeys(edge.value for edge in subgraph.gives))
        self.updates = tuple(value for _, value in graph.state_updates if graph.position[value.op] in subgraph.positions)
        loss = self.outputs.get("loss")
        back = [edge.value for edge in subgraph.requires_gradients] if settings.training else []
        self._loss = loss if settings.training else None
        self._roots = tuple(dict.fromkeys([*back, *([loss] if loss is not None and settings.training else [])]))
        self._others = tuple(
            v for v in dict.fromkeys([*self.sends, *self.outputs.values(), *self.updates]) if v not in self._roots
        )
        self._draws = Draws(graph, self._ops, settings.seed)
        self._returns = self._parts() if settings.training else {}
        received = {source for sources in self._returns.values() for source in sources}
        uses = [Use(name, op.name) for op in self._ops for name in dict.fromkeys(op.states())]
        reached = reached_uses(self._ops, self._roots)
        learns = {
            use for name in trained for use in graph.gradient_uses[name] if graph.position[use.op] in own and use in reached
        }
        self._diff: list[Source] = [*(use for use in uses if use in learns), *received]
        values = [edge.value for edge in subgraph.requires_activations if edge.value not in self._returns]
        rest: list[Source] = [*(use for use in uses if use not in learns), *subgraph.placeholders, *values]
        self._rest: list[Source] = [*rest, *self._draws.specs]
        #: The element types of received values where they are not the declared ones.
        self._types = narrow_types(graph) if self._narrow and subgraph.requires_activations else {}
        self._compile()

    def _parts(self) -> dict[ValueRef, list[Source]]:
        """For each value whose gradient is sent back, the inputs that stand for it."""
        graph, found = self._subgraph.graph, dict[ValueRef, list[Source]]()
        for edge in self._subgraph.sends_gradients:
            value = edge.value
            found[value] = [value]
            if gradient_parts(self._subgraph, value) > 1:
                reads = [
                    (-graph.position[op.name], count, Read(value, op.name, count))
                    for op in self._ops
                    if op.name in graph.grad_ops
                    for count in range(sum(read == value for read in op.values()))
                ]
                found[value] = [read for _, _, read in sorted(reads, key=lambda item: item[:2])]
        return found

    # Compilation

    def _compile(self) -> None:
        shapes = [self._shape(source) for source in self._diff], [self._shape(source) for source in self._rest]
        if not self._settings.training:
            self._forward, _ = compiled(lambda rest: self._run([], rest)[1], shapes[1])
        elif self._settings.recompute:
            self._forward, (roots, _) = compiled(self._run, *shapes)
            self._backward, _ = compiled(lambda diff, rest, seeds: self._vjp(diff, rest)[1](seeds), *shapes, self._seeds(roots))
        else:
            self._forward, (roots, residuals, _) = compiled(self._vjp, *shapes)
            self._backward, _ = compiled(lambda residuals, seeds: residuals(seeds), residuals, self._seeds(roots))

    def _run(self, diff: Sequence[Any], rest: Sequence[Any]) -> tuple[list[Any], list[Any]]:
        """The values whose gradients come back, and the other ones that are wanted."""
        inputs = dict(zip((*self._diff, *self._rest), (*diff, *rest), strict=True))
        values = trace(self._ops, inputs, narrow=self._narrow)
        return [values[value] for value in self._roots], [values[value] for value in self._others]

    def _vjp(self, diff: Sequence[Any], rest: Sequence[Any]) -> Any:
        return jax.vjp(lambda given: self._run(given, rest), list(diff), has_aux=True)

    def _shape(self, source: Source) -> Any:
        value = source.value if isinstance(source, Read) else source
        kind = self._types.get(value) if isinstance(value, ValueRef) else None
        return struct(self._spec(source), self._device, kind)

    def _spec(self, source: Source) -> TensorSpec:
        graph = self._subgraph.graph
        if isinstance(source, Use):
            return graph.state[source.state].spec
        if isinstance(source, Draw):
            return self._draws.specs[source]
        if isinstance(source, str):
            return graph.op(source).outputs[0]
        return graph.spec(source.value if isinstance(source, Read) else source)

    def _seeds(self, roots: Sequence[Any]) -> list[Any]:
        sharding = jax.sharding.SingleDeviceSharding(self._device)
        self._kinds = [np.dtype(root.dtype) for root in roots]
        return [jax.ShapeDtypeStruct(root.shape, root.dtype, sharding=sharding) for root in roots]

    # Runs

    def forward(
        self, key: MicroBatch, states: JaxStates, values: Mapping[ValueRef, Array], data: Mapping[str, Array]
    ) -> tuple[dict[ValueRef, Any], Kept]:
        """The values that are wanted, and what the backward needs."""
        given: dict[Source, Any] = {name: placed_copy(data[name], self._device) for name in self._subgraph.placeholders}
        given |= dict[Source, Any](self._received(values).items())
        arrays = {ValueRef(name): data[name] for name in self._subgraph.placeholders} | dict(values)
        drawn = zip(self._draws.specs, self._draws.numbers(key, arrays), strict=True)
        given |= {draw: place(numbers, self._device) for draw, numbers in drawn}

        def fill(source: Source) -> Any:
            if isinstance(source, Use):
                return states.on_device(source.state)
            return given[source.value if isinstance(source, Read) else source]

        diff, rest = [fill(source) for source in self._diff], [fill(source) for source in self._rest]
        kept = Kept()
        if not self._settings.training:
            roots, others = [], self._forward(rest)
        elif self._settings.recompute:
            (roots, others), kept.inputs = self._forward(diff, rest), (diff, rest)
        else:
            roots, kept.residuals, others = self._forward(diff, rest)
        return dict(zip((*self._roots, *self._others), (*roots, *others), strict=True)), kept

    def _received(self, values: Mapping[ValueRef, Array]) -> dict[ValueRef, Any]:
        found = {edge.value: placed_copy(values[edge.value], self._device) for edge in self._subgraph.takes}
        for edge in self._subgraph.requires_activations:
            if edge.alias_of is not None:
                views = [self._subgraph.graph.ops[position] for position in edge.views]
                found[edge.value] = trace(views, {edge.alias_of: found[edge.alias_of]}, narrow=self._narrow)[edge.value]
        return {value: self._as_declared(value, array) for value, array in found.items()}

    def _as_declared(self, value: ValueRef, array: Any) -> Any:
        """``array`` in the element type that the program was compiled for: another engine may send a wider one."""
        wanted = self._shape(value).dtype
        return array if array.dtype == wanted else array.astype(wanted)

    def backward(
        self, kept: Kept, gradients: Mapping[ValueRef, Sequence[Array]], weight: float
    ) -> tuple[dict[Use, Array], dict[ValueRef, Array]]:
        """The gradients of states by use, and those of received values.

        Raises:
            GraphError: a gradient is missing or has another shape.
        """
        seeds = [self._seed(value, kind, gradients, weight) for value, kind in zip(self._roots, self._kinds, strict=True)]
        placed = [place(seed, self._device) for seed in seeds]
        if kept.inputs is not None:
            (made,) = self._backward(*kept.inputs, placed)
        else:
            (made,) = self._backward(kept.residuals, placed)
        found = {source: np.asarray(item) for source, item in zip(self._diff, made, strict=True)}
        uses = {source: array for source, array in found.items() if isinstance(source, Use)}
        sent = {}
        for value, sources in self._returns.items():
            parts = [found[source] for source in sources]
            sent[value] = parts[0] if len(parts) == 1 else np.stack(parts)
        return uses, sent

    def _seed(self, value: ValueRef, kind: Any, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> Array:
        """The sum of what came back for ``value``, in the given order; of the loss its weight."""
        shape = self._subgraph.graph.spec(value).shape
        total = np.full(shape, weight, kind) if value == self._loss else None
        for array in gradients.get(value, ()):
            for part in array if array.ndim == len(shape) + 1 else (array,):
                if part.shape != shape:
                    raise GraphError(f"the gradient of {value} has shape {list(part.shape)}, its value {list(shape)}")
                total = part.astype(kind) if total is None else total + part.astype(kind)
        if total is None:
            raise GraphError(f"no gradient came back for {value} of stage {self._subgraph.stage}")
        return total
