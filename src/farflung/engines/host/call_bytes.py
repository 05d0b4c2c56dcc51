"""How many bytes a call of a program takes, from the shapes of its arguments, before it runs."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from math import ceil, prod
from typing import Any

import numpy as np

from farflung.graph.opset import OPSET

__all__ = ["call_bytes"]

#: Bytes of an element of new arrays in float32, and where neither an argument nor an element type says more.
_FLOAT, _WORD = 4, 8
_FLOAT32 = frozenset({"zeros.default", "ones.default", "empty.memory_format", "eye.default", "eye.m"})
#: Operators that are listed as views and make copies here.
_COPIES = frozenset({"clone.default", "select_copy.int", "diagonal_copy.default"})
_RESHAPES = frozenset({"view.default", "reshape.default", "contiguous.default"})
#: Operators that give a scalar, whatever the size of their argument, and need no array of that size beside it.
_SCALARS = frozenset({"sum.default", "mean.default", "max.default", "min.default"})


def call_bytes(target: str, args: Sequence[Any], kwargs: Mapping[str, Any]) -> int:
    """The bytes of the arrays that a call of ``target`` makes: of its result, or of what it computes on the way if that is more.

    A broadcast argument counts with all its elements. Views of memory that is there take nothing.
    """
    name = target.removeprefix("aten.")
    arrays, known = list(_arrays((*args, *kwargs.values()))), OPSET.get(target)
    if name in _RESHAPES:
        return 0 if arrays[0].flags.c_contiguous else _size(arrays[0])
    if known is not None and known.view and name not in _COPIES:
        return 0
    if name in _SCALARS:
        return _WORD
    rule = _COUNTS.get(name)
    if rule is None:
        count = prod(np.broadcast_shapes(*(array.shape for array in arrays)))
    else:
        count = rule(*args, **{key: value for key, value in kwargs.items() if key not in _OPTIONS})
    sizes = [item.itemsize for item in (*arrays, *args, *kwargs.values()) if isinstance(item, (np.ndarray, np.dtype))]
    draws = known is not None and (known.random or "rand" in name)  # random numbers are words of 64 bits first
    least = _WORD if draws or (not sizes and name not in _FLOAT32) else _FLOAT if not sizes else 1
    return count * max([*sizes, least])


_OPTIONS = frozenset({"dtype", "layout", "device", "pin_memory", "memory_format", "generator"})


def _arrays(items: Iterable[Any]) -> Iterator[Any]:
    for item in items:
        if isinstance(item, np.ndarray):
            yield item
        elif isinstance(item, (list, tuple)):
            yield from _arrays(item)


def _size(array: Any) -> int:
    """Bytes of a copy: an array that was broadcast has fewer itself."""
    return int(array.size * array.itemsize)


def _steps(start: float, end: float, step: float = 1) -> int:
    return max(0, ceil((end - start) / step))


def _sum_of_sizes(tensors: Sequence[Any], dim: int = 0) -> int:
    del dim
    return sum(int(item.size) for item in tensors)


def _matrix(one: Any, other: Any) -> int:
    if one.ndim < 2 or other.ndim < 2:
        return int(max(one.size, other.size))
    return prod(np.broadcast_shapes(one.shape[:-2], other.shape[:-2])) * int(one.shape[-2] * other.shape[-1])


def _padded(x: Any, pad: Sequence[int], *rest: Any, **options: Any) -> int:
    del rest, options
    sizes = list(x.shape)
    for axis, (before, after) in enumerate(zip(pad[::2], pad[1::2], strict=True), 1):
        sizes[-axis] += before + after
    return prod(max(size, 0) for size in sizes)


def _factors(x: Any, mode: str = "reduced") -> int:
    rows, columns = x.shape[-2:]
    inner = rows if mode == "complete" else min(rows, columns)
    return int(prod(x.shape[:-2]) * (rows * inner + inner * columns))


#: Elements of the result, where that is not what the arguments broadcast to.
_COUNTS: Mapping[str, Callable[..., int]] = {
    **dict.fromkeys(("full.default",), lambda size, value: prod(size)),
    **dict.fromkeys(("zeros.default", "ones.default", "empty.memory_format", "rand.default", "randn.default"), prod),
    **dict.fromkeys(("new_zeros.default", "new_ones.default", "new_empty.default"), lambda x, size: prod(size)),
    "new_full.default": lambda x, size, value: prod(size),
    "arange.default": lambda end: _steps(0, end),
    "arange.start": _steps,
    "arange.start_step": _steps,
    "eye.default": lambda n: n * n,
    "eye.m": lambda n, m: n * m,
    "linspace.default": lambda start, end, steps: steps,
    "cat.default": _sum_of_sizes,
    "stack.default": _sum_of_sizes,
    "repeat.default": lambda x, repeats: int(x.size) * prod(repeats),
    "outer.default": lambda one, other: int(one.size * other.size),
    "mm.default": _matrix,
    "bmm.default": _matrix,
    "matmul.default": _matrix,
    "addmm.default": lambda x, one, other, **factors: max(int(x.size), _matrix(one, other)),
    "pad.default": _padded,
    "constant_pad_nd.default": _padded,
    "linalg_qr.default": _factors,
    "index_put.default": lambda x, *rest: int(x.size),
}
