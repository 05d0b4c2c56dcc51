"""Operators that arrange elements in another way, and those that join tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax.numpy as jnp
from jax import lax

from farflung.engines.jax.operators.table import Tensor, operator

__all__: list[str] = []


@operator(
    "alias.default",
    "clone.default",
    "contiguous.default",
    "lift_fresh_copy.default",
    "resolve_conj.default",
)
def _same(x: Tensor, **options: Any) -> Tensor:
    del options
    return x


@operator("detach.default")
def _detach(x: Tensor) -> Tensor:
    return lax.stop_gradient(x)


@operator("view.default", "reshape.default", "_unsafe_view.default")
def _view(x: Tensor, shape: Sequence[int]) -> Tensor:
    return x.reshape(shape)


@operator("expand.default", "broadcast_to.default")
def _expand(x: Tensor, size: Sequence[int], *, implicit: bool = False) -> Tensor:
    del implicit
    kept = (1,) * (len(size) - x.ndim) + x.shape
    return jnp.broadcast_to(x, [have if want == -1 else want for have, want in zip(kept, size, strict=True)])


@operator("expand_as.default")
def _expand_as(x: Tensor, other: Tensor) -> Tensor:
    return jnp.broadcast_to(x, other.shape)


@operator("view_as.default")
def _view_as(x: Tensor, other: Tensor) -> Tensor:
    return x.reshape(other.shape)


@operator("broadcast_tensors.default")
def _broadcast_tensors(tensors: Sequence[Tensor]) -> tuple[Tensor, ...]:
    return tuple(jnp.broadcast_arrays(*tensors))


@operator("t.default", "numpy_T.default")
def _t(x: Tensor) -> Tensor:
    return x.T


@operator("transpose.int", "swapaxes.default")
def _transpose(x: Tensor, one: int, other: int) -> Tensor:
    return jnp.swapaxes(x, one, other)


@operator("permute.default")
def _permute(x: Tensor, dims: Sequence[int]) -> Tensor:
    return jnp.transpose(x, dims)


@operator("movedim.int", "movedim.intlist")
def _movedim(x: Tensor, source: Any, target: Any) -> Tensor:
    return jnp.moveaxis(x, source, target)


@operator("flatten.using_ints")
def _flatten(x: Tensor, start: int = 0, end: int = -1) -> Tensor:
    if x.ndim == 0:
        return x.reshape(1)
    start, end = start % x.ndim, end % x.ndim
    return x.reshape(*x.shape[:start], -1, *x.shape[end + 1 :])


@operator("unflatten.int")
def _unflatten(x: Tensor, dim: int, sizes: Sequence[int]) -> Tensor:
    dim %= x.ndim
    return x.reshape(*x.shape[:dim], *sizes, *x.shape[dim + 1 :])


@operator("unsqueeze.default")
def _unsqueeze(x: Tensor, dim: int) -> Tensor:
    return jnp.expand_dims(x, dim)


@operator("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(x: Tensor, dim: Any = None) -> Tensor:
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return jnp.squeeze(x, tuple(at % x.ndim for at in dims if x.ndim and x.shape[at] == 1))


@operator("select.int", "select_copy.int")
def _select(x: Tensor, dim: int, index: int) -> Tensor:
    return lax.index_in_dim(x, index % x.shape[dim], dim % x.ndim, keepdims=False)


def _span(size: int, start: int | None, end: int | None, step: int) -> slice:
    first, last, _ = slice(start, end, step).indices(size)
    return slice(first, max(first, last), step)


def _at(x: Tensor, dim: int, place: Any) -> tuple[Any, ...]:
    return (*(slice(None) for _ in range(dim % x.ndim)), place)


@operator("slice.Tensor")
def _slice(x: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Tensor:
    span = _span(x.shape[dim], start, end, step)
    return lax.slice_in_dim(x, span.start, span.stop, span.step, dim)


@operator("narrow.default")
def _narrow(x: Tensor, dim: int, start: int, length: int) -> Tensor:
    start %= max(x.shape[dim], 1)
    return lax.slice_in_dim(x, start, start + length, 1, dim)


@operator("slice_scatter.default")
def _slice_scatter(
    x: Tensor, src: Tensor, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1
) -> Tensor:
    return x.at[_at(x, dim, _span(x.shape[dim], start, end, step))].set(src.astype(x.dtype))


@operator("select_scatter.default")
def _select_scatter(x: Tensor, src: Tensor, dim: int, index: int) -> Tensor:
    return x.at[_at(x, dim, index)].set(src.astype(x.dtype))


@operator("split.Tensor")
def _split(x: Tensor, size: int, dim: int = 0) -> tuple[Tensor, ...]:
    length = x.shape[dim]
    return tuple(lax.slice_in_dim(x, at, min(at + size, length), 1, dim) for at in range(0, max(length, 1), max(size, 1)))


@operator("split.sizes", "split_with_sizes.default")
def _split_sizes(x: Tensor, sizes: Sequence[int], dim: int = 0) -> tuple[Tensor, ...]:
    ends = [sum(sizes[: number + 1]) for number in range(len(sizes))]
    return tuple(lax.slice_in_dim(x, end - size, end, 1, dim) for size, end in zip(sizes, ends, strict=True))


@operator("chunk.default")
def _chunk(x: Tensor, chunks: int, dim: int = 0) -> tuple[Tensor, ...]:
    length = max(-(-x.shape[dim] // chunks), 1)
    return tuple(lax.slice_in_dim(x, at, min(at + length, x.shape[dim]), 1, dim) for at in range(0, max(x.shape[dim], 1), length))


@operator("unbind.int")
def _unbind(x: Tensor, dim: int = 0) -> tuple[Tensor, ...]:
    return tuple(_select(x, dim, index) for index in range(x.shape[dim]))


@operator("cat.default")
def _cat(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    kept = [x for x in tensors if x.shape != (0,)] or list(tensors[:1])
    return jnp.concatenate(kept, axis=dim)


@operator("stack.default")
def _stack(tensors: Sequence[Tensor], dim: int = 0) -> Tensor:
    return jnp.stack(tensors, axis=dim)


@operator("repeat.default", "tile.default")
def _repeat(x: Tensor, repeats: Sequence[int]) -> Tensor:
    return jnp.tile(x, repeats)


@operator("repeat_interleave.self_int")
def _repeat_interleave(x: Tensor, repeats: int, dim: int | None = None, *, output_size: int | None = None) -> Tensor:
    del output_size
    return jnp.repeat(x, repeats, axis=dim)


@operator("flip.default")
def _flip(x: Tensor, dims: Sequence[int]) -> Tensor:
    return jnp.flip(x, dims)


@operator("roll.default")
def _roll(x: Tensor, shifts: Any, dims: Any = ()) -> Tensor:
    if not dims and dims != 0:
        return jnp.roll(x.reshape(-1), shifts if isinstance(shifts, int) else shifts[0]).reshape(x.shape)
    return jnp.roll(x, shifts, dims)


@operator("diagonal.default", "diagonal_copy.default")
def _diagonal(x: Tensor, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Tensor:
    return jnp.diagonal(x, offset, dim1, dim2)


@operator("tril.default")
def _tril(x: Tensor, diagonal: int = 0) -> Tensor:
    return jnp.tril(x, diagonal)


@operator("triu.default")
def _triu(x: Tensor, diagonal: int = 0) -> Tensor:
    return jnp.triu(x, diagonal)


@operator("pad.default", "constant_pad_nd.default")
def _pad(x: Tensor, pad: Sequence[int], mode: Any = "constant", value: float | None = None) -> Tensor:
    if not isinstance(mode, str):  # of constant_pad_nd, whose third argument is the value
        mode, value = "constant", mode
    pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    widths = [(0, 0)] * (x.ndim - len(pairs)) + pairs
    if mode == "constant":
        return lax.pad(x, jnp.asarray(0 if value is None else value, x.dtype), [(low, high, 0) for low, high in widths])
    names = {"reflect": "reflect", "replicate": "edge", "circular": "wrap"}
    return jnp.pad(x, widths, mode=names[mode])


@operator("pixel_shuffle.default")
def _pixel_shuffle(x: Tensor, factor: int) -> Tensor:
    *rest, channels, height, width = x.shape
    parts = x.reshape(*rest, channels // factor**2, factor, factor, height, width)
    order = (*range(len(rest)), *(len(rest) + at for at in (0, 3, 1, 4, 2)))
    return parts.transpose(order).reshape(*rest, channels // factor**2, height * factor, width * factor)
