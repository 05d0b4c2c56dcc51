"""Shared memory for arrays between a worker and the process that computes for it.

The worker makes one anonymous file, seals its size, and both processes map it. Each writes only into its own half and begins
there anew with each message: whoever gets a message has copied the arrays out before it answers. So nothing is allocated for a
message, and the pages stay with the file. Pages that no recent message needed go back to the system (``trim``).
"""

from __future__ import annotations

import ctypes
import fcntl
import mmap
import os
import sys
from collections.abc import Mapping

import ml_dtypes
import msgspec
import numpy as np

from farflung.engines.base import Array
from farflung.engines.layout import distinct, extent
from farflung.engines.present import LABEL_BYTES
from farflung.errors import GraphError, WireError
from farflung.graph.ir import DTYPES
from farflung.memory_budget import MemoryBudget
from farflung.units import Bytes
from farflung.wire.arrays import c_strides
from farflung.wire.frames import uninitialized

__all__ = ["Arena", "Slot", "make_file"]

_ALIGN = 64
#: Linux: fcntl's command and its seals (no further seals, no other size).
_ADD_SEALS, _SEAL, _SHRINK, _GROW = 1033, 1, 2, 4
_PUNCH_HOLE = 0x01 | 0x02
#: After how many messages pages that none of them needed are given back.
_WINDOW = 64
_MOST_DIMENSIONS = 64
#: Seconds for which a copy waits for memory that others release.
_WAIT = 10.0
_DTYPES: Mapping[str, np.dtype[np.generic]] = {
    name: np.dtype(ml_dtypes.bfloat16) if name == "bfloat16" else np.dtype(name) for name in DTYPES
}


