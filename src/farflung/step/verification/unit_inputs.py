"""The inputs of a unit that come from other stages, in the order in which messages carry them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from farflung.engines.base import Array
from farflung.errors import WireError
from farflung.graph.cut import Edge, SubGraph
from farflung.graph.ir import ValueRef
from farflung.memory_budget import MemoryBudget
from farflung.messages.arrays import all_arrays, decode_array, pack_arrays
from farflung.messages.data import UnitInputs
from farflung.plan.verification import Unit

__all__ = ["UnitInputArrays", "pack_inputs", "unpack_inputs"]

#: Gradients of several reads of a value in one stage are stacked (``engines.base.gradient_parts``). The engine checks how many.
_MOST_PARTS = 64


@dataclass(slots=True)
class UnitInputArrays:
    """``values`` of a forward; ``gradients`` of a backward, each value's by descending reading stage."""

    values: Mapping[ValueRef, Array] = field(default_factory=dict)
    gradients: Mapping[ValueRef, Sequence[Array]] = field(default_factory=dict)

    def took_values(self, values: Mapping[ValueRef, Array] | None) -> None:
        """Store what the forward took."""
        self.values = dict(values or {})

    def took_gradients(self, gradients: Mapping[ValueRef, Sequence[Array]]) -> None:
        """Store what the backward took."""
        self.gradients = {value: list(arrays) for value, arrays in gradients.items()}

    def values_by_edge(self, piece: SubGraph) -> list[tuple[Edge, Array]]:
        """Return the values with their edges, in the order of messages."""
        return [(edge, self.values[edge.value]) for edge in value_edges(piece)] if self.values else []

    def gradients_by_edge(self, piece: SubGraph) -> list[tuple[Edge, Array]]:
        """Return the gradients with their edges, in the order of messages."""
        if not self.gradients:
            return []
        left: dict[ValueRef, Iterator[Array]] = {value: iter(arrays) for value, arrays in self.gradients.items()}
        return [(edge, next(left[edge.value])) for edge in gradient_edges(piece)]


def value_edges(piece: SubGraph) -> list[Edge]:
    """Return the edges whose values a forward takes."""
    return sorted(piece.takes, key=lambda edge: str(edge.value))


def gradient_edges(piece: SubGraph) -> list[Edge]:
    """Return the edges whose gradients a backward takes, each value's by descending reading stage."""
    return sorted(piece.requires_gradients, key=lambda edge: (str(edge.value), -edge.target))


def pack_inputs(run: str, unit: Unit, piece: SubGraph, inputs: UnitInputArrays | None) -> UnitInputs:
    """Return ``inputs`` as a message (None: they are not retained any more)."""
    head = partial(UnitInputs, run=run, step=unit.step, stage=unit.stage, micro_batch=unit.micro_batch)
    if inputs is None:
        return pack_arrays(head, [None], None)
    pairs = [*inputs.values_by_edge(piece), *inputs.gradients_by_edge(piece)]
    return pack_arrays(head, [array for _, array in pairs], None)


def unpack_inputs(message: UnitInputs, piece: SubGraph, largest: int, budget: MemoryBudget) -> UnitInputArrays | None:
    """Return what ``pack_inputs`` was given. ``largest``: bytes that one array can span (``most_value_bytes``).

    Raises:
        WireError: the message has other arrays than the unit takes.
        MemoryExceeded: ``budget`` has no room.
    """
    if message.arrays == (None,):
        return None
    taken, returned = value_edges(piece), gradient_edges(piece)
    packed = all_arrays(message, len(taken) + len(returned))
    arrays = []
    for edge, one in zip((*taken, *returned), packed, strict=True):
        if one is None:
            raise WireError(f"value {edge.value} of a unit is missing")
        limit = edge.spec.nbytes * (_MOST_PARTS if edge in returned else 1)
        if one.array.meta.nbytes > limit:
            raise WireError(f"oversized value {edge.value} of a unit: {one.array.meta.nbytes} bytes, the limit is {limit}")
        arrays.append(decode_array(one, max(largest, limit), budget))
    values = {edge.value: array for edge, array in zip(taken, arrays, strict=False)}
    gradients: dict[ValueRef, list[Array]] = {}
    for edge, array in zip(returned, arrays[len(taken) :], strict=True):
        gradients.setdefault(edge.value, []).append(array)
    return UnitInputArrays(values, gradients)
