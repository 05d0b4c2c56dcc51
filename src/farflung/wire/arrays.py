"""Arrays on the wire: element type, shape and exact strides, and the elements in the order in which they lie in memory.

What travels follows from the strides alone (dims of size 1 and of stride 0 left out, the others sorted by descending stride):

- elements that don't overlap travel once each, gaps between them not at all, in storage order: dense arrays in any order of
  dims need no copy, a view of a third of a tensor sends a third, an expanded dim is sent once;
- where elements overlap (sliding windows), the range of memory that they span travels, or every element of the view if
  that is less.

The receiver rebuilds shape and strides (in elements); gaps hold zeros. Only NumPy knows negative strides and strides that
are no multiple of the element: such arrays travel in C order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from farflung.errors import WireError
from farflung.wire.frames import Buffer

__all__ = ["DTYPES", "ArrayMeta", "c_strides", "check_dense", "compact", "describe", "pack", "packed_layout", "restore", "unpack"]

Array = NDArray[Any]

#: The closed table of element types (the names are those of ``graph.ir.DTYPES``), little-endian on the wire.
DTYPES: Mapping[str, np.dtype[Any]] = {
    "float64": np.dtype("<f8"),
    "float32": np.dtype("<f4"),
    "float16": np.dtype("<f2"),
    "bfloat16": np.dtype(ml_dtypes.bfloat16),
    "int64": np.dtype("<i8"),
    "int32": np.dtype("<i4"),
    "int16": np.dtype("<i2"),
    "int8": np.dtype("i1"),
    "uint8": np.dtype("u1"),
    "bool": np.dtype("?"),
    "complex64": np.dtype("<c8"),
    "complex128": np.dtype("<c16"),
}
_MAX_DIMS = 32
_MAX_SIZE = 1 << 48
_MAX_EMPTY = 1 << 62


@dataclass(frozen=True, slots=True)
class ArrayMeta:
    """Element type (a name of ``DTYPES``), shape, and strides in elements (None: C order without gaps)."""

    dtype: str
    shape: tuple[int, ...]
    strides: tuple[int, ...] | None = None

    @property
    def numel(self) -> int:
        """Number of elements of the array."""
        return prod(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of the elements of the array."""
        return self.numel * DTYPES[self.dtype].itemsize

    @property
    def full_strides(self) -> tuple[int, ...]:
        """Strides in elements, those of C order included."""
        return self.strides if self.strides is not None else c_strides(self.shape)

    @property
    def span(self) -> int:
        """Elements of memory from the first to the last element of the array (0 for an empty one)."""
        if 0 in self.shape:
            return 0
        return 1 + sum((size - 1) * stride for size, stride in zip(self.shape, self.full_strides, strict=True))

    @property
    def memory_nbytes(self) -> int:
        """Bytes that the array takes where it is rebuilt, or would take as a dense copy if that is more."""
        return max(self.numel, self.span) * DTYPES[self.dtype].itemsize

    @property
    def packed_numel(self) -> int:
        """Number of elements that travel."""
        return packed_layout(self)[1]

    @property
    def packed_nbytes(self) -> int:
        """Bytes that travel."""
        return self.packed_numel * DTYPES[self.dtype].itemsize

    def to_header(self) -> list[Any]:
        """As plain values for a frame's header."""
        return [self.dtype, list(self.shape), None if self.strides is None else list(self.strides)]

    @classmethod
    def from_header(cls, value: object) -> ArrayMeta:
        """Read what ``to_header`` wrote.

        Raises:
            WireError: unknown element type, too many dims, sizes or strides that are not small non-negative integers.
        """
        if not (isinstance(value, (list, tuple)) and len(value) == 3):
            raise WireError(f"bad array description {value!r:.80}: it must be [dtype, shape, strides]")
        dtype, shape, strides = value
        if not isinstance(dtype, str) or dtype not in DTYPES:
            raise WireError(f"unknown element type {dtype!r:.40}: known are {', '.join(DTYPES)}")
        sizes = _integers(shape, "shape")
        steps = None if strides is None else _integers(strides, "strides")
        if steps is not None and len(steps) != len(sizes):
            raise WireError(f"bad array description: {len(sizes)} sizes but {len(steps)} strides")
        return cls(dtype, sizes, steps)


