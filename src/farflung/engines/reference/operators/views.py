"""Operators that move elements or copy them: views, casts, joins, indexing."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

import numpy as np

from farflung.engines.reference.operators.table import operator, shape_of
from farflung.engines.reference.tape import (
    Value,
    absorb,
    cast,
    concatenate,
    detach,
    multiply,
    pick,
    reshape,
    scatter,
    transpose,
    value_of,
    where,
)

__all__ = ["split_evenly"]

_END = 1 << 62


@operator("alias.default", "clone.default", "lift_fresh_copy.default", "resolve_conj.default")
def _same(a: Any, **_: Any) -> Any:
    return a


@operator("_conj.default")
def _conj(a: Any) -> Value:
    return absorb(np.conj(value_of(a)), (a, np.conj))


@operator("contiguous.default")
def _contiguous(a: Any, **_: Any) -> Value:
    return absorb(np.ascontiguousarray(value_of(a)), (a, lambda g: g))


@operator("detach.default")
def _detach(a: Any) -> Value:
    return detach(a)


@operator("to.dtype")
def _to_dtype(a: Any, dtype: Any, *_: Any, **__: Any) -> Value:
    return cast(a, dtype)


@operator("to.dtype_layout", "_to_copy.default")
def _to_layout(a: Any, dtype: Any = None, **_: Any) -> Value:
    return cast(a, value_of(a).dtype if dtype is None else dtype)


@operator("to.device")
def _to_device(a: Any, device: Any, dtype: Any, *_: Any, **__: Any) -> Value:
    return cast(a, dtype)


@operator("to.other", "type_as.default")
def _to_other(a: Any, other: Any, *_: Any, **__: Any) -> Value:
    return cast(a, value_of(other).dtype)


@operator("view.default", "reshape.default", "_unsafe_view.default")
def _view(a: Any, shape: Sequence[int]) -> Value:
    return reshape(a, shape)


@operator("view_as.default")
def _view_as(a: Any, other: Any) -> Value:
    return reshape(a, shape_of(other))


@operator("flatten.using_ints")
def _flatten(a: Any, start_dim: int = 0, end_dim: int = -1) -> Value:
    shape = shape_of(a) or (1,)
    first, last = start_dim % len(shape), end_dim % len(shape)
    return reshape(a, (*shape[:first], prod(shape[first : last + 1]), *shape[last + 1 :]))


@operator("unflatten.int")
def _unflatten(a: Any, dim: int, sizes: Sequence[int]) -> Value:
    shape = shape_of(a)
    at = dim % len(shape)
    return reshape(a, (*shape[:at], *sizes, *shape[at + 1 :]))


@operator("unsqueeze.default")
def _unsqueeze(a: Any, dim: int) -> Value:
    shape = list(shape_of(a))
    shape.insert(dim % (len(shape) + 1), 1)
    return reshape(a, shape)


@operator("squeeze.default")
def _squeeze(a: Any) -> Value:
    return reshape(a, [size for size in shape_of(a) if size != 1])


@operator("squeeze.dim", "squeeze.dims")
def _squeeze_dims(a: Any, dims: Any) -> Value:
    shape = shape_of(a)
    gone = {dim % max(len(shape), 1) for dim in (dims if isinstance(dims, (list, tuple)) else [dims])}
    return reshape(a, [size for axis, size in enumerate(shape) if axis not in gone or size != 1])


@operator("permute.default")
def _permute(a: Any, dims: Sequence[int]) -> Value:
    return transpose(a, [dim % len(dims) for dim in dims])


@operator("transpose.int", "swapaxes.default")
def _transpose(a: Any, dim0: int, dim1: int) -> Value:
    axes = list(range(len(shape_of(a))))
    axes[dim0], axes[dim1] = axes[dim1], axes[dim0]
    return transpose(a, axes)


@operator("t.default", "numpy_T.default")
def _t(a: Any) -> Value:
    return transpose(a, list(reversed(range(len(shape_of(a))))))


@operator("movedim.int", "movedim.intlist")
def _movedim(a: Any, source: Any, destination: Any) -> Value:
    axes = np.moveaxis(np.empty((1,) * len(shape_of(a))), source, destination)
    del axes
    order = [int(axis) for axis in np.argsort(_moved(len(shape_of(a)), source, destination))]
    return transpose(a, order)


def _moved(count: int, source: Any, destination: Any) -> list[int]:
    """Where each axis goes."""
    sources = [axis % count for axis in (source if isinstance(source, (list, tuple)) else [source])]
    targets = [axis % count for axis in (destination if isinstance(destination, (list, tuple)) else [destination])]
    free = iter([axis for axis in range(count) if axis not in targets])
    return [targets[sources.index(axis)] if axis in sources else next(free) for axis in range(count)]


@operator("expand.default")
def _expand(a: Any, size: Sequence[int], implicit: bool = False) -> Value:
    shape = shape_of(a)
    lead = len(size) - len(shape)
    wanted = [shape[axis - lead] if item == -1 else item for axis, item in enumerate(size)]
    return absorb(np.broadcast_to(value_of(a), wanted), (a, lambda g: g))


@operator("broadcast_to.default")
def _broadcast_to(a: Any, size: Sequence[int]) -> Value:
    return _expand(a, size)


@operator("expand_as.default")
def _expand_as(a: Any, other: Any) -> Value:
    return _expand(a, shape_of(other))


@operator("broadcast_tensors.default")
def _broadcast_tensors(tensors: Sequence[Any]) -> list[Value]:
    shape = np.broadcast_shapes(*(shape_of(tensor) for tensor in tensors))
    return [_expand(tensor, shape) for tensor in tensors]


@operator("slice.Tensor")
def _slice(a: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    return pick(a, _along(a, dim, slice(start, None if end is None or end >= _END else end, step)))


def _along(a: Any, dim: int, index: Any) -> tuple[Any, ...]:
    return (*[slice(None)] * (dim % len(shape_of(a))), index)


@operator("narrow.default")
def _narrow(a: Any, dim: int, start: int, length: int) -> Value:
    begin = start % max(shape_of(a)[dim], 1) if start < 0 else start
    return pick(a, _along(a, dim, slice(begin, begin + length)))


@operator("select.int")
def _select(a: Any, dim: int, index: int) -> Value:
    return pick(a, _along(a, dim, index))


@operator("unbind.int")
def _unbind(a: Any, dim: int = 0) -> list[Value]:
    return [_select(a, dim, index) for index in range(shape_of(a)[dim])]


@operator("split.Tensor")
def split_evenly(a: Any, size: int, dim: int = 0) -> list[Value]:
    """Pieces of ``size`` along ``dim``; the last one may be smaller."""
    return [pick(a, _along(a, dim, slice(at, at + size))) for at in range(0, shape_of(a)[dim], size)]


@operator("split.sizes", "split_with_sizes.default")
def _split_sizes(a: Any, sizes: Sequence[int], dim: int = 0) -> list[Value]:
    ends = np.cumsum(sizes)
    return [pick(a, _along(a, dim, slice(int(end) - size, int(end)))) for size, end in zip(sizes, ends, strict=True)]


@operator("chunk.default")
def _chunk(a: Any, chunks: int, dim: int = 0) -> list[Value]:
    return split_evenly(a, -(-shape_of(a)[dim] // chunks), dim)


@operator("cat.default")
def _cat(tensors: Sequence[Any], dim: int = 0) -> Value:
    kept = [tensor for tensor in tensors if shape_of(tensor) != (0,)] or list(tensors)
    return concatenate(kept, dim)


@operator("stack.default")
def _stack(tensors: Sequence[Any], dim: int = 0) -> Value:
    return concatenate([_unsqueeze(tensor, dim) for tensor in tensors], dim)


@operator("repeat.default")
def _repeat(a: Any, repeats: Sequence[int]) -> Value:
    shape = (1,) * (len(repeats) - len(shape_of(a))) + shape_of(a)
    found = reshape(a, shape)
    for axis, count in enumerate(repeats):
        found = concatenate([found] * count, axis)
    return found


@operator("flip.default")
def _flip(a: Any, dims: Sequence[int]) -> Value:
    flipped = {dim % len(shape_of(a)) for dim in dims}
    return pick(a, tuple(slice(None, None, -1) if axis in flipped else slice(None) for axis in range(len(shape_of(a)))))


@operator("roll.default")
def _roll(a: Any, shifts: Any, dims: Any = ()) -> Value:
    axes = tuple(dims) if isinstance(dims, (list, tuple)) else (dims,)
    sizes = tuple(shifts) if isinstance(shifts, (list, tuple)) else (shifts,)
    back = tuple(-size for size in sizes)
    if not axes:
        return absorb(np.roll(value_of(a), sizes[0]), (a, lambda g: np.roll(g, back[0])))
    return absorb(np.roll(value_of(a), sizes, axes), (a, lambda g: np.roll(g, back, axes)))


@operator("pad.default")
def _pad(a: Any, pad: Sequence[int], mode: str = "constant", value: Any = None) -> Value:
    if mode != "constant":
        raise ValueError(f"padding mode {mode!r} is not supported")
    return _constant_pad(a, pad, 0 if value is None else value)


@operator("constant_pad_nd.default")
def _constant_pad(a: Any, pad: Sequence[int], value: Any = 0) -> Value:
    x = value_of(a)
    widths = [(0, 0)] * (x.ndim - len(pad) // 2) + [(pad[at], pad[at + 1]) for at in range(len(pad) - 2, -1, -2)]
    cut = tuple(slice(max(-before, 0), size - max(-after, 0)) for (before, after), size in zip(widths, x.shape, strict=True))
    inner = pick(a, cut) if any(before < 0 or after < 0 for before, after in widths) else a
    grown = [(max(before, 0), max(after, 0)) for before, after in widths]
    sizes = shape_of(inner)
    own = tuple(slice(before, before + size) for (before, _), size in zip(grown, sizes, strict=True))
    return absorb(np.pad(value_of(inner), grown, constant_values=value), (inner, lambda g: g[own]))


@operator("index.Tensor")
def _index(a: Any, indices: Sequence[Any]) -> Value:
    return pick(a, tuple(slice(None) if index is None else value_of(index) for index in indices))


@operator("index_select.default")
def _index_select(a: Any, dim: int, index: Any) -> Value:
    return pick(a, _along(a, dim, value_of(index)))


@operator("embedding.default")
def _embedding(weight: Any, indices: Any, padding_idx: int = -1, *_: Any) -> Value:
    rows = value_of(indices)
    found = pick(weight, rows)
    if padding_idx < 0:
        return found
    held = (rows != padding_idx)[..., None]
    padded = value_of(found)
    return absorb(padded, (found, lambda g: g * held))


@operator("gather.default")
def _gather(a: Any, dim: int, index: Any, **_: Any) -> Value:
    return pick(a, _places(value_of(index), dim))


def _places(index: Any, dim: int) -> tuple[Any, ...]:
    """What ``take_along_axis`` reads, also where ``index`` is smaller than what is indexed."""
    grid = list(np.indices(index.shape, sparse=True))
    grid[dim] = index
    return tuple(grid)


@operator("scatter.src")
def _scatter(a: Any, dim: int, index: Any, source: Any) -> Value:
    places = value_of(index)
    cut = pick(source, tuple(slice(size) for size in places.shape))
    return scatter(a, _places(places, dim), cut, add_up=False)


@operator("scatter_add.default")
def _scatter_add(a: Any, dim: int, index: Any, source: Any) -> Value:
    places = value_of(index)
    cut = pick(source, tuple(slice(size) for size in places.shape))
    return scatter(a, _places(places, dim), cut, add_up=True)


@operator("scatter.value")
def _scatter_value(a: Any, dim: int, index: Any, value: Any) -> Value:
    mask = np.zeros(shape_of(a), bool)
    mask[_places(value_of(index), dim)] = True
    return where(mask, value, a)


@operator("index_add.default")
def _index_add(a: Any, dim: int, index: Any, source: Any, alpha: Any = 1) -> Value:
    added = source if alpha == 1 else multiply(source, alpha)
    return scatter(a, _along(a, dim, value_of(index)), added, add_up=True)


@operator("slice_scatter.default")
def _slice_scatter(a: Any, source: Any, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Value:
    place = slice(start, None if end is None or end >= _END else end, step)
    return scatter(a, _along(a, dim, place), source, add_up=False)


@operator("select_scatter.default")
def _select_scatter(a: Any, source: Any, dim: int, index: int) -> Value:
    return scatter(a, _along(a, dim, index), source, add_up=False)


@operator("diagonal.default")
def _diagonal(a: Any, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Value:
    flat = np.arange(prod(shape_of(a))).reshape(shape_of(a))
    return pick(reshape(a, (-1,)), np.diagonal(flat, offset, dim1, dim2))
