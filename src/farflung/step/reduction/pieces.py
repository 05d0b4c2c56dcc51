"""Pieces of sums: which numbers of a list of arrays are added in one place, and how they are packed and unpacked.

A piece is a tuple of runs ``(array, start, stop)`` over arrays that are the same list on every replica. Gradients and means, in
whatever order they are added, are cut, viewed and written back here only.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

import numpy as np

from farflung.engines.base import Array
from farflung.errors import WireError
from farflung.graph.ir import TensorSpec
from farflung.messages.arrays import all_arrays, decode_exact
from farflung.messages.data import ArraysMessage
from farflung.messages.schema import UNSET, kind_of
from farflung.sync.reductions import Run, runs_of

__all__ = ["GradientPiece", "Piece", "Sums", "first_servers", "pieces_of", "plus", "unpack_sums"]

#: The sums of a piece's runs, in its order; ``None`` where no gradient flowed.
Sums = list[Array | None]

#: Bytes of a piece of a mean: at most, and at least where an exchange is large enough.
_LARGEST, _SMALLEST = 256 << 10, 8 << 10
#: Pieces of a mean for each member, where that makes none too small.
_TURNS = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """A part of a mean: ``runs`` of numbers of flat arrays, and the rank that adds them."""

    server: int
    runs: tuple[Run, ...]
    nbytes: int

    def views(self, arrays: Sequence[Array]) -> list[Array]:
        """The piece's runs in flat ``arrays``, without a copy."""
        return [arrays[index][start:stop] for index, start, stop in self.runs]


@dataclass(frozen=True, slots=True, kw_only=True)
class GradientPiece:
    """A part of a stage's gradients: ``runs`` of numbers of the stage's uses.

    ``specs``: shape and type of each run as it travels. ``states``: the parameter of each run, for error messages.
    """

    runs: tuple[Run, ...]
    specs: tuple[TensorSpec, ...]
    states: tuple[str, ...]

    def cut(self, arrays: Sequence[Array | None]) -> Sums:
        """The piece's runs of ``arrays`` (one for each use of the stage): views where the array is contiguous."""
        found: Sums = []
        for (index, start, stop), spec in zip(self.runs, self.specs, strict=True):
            array = arrays[index]
            if array is not None and array.shape != spec.shape:
                array = array.reshape(-1)[start:stop]
            found.append(array)
        return found

    def write(self, total: Sums, arrays: list[Array | None], specs: Sequence[TensorSpec]) -> None:
        """Put ``total`` into ``arrays``; ``specs``: of the arrays as a whole. A total of a whole array takes its place."""
        for (index, start, stop), array in zip(self.runs, total, strict=True):
            if array is None:
                continue
            spec = specs[index]
            if stop - start == spec.numel:
                arrays[index] = array.reshape(spec.shape)
                continue
            whole = arrays[index]
            if whole is None:  # no gradient flowed here
                whole = arrays[index] = np.zeros(spec.shape, array.dtype)
            own = whole.reshape(-1)[start:stop]
            if not np.may_share_memory(own, array):
                own[...] = array


def plus(before: Array | None, array: Array | None) -> Array | None:
    """Return the sum, in the memory of ``before`` where that may be written."""
    if before is None or array is None:
        return array if before is None else before
    with np.errstate(over="ignore", invalid="ignore"):  # the step is judged when all gradients are known
        return np.add(before, array, out=before if before.flags.writeable else None)


def unpack_sums(piece: GradientPiece, message: ArraysMessage) -> Sums:
    """Return the sums in ``message``; shapes and types are checked against ``piece.specs`` before memory is taken.

    Raises:
        WireError: they are others, or some are compressed.
    """
    if any(item is not None and item.payload is not UNSET for item in message.arrays):
        raise WireError(f"the sums in a {kind_of(message)!r} are compressed: they never are")
    return decode_exact(all_arrays(message, len(piece.specs)), piece.specs, piece.states)


def pieces_of(arrays: Sequence[Array], members: int, first: int = 0) -> tuple[Piece, ...]:
    """Cut flat ``arrays`` into the pieces of a mean; rank ``first`` serves the first piece, the others follow in turn.

    Large exchanges give every member as many pieces.
    """
    count = _count(sum(array.nbytes for array in arrays), members)
    found = []
    for number, runs in enumerate(runs_of([array.size for array in arrays], count)):
        nbytes = sum((stop - start) * arrays[index].itemsize for index, start, stop in runs)
        found.append(Piece(server=(first + number) % members, runs=runs, nbytes=nbytes))
    return tuple(found)


def first_servers(sizes: Sequence[int], members: int) -> tuple[int, ...]:
    """The rank that serves the first piece of each layer (``sizes``: their bytes), so that all serve about as many."""
    counts = [_count(size, members) for size in sizes]
    return tuple(before % members for before in accumulate(counts, initial=0))[: len(sizes)]


def _count(nbytes: int, members: int) -> int:
    """Few pieces of a small exchange; of a large one several for each member: means come back while pieces still leave."""
    if nbytes < members * _SMALLEST:
        return max(1, nbytes // _SMALLEST)
    return members * max(math.ceil(nbytes / (members * _LARGEST)), min(_TURNS, nbytes // (members * _SMALLEST)))
