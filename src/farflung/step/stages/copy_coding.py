"""How copies of states go over a link: piece by piece, coded by the version that both ends hold (``codecs.planes``).

A piece is sent plainly where coding saves nothing, or where the link is faster than the coder, so that coding never is what a
copy waits for. Who gets them puts each piece in its place as it comes, so that no more than one copy is held while it comes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import partial

import numpy as np

from farflung.clock import precise_time
from farflung.codecs.planes import MAX_PIECE, expand, shrink
from farflung.engines.base import Array
from farflung.errors import CodecError, WireError
from farflung.memory_budget import MemoryBudget
from farflung.messages.array_headers import ArrayHeader
from farflung.messages.data import CopyPiece
from farflung.messages.schema import UNSET
from farflung.wire.arrays import DTYPES, ArrayMeta, check_dense, pack, unpack
from farflung.wire.frames import uninitialized

__all__ = ["Coder", "Incoming", "MakePiece", "Version"]

#: Bytes of a piece: while one is decoded, nothing else is taken from its link.
_PIECE = 1 << 20
#: Bytes per second that the coder is taken to pass before it has been timed, and how much a piece's time weighs among the last.
_RATE, _WEIGHT = 2e8, 0.2
#: Bytes of a tensor.
_MAX_TENSOR = 64 << 30
#: A piece of fewer bytes is not timed: the time would be mostly overhead.
_TIMED = 1 << 16
assert _PIECE <= MAX_PIECE


#: The step and the arrays that both ends hold.
Version = tuple[int, Mapping[str, Array]]
#: Makes a piece for a link of so many bytes per second (0: not known).
MakePiece = Callable[[float], CopyPiece]


class Coder:
    """Codes what one worker sends. ``raw`` and ``sent``: bytes before and after (several threads at once may miss a piece)."""

    def __init__(self, clock: Callable[[], float] = precise_time) -> None:
        self._clock = clock
        self.rate, self.raw, self.sent = _RATE, 0, 0

    def pieces(self, run: str, arrays: Mapping[str, Array], base: Version | None) -> Iterator[MakePiece]:
        """Return what makes each piece of a copy for the attempt ``run``."""
        for name, array in arrays.items():
            meta, buffer = pack(np.ascontiguousarray(array).reshape(array.shape))
            older = _older(name, meta, base)
            for start in range(0, max(1, buffer.nbytes), _PIECE):
                stop = start + _PIECE
                head = partial(CopyPiece, run=run, name=name, array=ArrayHeader.of(meta), last=stop >= buffer.nbytes)
                known = None if older is None else older[start:stop]
                step = None if base is None or older is None else base[0]
                yield self._maker(head, (meta, buffer[start:stop], known), step)

    def _maker(
        self, head: Callable[..., CopyPiece], content: tuple[ArrayMeta, memoryview, memoryview | None], step: int | None
    ) -> MakePiece:
        """``content``: the tensor, the bytes of the piece, and the same bytes in the base."""
        meta, piece, known = content

        def make(link: float) -> CopyPiece:
            coded = None if link > self.rate else self._coded(meta, piece, known)
            self.raw += piece.nbytes
            self.sent += piece.nbytes if coded is None else len(coded)
            if coded is None:
                return head(sections=(piece,))
            return head(coded=piece.nbytes, base=step, sections=(coded,))

        return make

    def _coded(self, meta: ArrayMeta, piece: memoryview, known: memoryview | None) -> bytes | None:
        begin = self._clock()
        coded = shrink(piece, DTYPES[meta.dtype].itemsize, known)
        seconds = self._clock() - begin
        if piece.nbytes >= _TIMED and seconds > 0.0:
            self.rate += _WEIGHT * (piece.nbytes / seconds - self.rate)
        return coded


class Incoming:
    """A copy that is being received. ``limits``: its most bytes and tensors. Its arrays take their memory from ``budget``.

    ``version`` returns the stored copy of a step (None: none).
    ``lacks``: the first piece was coded by a version that is not held here, so what comes is of no use. ``nbytes``: on the link.
    """

    def __init__(
        self, limits: tuple[int, int], budget: MemoryBudget, version: Callable[[int], Mapping[str, Array] | None]
    ) -> None:
        self._limit, self._most_tensors = limits
        self._budget, self._version = budget, version
        self._arrays: dict[str, Array] = {}
        self._open: tuple[str, ArrayMeta, memoryview] | None = None
        self._filled = 0
        self.lacks = False
        self.nbytes = 0

    def add(self, piece: CopyPiece) -> None:
        """Put the next piece in its place.

        Raises:
            WireError: it does not fit to those before, is damaged, or all together pass the limits.
            MemoryExceeded: the budget has no room for the tensor.
        """
        section = memoryview(piece.sections[0]).cast("B")
        self.nbytes += section.nbytes
        if self.lacks:
            return
        name, meta = piece.name, piece.array.meta
        if self._open is None:
            self._begin(name, meta)
        assert self._open is not None
        if self._open[:2] != (name, meta):
            raise WireError(f"copied tensor {name!r} begins before the one before it has ended")
        size = section.nbytes if piece.coded is UNSET else piece.coded
        if self._filled + size > meta.packed_nbytes:
            raise WireError(f"copied tensor {name!r} is larger than it says")
        known = None
        if isinstance(piece.base, int):
            known = self._known(name, meta, piece.base, size)
            if known is None:
                self.lacks, self._open, self._arrays = True, None, {}
                return
        try:
            plain = section if piece.coded is UNSET else expand(section, size, known)
        except CodecError as error:
            raise WireError(f"copied tensor {name!r}: {error}") from None
        self._open[2][self._filled : self._filled + size] = plain
        self._filled += size
        if piece.last:
            self._end(name, meta)

    def arrays(self) -> dict[str, Array]:
        """All that has come.

        Raises:
            WireError: the last tensor is not whole.
        """
        if self._open is not None:
            raise WireError(f"copied tensor {self._open[0]!r} was cut in transfer")
        return self._arrays

    def _begin(self, name: str, meta: ArrayMeta) -> None:
        check_dense(meta, f"copied tensor {name!r}", _MAX_TENSOR)
        self._limit -= meta.packed_nbytes
        if self._limit < 0 or name in self._arrays or len(self._arrays) >= self._most_tensors:
            raise WireError(f"the copy that holds tensor {name!r} is larger than the states of its sender's stages")
        memory = uninitialized(meta.packed_nbytes, "a copy of states, which this worker stores for another one", self._budget)
        self._open, self._filled = (name, meta, memory), 0

    def _end(self, name: str, meta: ArrayMeta) -> None:
        assert self._open is not None
        if self._filled != meta.packed_nbytes:
            raise WireError(f"copied tensor {name!r} has {self._filled} bytes of {meta.packed_nbytes}")
        self._arrays[name] = unpack(meta, self._open[2], meta.packed_nbytes)
        self._open = None

    def _known(self, name: str, meta: ArrayMeta, step: int, size: int) -> memoryview | None:
        arrays = self._version(step)
        older = None if arrays is None else _older(name, meta, (step, arrays))
        return None if older is None else older[self._filled : self._filled + size]


def _older(name: str, meta: ArrayMeta, base: Version | None) -> memoryview | None:
    """The bytes of tensor ``name`` in ``base`` (None: it has none of that form)."""
    if base is None or name not in base[1]:
        return None
    array = base[1][name]
    there, buffer = pack(np.ascontiguousarray(array).reshape(array.shape))
    return buffer if there == meta else None
