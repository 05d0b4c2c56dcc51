"""Digests of what a unit of work takes from other stages and gives to them, and of its gradients of parameters."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from itertools import groupby
from operator import itemgetter

import numpy as np
from blake3 import blake3

from farflung.engines.base import Array
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Use, ValueRef
from farflung.plan.verification import Digests, Transfer, TransferKind
from farflung.step.verification.unit_inputs import UnitInputArrays

__all__ = ["given_gradients", "given_values", "part_digest", "taken"]

#: BLAKE3 takes a quarter of the time of BLAKE2b. All gradients of parameters pass through it.
_BYTES = 16


def given_values(piece: SubGraph, micro_batch: int, values: Mapping[ValueRef, Array]) -> Digests:
    """Return the digests of the ``values`` that a forward gave, by reading stage."""
    edges = sorted(piece.gives, key=lambda edge: (edge.target, str(edge.value)))
    found = {}
    for target, group in groupby(edges, key=lambda edge: edge.target):
        found[Transfer(piece.stage, target, micro_batch, TransferKind.VALUES)] = _digest(values[edge.value] for edge in group)
    return found


def given_gradients(piece: SubGraph, micro_batch: int, gradients: Mapping[ValueRef, Array]) -> Digests:
    """Return the digests of the ``gradients`` that a backward gave, by the stage that made the values."""
    edges = sorted(piece.sends_gradients, key=lambda edge: (edge.source, str(edge.value)))
    found = {}
    for source, group in groupby(edges, key=lambda edge: edge.source):
        place = Transfer(piece.stage, source, micro_batch, TransferKind.GRADIENTS)
        found[place] = _digest(gradients[edge.value] for edge in group)
    return found


def part_digest(stage: int, micro_batch: int, gradients: Mapping[Use, Array]) -> Digests:
    """Return the digest of the gradients of parameters that a unit contributes."""
    uses = sorted(gradients, key=lambda use: (use.state, use.op))
    return {Transfer(stage, stage, micro_batch, TransferKind.PART): _digest(gradients[use] for use in uses)}


def taken(piece: SubGraph, micro_batch: int, inputs: UnitInputArrays) -> Digests:
    """Return the digests of the inputs of a unit, by the stage that gave them."""
    given = {
        TransferKind.VALUES: [(edge.source, array) for edge, array in inputs.values_by_edge(piece)],
        TransferKind.GRADIENTS: [(edge.target, array) for edge, array in inputs.gradients_by_edge(piece)],
    }
    found = {}
    for kind, arrays in given.items():
        for stage, group in groupby(sorted(arrays, key=itemgetter(0)), key=itemgetter(0)):
            found[Transfer(stage, piece.stage, micro_batch, kind)] = _digest(array for _, array in group)
    return found


def _digest(arrays: Iterable[Array]) -> bytes:
    """Return the digest of element types, shapes and bits; strides are no part of a result."""
    state = blake3()
    for array in arrays:
        state.update(f"{array.dtype.name}{list(array.shape)}".encode())
        state.update(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
    return state.digest(length=_BYTES)