def describe(array: Array) -> ArrayMeta:
    """Element type, shape and strides of ``array``.

    Raises:
        WireError: its element type is not in the table, or it has more than 32 dims.
    """
    name = array.dtype.name
    if name not in DTYPES:
        raise WireError(f"cannot send elements of type {name}: known are {', '.join(DTYPES)}; convert the array first")
    if array.ndim > _MAX_DIMS:
        raise WireError(f"cannot send an array of {array.ndim} dims: the limit is {_MAX_DIMS}; reshape it first")
    width = array.dtype.itemsize
    strides = tuple(step // width for step in array.strides)
    foreign = any(step < 0 or step % width for step in array.strides)
    return ArrayMeta(name, array.shape, None if foreign or strides == c_strides(array.shape) else strides)


def compact(array: Array) -> tuple[ArrayMeta, Array]:
    """The meta of ``array`` and its travelling elements as a 1-D array in storage order (a view where ``array`` is dense).

    Codecs compress the 1-D array; ``restore`` gives the layout back.
    """
    meta = describe(array)
    if meta.strides is None:
        return meta, np.ascontiguousarray(array).reshape(-1)
    sizes, numel = packed_layout(meta)
    if numel == 0:
        return meta, np.empty(0, array.dtype)
    width = array.dtype.itemsize
    steps = tuple(stride * width for _, stride in sizes)
    view = np.lib.stride_tricks.as_strided(array, tuple(size for size, _ in sizes), steps, writeable=False)
    return meta, np.ascontiguousarray(view).reshape(-1)


def restore(meta: ArrayMeta, flat: Array, limit: int) -> Array:
    """An array with the shape and strides of ``meta`` from its travelling elements ``flat`` (1-D, storage order).

    It shares memory with ``flat`` where no gaps are to be filled; arrays with expanded or overlapping dims are read-only.

    Raises:
        WireError: ``flat`` doesn't fit ``meta``, or the array or its span needs more than ``limit`` bytes.
    """
    _check_limit(meta, limit)
    dtype = DTYPES[meta.dtype]
    sizes, numel = packed_layout(meta)
    if flat.dtype != dtype or flat.shape != (numel,):
        raise WireError(f"an array of {meta.dtype} {meta.shape} needs {numel} elements, got {flat.dtype.name} {flat.shape}")
    memory = flat
    if meta.span != numel or not flat.flags.c_contiguous:
        memory = np.zeros(meta.span, dtype)
        inner = _view(memory, tuple(size for size, _ in sizes), tuple(stride for _, stride in sizes))
        inner[...] = flat.reshape(inner.shape)
    array = _view(memory, meta.shape, meta.full_strides)
    if meta.span < meta.numel:
        array.flags.writeable = False
    return array


def pack(array: Array) -> tuple[ArrayMeta, memoryview]:
    """The meta of ``array`` and its travelling bytes (a view of its memory where it is dense).

    Raises:
        WireError: as ``describe``.
    """
    meta, flat = compact(array)
    little = flat.astype(DTYPES[meta.dtype], copy=False)
    return meta, memoryview(little.view(np.uint8).data) if little.size else memoryview(b"")


def unpack(meta: ArrayMeta, buffer: Buffer, limit: int) -> Array:
    """The array that ``pack`` took apart; it shares ``buffer``'s memory where that is aligned and no gaps are to be filled.

    Raises:
        WireError: ``buffer`` has another size than ``meta`` says, the array or its span needs more than ``limit`` bytes, or a
            bool is neither 0 nor 1.
    """
    _check_limit(meta, limit)
    size = memoryview(buffer).nbytes
    if size != meta.packed_nbytes:
        raise WireError(f"an array of {meta.dtype} {meta.shape} needs {meta.packed_nbytes} bytes, got {size}")
    dtype = DTYPES[meta.dtype]
    flat: Array = np.frombuffer(buffer, dtype) if size else np.empty(0, dtype)
    if meta.dtype == "bool" and size and int(flat.view(np.uint8).max()) > 1:
        raise WireError("bad array: a bool must be 0 or 1")
    return restore(meta, flat if flat.flags.aligned else flat.copy(), limit)


def _view(memory: Array, shape: tuple[int, ...], strides: tuple[int, ...]) -> Array:
    """``memory`` (1-D, contiguous) seen with ``shape`` and ``strides`` in elements; NumPy checks the bounds."""
    width = memory.dtype.itemsize
    return np.ndarray(shape, memory.dtype, memory.view(np.uint8).data, 0, tuple(stride * width for stride in strides))


def c_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """Return the strides, in elements, of a contiguous array of ``shape``."""
    strides, step = [], 1
    for size in reversed(shape):
        strides.append(step)
        step *= max(size, 1)
    return tuple(reversed(strides))


def packed_layout(meta: ArrayMeta) -> tuple[list[tuple[int, int]], int]:
    """(size, stride) of the travelling view's dims, and its number of elements; see the head of this file."""
    if 0 in meta.shape:
        return [(0, 1)], 0
    pairs = zip(meta.shape, meta.full_strides, strict=True)
    dims = sorted(((size, stride) for size, stride in pairs if size > 1 and stride > 0), key=lambda dim: (-dim[1], dim[0]))
    numel, reach = prod(size for size, _ in dims), 1
    for size, stride in reversed(dims):
        if stride < reach:
            return ([(meta.span, 1)], meta.span) if meta.span <= numel else (dims, numel)
        reach += (size - 1) * stride
    return dims, numel


def check_dense(meta: ArrayMeta, what: str, limit: int) -> None:
    """See that the array takes as many bytes as travel, and at most ``limit``: gaps would be memory that nobody has sent.

    Raises:
        WireError: it does not; ``what`` names it.
    """
    _check_limit(meta, limit)
    if meta.memory_nbytes != meta.packed_nbytes:
        raise WireError(
            f"{what} takes {meta.memory_nbytes} bytes with its gaps, and {meta.packed_nbytes} travel: send it without"
        )


def _check_limit(meta: ArrayMeta, limit: int) -> None:
    width = DTYPES[meta.dtype].itemsize
    need = meta.memory_nbytes
    if 0 in meta.shape and prod(max(size, 1) for size in meta.shape) * width >= _MAX_EMPTY:
        raise WireError(f"bad array description: the sizes {meta.shape} are too large, even for an empty array")
    if need > limit:
        raise WireError(f"oversized array: {meta.dtype} {meta.shape} needs {need} bytes, the limit is {limit}")


def _integers(value: object, what: str) -> tuple[int, ...]:
    if not isinstance(value, (list, tuple)) or len(value) > _MAX_DIMS:
        raise WireError(f"bad array description: {what} must be a list of at most {_MAX_DIMS} integers, got {value!r:.80}")
    for item in value:
        if type(item) is not int or not 0 <= item < _MAX_SIZE:
            raise WireError(f"bad array description: {what} must hold integers from 0 to 2^48 - 1, got {item!r:.40}")
    return tuple(value)