class Slot(msgspec.Struct, frozen=True, array_like=True):
    """Where an array lies: ``offset`` in bytes from the start of the file, ``strides`` in elements (0: a broadcast axis)."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    offset: int


def make_file(nbytes: int) -> int:
    """Make an anonymous file of ``nbytes`` whose size can't change; return its descriptor.

    Raises:
        OSError: the system can't.
    """
    descriptor = os.memfd_create("farflung-arena", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, nbytes)
        fcntl.fcntl(descriptor, _ADD_SEALS, _SEAL | _SHRINK | _GROW)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


class Arena:
    """One end of the shared memory. ``own`` is 0 for the worker's half, 1 for the half of the process that computes."""

    def __init__(self, descriptor: int, own: int) -> None:
        """Map the file; ``descriptor`` stays the caller's."""
        self._file = os.dup(descriptor)
        self._map = mmap.mmap(descriptor, 0)
        self._memory: Array = np.frombuffer(self._map, np.uint8)
        half = (len(self._map) // mmap.PAGESIZE - 1) // 2 * mmap.PAGESIZE
        self._halves = (range(half), range(half, 2 * half))
        #: Where the process that computes writes its present operator (``engines.present``).
        self.label = memoryview(self._map)[2 * half : 2 * half + LABEL_BYTES]
        self._own, self._other = self._halves[own], self._halves[1 - own]
        self._next = self._own.start
        #: Bytes that were copied out since the last message began.
        self._copied = 0
        #: Bytes of each half that recent messages needed, and that may have pages.
        self._recent, self._pages, self._messages = [0, 0], [0, 0], 0

    def begin(self) -> None:
        """Begin a message: the own half is free again."""
        self._next = self._own.start
        self._copied = 0

    def write(self, array: Array) -> Slot:
        """Copy ``array`` into the own half, with its strides where these are in memory order.

        Raises:
            GraphError: its element type is not known, or the half is full.
        """
        if array.dtype.name not in _DTYPES:
            raise GraphError(f"element type {array.dtype.name!r} is not known; known are {', '.join(_DTYPES)}")
        dtype = _DTYPES[array.dtype.name]
        packed = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
        whole = all(stride % dtype.itemsize == 0 for stride in packed.strides)
        strides = tuple(stride // dtype.itemsize for stride in packed.strides)
        if not (whole and distinct(packed.shape, strides)):
            strides = c_strides(packed.shape)
        span = extent(packed.shape, strides) * dtype.itemsize
        offset = self._take(span)
        place = np.ndarray(packed.shape, dtype, self._map, offset, tuple(stride * dtype.itemsize for stride in strides))
        place[...] = packed
        shown = tuple(0 if step == 0 else stride for step, stride in zip(array.strides, strides, strict=True))
        return Slot(dtype.name, array.shape, shown, offset)

    def write_bytes(self, data: bytes) -> Slot:
        """Copy ``data`` into the own half.

        Raises:
            GraphError: the half is full.
        """
        return self.write(np.frombuffer(data, np.uint8))

    def _take(self, nbytes: int) -> int:
        offset = self._next
        if offset + nbytes > self._own.stop:
            most = Bytes(len(self._own))
            raise GraphError(f"a message of {Bytes(offset + nbytes - self._own.start)} exceeds the shared memory of {most}")
        self._next = offset + -(-nbytes // _ALIGN) * _ALIGN
        self._note(self._own, offset + nbytes)
        return offset

    def view(self, slot: Slot) -> Array:
        """The array of the other half at ``slot``, where it is.

        Raises:
            WireError: ``slot`` is not an array within the other half.
        """
        dtype = _DTYPES.get(slot.dtype)
        sizes = (*slot.shape, *slot.strides)
        good = dtype is not None and len(slot.shape) == len(slot.strides) <= _MOST_DIMENSIONS
        if dtype is None or not good or any(size < 0 for size in sizes):
            raise WireError("the process that computes answered with an array that is none")
        end = slot.offset + extent(slot.shape, slot.strides) * dtype.itemsize
        if not self._other.start <= slot.offset <= end <= self._other.stop:
            raise WireError("the process that computes answered with an array outside of the shared memory")
        steps = tuple(stride * dtype.itemsize for stride in slot.strides)
        try:
            found = np.ndarray(slot.shape, dtype, self._map, slot.offset, steps)
        except (ValueError, OverflowError):
            raise WireError("the process that computes answered with an array of more elements than memory can have") from None
        self._note(self._other, end)
        return found

    def copy(self, slot: Slot, budget: MemoryBudget) -> Array:
        """A copy of the array at ``slot`` with its strides: what the other process does to the memory then changes nothing.

        The copy counts in ``budget`` while it lives.

        Raises:
            WireError: ``slot`` is not an array within the other half, or the copies of a message have more bytes than the half.
            MemoryExceeded: ``budget`` has no room, also after a wait for others to release memory.
        """
        shown = self.view(slot)
        span = extent(slot.shape, slot.strides) * shown.itemsize
        self._copied += span
        if self._copied > len(self._other):
            raise WireError("the process that computes answered with arrays that lie in each other")
        if not span:
            return np.ndarray(slot.shape, shown.dtype)
        held = uninitialized(span, "what the process that computes gives", budget, _WAIT)
        held[:] = self._memory[slot.offset : slot.offset + span].data
        return np.ndarray(slot.shape, shown.dtype, held, 0, shown.strides)

    def read_bytes(self, slot: Slot) -> bytes:
        """What ``write_bytes`` wrote.

        Raises:
            WireError: ``slot`` is something else.
        """
        if slot.dtype != "uint8" or slot.strides != (1,):
            raise WireError("the process that computes answered with a message that is none")
        return self.view(slot).tobytes()

    def _note(self, half: range, end: int) -> None:
        number = 0 if half.start == 0 else 1
        used = end - half.start
        self._recent[number] = max(self._recent[number], used)
        self._pages[number] = max(self._pages[number], used)

    def trim(self) -> None:
        """Once in a while, give back the pages that no message since the last time needed. The worker's end calls this."""
        self._messages += 1
        if self._messages % _WINDOW == 0:
            self._give_back()

    def release(self) -> None:
        """Give back all pages. The worker's end calls this between two messages."""
        self._recent = [0, 0]
        self._give_back()

    def _give_back(self) -> None:
        for number, half in enumerate(self._halves):
            first = -(-(half.start + self._recent[number]) // mmap.PAGESIZE) * mmap.PAGESIZE
            last = half.start + self._pages[number]
            if last - first > mmap.PAGESIZE:
                _punch(self._file, first, last - first)
            self._pages[number], self._recent[number] = self._recent[number], 0

    @property
    def resident(self) -> int:
        """Bytes of pages that the file has."""
        return 512 * os.fstat(self._file).st_blocks

    def close(self) -> None:
        """Release the file; the mapping goes with the last view of it."""
        os.close(self._file)


def _punch(descriptor: int, offset: int, nbytes: int) -> None:
    if sys.platform.startswith("linux"):
        library = ctypes.CDLL(None, use_errno=True)
        library.fallocate(descriptor, _PUNCH_HOLE, ctypes.c_long(offset), ctypes.c_long(nbytes))
