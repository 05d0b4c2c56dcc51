"""Matrix products, convolutions, pooling and attention."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from farflung.engines.reference.draws import Draw
from farflung.engines.reference.operators.drawing import dropped
from farflung.engines.reference.operators.reductions import amax, softmax
from farflung.engines.reference.operators.table import filled, operator, shape_of, size_list
from farflung.engines.reference.tape import (
    Value,
    absorb,
    add,
    concatenate,
    matmul,
    multiply,
    pick,
    reshape,
    total,
    transpose,
    value_of,
    where,
)

__all__: list[str] = []


def _turned(a: Any) -> Value:
    axes = list(range(len(shape_of(a))))
    axes[-1], axes[-2] = axes[-2], axes[-1]
    return transpose(a, axes)


@operator("mm.default", "bmm.default")
def _mm(a: Any, b: Any) -> Value:
    return matmul(a, b)


@operator("matmul.default")
def _matmul(a: Any, b: Any) -> Value:
    x, y = shape_of(a), shape_of(b)
    found = matmul(reshape(a, (1, *x)) if len(x) == 1 else a, reshape(b, (*y, 1)) if len(y) == 1 else b)
    shape = list(shape_of(found))
    if len(y) == 1:
        shape.pop()
    if len(x) == 1:
        shape.pop(-1 if len(y) == 1 else -2)
    return reshape(found, shape)


@operator("mv.default")
def _mv(a: Any, b: Any) -> Value:
    return _matmul(a, b)


@operator("dot.default", "vdot.default")
def _dot(a: Any, b: Any) -> Value:
    return total(multiply(a, b))


@operator("outer.default")
def _outer(a: Any, b: Any) -> Value:
    return multiply(reshape(a, (-1, 1)), b)


@operator("linear.default")
def _linear(a: Any, weight: Any, bias: Any = None) -> Value:
    found = _matmul(a, transpose(weight, (1, 0)) if len(shape_of(weight)) == 2 else weight)
    return found if bias is None else add(found, bias)


@operator("addmm.default", "baddbmm.default", "addmv.default")
def _addmm(a: Any, b: Any, c: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    found = _matmul(b, c)
    return add(a if beta == 1 else multiply(a, beta), found if alpha == 1 else multiply(found, alpha))


@operator("addbmm.default")
def _addbmm(a: Any, b: Any, c: Any, beta: Any = 1, alpha: Any = 1) -> Value:
    found = total(matmul(b, c), (0,))
    return add(a if beta == 1 else multiply(a, beta), found if alpha == 1 else multiply(found, alpha))


@operator("linalg_solve_triangular.default")
def _solve_triangular(a: Any, b: Any, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Value:
    """The X of A X = B, or of X A = B."""
    triangle = np.triu if upper else np.tril
    inner = (1 if upper else -1) if unitriangular else 0
    x = value_of(a)
    matrix = triangle(x, inner) + (np.eye(x.shape[-1], dtype=x.dtype) if unitriangular else 0)
    turned = np.swapaxes(matrix, -1, -2)
    found = np.linalg.solve(matrix, value_of(b)) if left else _solved_right(matrix, value_of(b))

    def to_b(gradient: Any) -> Any:
        return np.linalg.solve(turned, gradient) if left else _solved_right(turned, gradient)

    def to_a(gradient: Any) -> Any:
        moved, result = to_b(gradient), np.swapaxes(found, -1, -2)
        return -triangle(np.matmul(moved, result) if left else np.matmul(result, moved), inner)

    return absorb(found, (a, to_a), (b, to_b))


def _solved_right(matrix: Any, right: Any) -> Any:
    """The X of X ``matrix`` = ``right``."""
    return np.swapaxes(np.linalg.solve(np.swapaxes(matrix, -1, -2), np.swapaxes(right, -1, -2)), -1, -2)


@operator("einsum.default")
def _einsum(equation: str, tensors: Sequence[Any], path: Any = None) -> Value:
    terms, _, result = equation.replace(" ", "").partition("->")
    names = terms.split(",")
    if "..." in terms or not equation.count("->") or any(len(set(name)) < len(name) for name in names):
        raise ValueError(f"the equation {equation!r} is not supported: write each letter once in a term, and the result")
    arrays = [value_of(tensor) for tensor in tensors]
    sizes = {
        letter: size for name, array in zip(names, arrays, strict=True) for letter, size in zip(name, array.shape, strict=True)
    }

    def back(number: int) -> Any:
        others = [name for at, name in enumerate(names) if at != number]
        rest = [array for at, array in enumerate(arrays) if at != number]
        known = set(result).union(*others)
        reach = "".join(letter for letter in names[number] if letter in known)

        def pull(gradient: Any) -> Any:
            found = np.einsum(f"{','.join([result, *others])}->{reach}", gradient, *rest)
            shape = [sizes[letter] if letter in known else 1 for letter in names[number]]
            return np.broadcast_to(found.reshape(shape), arrays[number].shape)

        return pull

    return absorb(np.einsum(equation, *arrays), *((tensor, back(number)) for number, tensor in enumerate(tensors)))


def _padded(a: Any, padding: Sequence[int], fill: float = 0.0) -> Value:
    widths = [(0, 0), (0, 0), *((size, size) for size in padding)]
    own = (slice(None), slice(None), *(slice(size, size + length) for size, length in zip(padding, shape_of(a)[2:], strict=True)))
    return absorb(np.pad(value_of(a), widths, constant_values=fill), (a, lambda g: g[own]))


def _windows(a: Any, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int], counts: Sequence[int]) -> Value:
    """The elements of all windows: (batch, channels, one for each place of the kernel, *``counts``)."""
    parts = []
    for offsets in product(*(range(size) for size in kernel)):
        begins = [offset * spread for offset, spread in zip(offsets, dilation, strict=True)]
        place = tuple(
            slice(begin, begin + (count - 1) * step + 1, step) for begin, count, step in zip(begins, counts, stride, strict=True)
        )
        found = pick(a, (slice(None), slice(None), *place))
        shape = shape_of(found)
        parts.append(reshape(found, (*shape[:2], 1, *shape[2:])))
    return concatenate(parts, 2)


def _counts(sizes: Sequence[int], kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int]) -> list[int]:
    return [
        (size - spread * (width - 1) - 1) // step + 1
        for size, width, step, spread in zip(sizes, kernel, stride, dilation, strict=True)
    ]


@operator("conv1d.default", "conv2d.default", "conv3d.default")
def _convolution(a: Any, weight: Any, bias: Any = None, *rest: Any, **named: Any) -> Value:
    stride, padding, dilation, groups = filled({"stride": 1, "padding": 0, "dilation": 1, "groups": 1}, rest, named)
    kernel = shape_of(weight)[2:]
    rank = len(kernel)
    step, spread = size_list(stride, rank), size_list(dilation, rank)
    image = _padded(a, size_list(padding, rank))
    counts = _counts(shape_of(image)[2:], kernel, step, spread)
    windows = _windows(image, kernel, step, spread, counts)
    batch, channels = shape_of(windows)[:2]
    results, places, taps = shape_of(weight)[0], int(np.prod(counts)), int(np.prod(kernel))
    columns = reshape(windows, (batch, groups, channels // groups * taps, places))
    filters = reshape(weight, (1, groups, results // groups, channels // groups * taps))
    found = reshape(matmul(filters, columns), (batch, results, *counts))
    return found if bias is None else add(found, reshape(bias, (1, -1, *[1] * rank)))


@operator("conv1d.padding", "conv2d.padding", "conv3d.padding")
def _convolution_padding(a: Any, weight: Any, bias: Any = None, *rest: Any, **named: Any) -> Value:
    stride, padding, dilation, groups = filled({"stride": 1, "padding": "valid", "dilation": 1, "groups": 1}, rest, named)
    kernel = shape_of(weight)[2:]
    spread = size_list(dilation, len(kernel))
    if padding == "same":
        widths = [size * (width - 1) for size, width in zip(spread, kernel, strict=True)]
        around = [(0, 0), (0, 0), *((width // 2, width - width // 2) for width in widths)]
        own = (slice(None), slice(None), *(slice(w // 2, w // 2 + n) for w, n in zip(widths, shape_of(a)[2:], strict=True)))
        a = absorb(np.pad(value_of(a), around), (a, lambda g: g[own]))
    return _convolution(a, weight, bias, stride, 0, dilation, groups)


@operator("max_pool1d.default", "max_pool2d.default")
def _max_pool(a: Any, kernel_size: Any, *rest: Any, **named: Any) -> Value:
    defaults = {"stride": (), "padding": 0, "dilation": 1, "ceil_mode": False}
    stride, padding, dilation, ceil_mode = filled(defaults, rest, named)
    windows = _pooled(a, (kernel_size, stride, padding, dilation), -np.inf, ceil_mode=ceil_mode)
    places = np.argmax(value_of(windows), axis=2)
    grid = list(np.indices(places.shape, sparse=True))
    return pick(windows, (grid[0], grid[1], places, *grid[2:]))


@operator("avg_pool1d.default", "avg_pool2d.default")
def _avg_pool(a: Any, kernel_size: Any, *rest: Any, **named: Any) -> Value:
    defaults = {"stride": (), "padding": 0, "ceil_mode": False, "count_include_pad": True, "divisor_override": None}
    stride, padding, ceil_mode, with_padding, divisor = filled(defaults, rest, named)
    geometry = (kernel_size, stride, padding, 1)
    windows = _pooled(a, geometry, 0.0, ceil_mode=ceil_mode)
    count: Any = divisor or shape_of(windows)[2]
    if not (with_padding or divisor):
        count = value_of(_pooled(np.ones_like(value_of(a)), geometry, 0.0, ceil_mode=ceil_mode)).sum(axis=2)
    return multiply(total(windows, (2,)), 1 / count)


def _pooled(a: Any, geometry: tuple[Any, Any, Any, Any], fill: float, *, ceil_mode: bool) -> Value:
    """The windows of a pooling; ``geometry``: kernel size, stride, padding and dilation."""
    if ceil_mode:
        raise ValueError("ceil_mode is not supported")
    kernel_size, stride, padding, dilation = geometry
    rank = len(shape_of(a)) - 2
    kernel, spread = size_list(kernel_size, rank), size_list(dilation, rank)
    step = size_list(stride, rank) if stride not in ((), []) else kernel
    image = _padded(a, size_list(padding, rank), fill)
    return _windows(image, kernel, step, spread, _counts(shape_of(image)[2:], kernel, step, spread))


@operator("adaptive_avg_pool1d.default", "adaptive_avg_pool2d.default")
def _adaptive_avg(a: Any, output_size: Any) -> Value:
    return _adaptive(a, output_size, lambda part, axes: multiply(total(part, axes), 1 / np.prod(_at(shape_of(part), axes))))


def _at(shape: Sequence[int], axes: Sequence[int]) -> list[int]:
    return [shape[axis] for axis in axes]


def _adaptive(a: Any, output_size: Any, reduce: Any) -> Value:
    shape = shape_of(a)
    rank = len(output_size) if isinstance(output_size, (list, tuple)) else len(shape) - 2
    wanted = size_list(output_size, rank)
    lead, sizes = shape[: len(shape) - rank], shape[len(shape) - rank :]
    cells = []
    for place in product(*(range(count) for count in wanted)):
        index = tuple(
            slice(at * size // count, -(-((at + 1) * size) // count))
            for at, size, count in zip(place, sizes, wanted, strict=True)
        )
        part = pick(a, (*[slice(None)] * len(lead), *index))
        cells.append(reshape(reduce(part, tuple(range(len(lead), len(shape)))), (*lead, 1)))
    return reshape(concatenate(cells, -1), (*lead, *wanted))


@operator("scaled_dot_product_attention.default", draws=True)
def _attention(draw: Draw | None, query: Any, key: Any, value: Any, *rest: Any, **named: Any) -> Value:
    defaults = {"attn_mask": None, "dropout_p": 0.0, "is_causal": False, "scale": None, "enable_gqa": False}
    attn_mask, dropout_p, is_causal, scale, enable_gqa = filled(defaults, rest, named)
    if enable_gqa:
        key, value = (_grouped(part, shape_of(query)[-3]) for part in (key, value))
    factor = shape_of(query)[-1] ** -0.5 if scale is None else scale
    scores = multiply(matmul(query, _turned(key)), factor)
    if is_causal:
        rows, columns = shape_of(scores)[-2:]
        attn_mask = np.tri(rows, columns, dtype=bool)
    empty = None
    if attn_mask is not None:
        mask = value_of(attn_mask)
        if mask.dtype == bool:
            scores = where(mask, scores, -np.inf)
            empty = ~np.broadcast_to(mask, shape_of(scores)).any(axis=-1, keepdims=True)
            scores = where(empty, 0.0, scores)
        else:
            scores = add(scores, attn_mask)
    shares = softmax(scores, -1)
    if empty is not None:
        shares = where(empty, 0.0, shares)
    if draw is not None and dropout_p:
        shares = dropped(draw, shares, shape_of(shares), dropout_p)
    return matmul(shares, value)


def _grouped(a: Any, heads: int) -> Value:
    shape = shape_of(a)
    times = heads // shape[-3]
    wide = reshape(a, (*shape[:-2], 1, *shape[-2:]))
    repeated = concatenate([wide] * times, len(shape) - 2)
    return reshape(repeated, (*shape[:-3], heads, *shape[-2:]))


@operator("adaptive_max_pool1d.default", "adaptive_max_pool2d.default")
def _adaptive_max(a: Any, output_size: Any) -> list[Any]:
    shape = shape_of(a)
    rank = len(output_size) if isinstance(output_size, (list, tuple)) else len(shape) - 2
    sizes = shape[len(shape) - rank :]
    spots = np.broadcast_to(np.arange(int(np.prod(sizes))).reshape(sizes), shape)

    found = _adaptive(a, output_size, amax)
    where_found = _first_places(value_of(a), value_of(found), spots, output_size, rank)
    return [found, Value(where_found)]


def _first_places(x: Any, best: Any, spots: Any, output_size: Any, rank: int) -> Any:
    """The flat index of the first maximum of each cell."""
    wanted = size_list(output_size, rank)
    lead, sizes = x.shape[: x.ndim - rank], x.shape[x.ndim - rank :]
    found = np.zeros(best.shape, np.int64)
    for place in product(*(range(count) for count in wanted)):
        index = tuple(
            slice(at * size // count, -(-((at + 1) * size) // count))
            for at, size, count in zip(place, sizes, wanted, strict=True)
        )
        cell: Any = (*[slice(None)] * len(lead), *index)
        flat, own = x[cell].reshape(*lead, -1), spots[cell].reshape(*lead, -1)
        first = np.argmax(flat, axis=-1)[..., None]
        spot: Any = (*[slice(None)] * len(lead), *place)
        found[spot] = np.take_along_axis(own, first, -1)[..., 0]
    return found
