"""Operators on NumPy arrays. Views share memory and ``*_`` operators write to it, as in PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

import ml_dtypes
import numpy as np
from scipy.special import erf, erfinv

from farflung.engines.base import Array
from farflung.engines.host.random_bits import Stream
from farflung.errors import GraphError

__all__ = ["HOST", "host_dtype", "host_function"]

Function = Callable[..., Any]
HOST: dict[str, Function] = {}
_BF16 = np.dtype(ml_dtypes.bfloat16)


def host_dtype(name: str) -> np.dtype[Any]:
    """The element type called ``name``."""
    return _BF16 if name == "bfloat16" else np.dtype(name)


def host_function(target: str) -> Function:
    """The function of the operator ``target`` of a program.

    Raises:
        GraphError: this engine has none.
    """
    name = target.removeprefix("aten.")
    if name not in HOST:
        raise GraphError(f"operator {target!r} of an initializer or optimizer needs PyTorch: use a worker with --engine torch")
    return HOST[name]


def _host(*names: str) -> Callable[[Function], Function]:
    def register(function: Function) -> Function:
        HOST.update(dict.fromkeys(names, function))
        return function

    return register


def _in_place(name: str, overload: str, function: Function) -> None:
    """Register ``function``, and what writes its result to the first argument."""

    def write(x: Array, *args: Any, **kwargs: Any) -> Array:
        x[...] = function(x, *args, **kwargs)
        return x

    HOST[f"{name}.{overload}"] = function
    HOST[f"{name}_.{overload}"] = write


def _weighted(function: Function) -> Function:
    def call(x: Array, other: Any, alpha: float = 1) -> Any:
        return function(x, other if alpha == 1 else _like(x, alpha) * other)

    return call


def _like(x: Array, number: Any) -> Any:
    """``number`` as the elements of ``x`` are."""
    return x.dtype.type(number) if isinstance(number, float) and x.dtype.kind == "f" else number


def _floating(function: Function) -> Function:
    """``function`` whose result is float32 where it would be wider than its arguments."""

    def call(x: Array, *args: Any) -> Any:
        return function(x if x.dtype.kind in "fV" or x.dtype == _BF16 else x.astype(np.float32), *args)

    return call


def _div(x: Array, other: Any, *, rounding_mode: str | None = None) -> Any:
    if rounding_mode is None:
        return _floating(np.true_divide)(x, other)
    return np.floor_divide(x, other) if rounding_mode == "floor" else np.trunc(np.true_divide(x, other)).astype(x.dtype)


def _lerp(x: Array, end: Array, weight: Any) -> Array:
    factor = _like(x, float(weight))
    found: Array = x + factor * (end - x) if abs(weight) < 0.5 else end - (end - x) * (1 - factor)
    return found


def _clamp(x: Array, least: Any = None, most: Any = None, *, min: Any = None, max: Any = None) -> Array:  # noqa: A002
    return np.clip(x, min if least is None else least, max if most is None else most).astype(x.dtype)


_UNARY: Mapping[str, Function] = {
    "abs": np.abs, "ceil": np.ceil, "floor": np.floor, "neg": np.negative, "round": np.round, "sign": np.sign,
    "square": np.square, "trunc": np.trunc, "cos": _floating(np.cos), "sin": _floating(np.sin), "exp": _floating(np.exp),
    "exp2": _floating(np.exp2), "expm1": _floating(np.expm1), "log": _floating(np.log), "log1p": _floating(np.log1p),
    "sqrt": _floating(np.sqrt), "tanh": _floating(np.tanh), "rsqrt": _floating(lambda x: 1 / np.sqrt(x)),
    "reciprocal": _floating(lambda x: 1 / x), "erf": _floating(erf), "erfinv": _floating(erfinv),
}  # fmt: skip
for _name, _function in _UNARY.items():
    _in_place(_name, "default", _function)
for _name, _function in {"eq": np.equal, "ne": np.not_equal, "lt": np.less, "le": np.less_equal, "gt": np.greater,
                         "ge": np.greater_equal, "remainder": np.remainder}.items():  # fmt: skip
    HOST[f"{_name}.Scalar"] = HOST[f"{_name}.Tensor"] = _function
for _overload in ("Scalar", "Tensor"):
    _in_place("add", _overload, _weighted(np.add))
    _in_place("sub", _overload, _weighted(np.subtract))
    _in_place("mul", _overload, np.multiply)
    _in_place("div", _overload, _div)
    _in_place("lerp", _overload, _lerp)
HOST |= {"div.Tensor_mode": _div, "div.Scalar_mode": _div, "floor_divide.default": np.floor_divide}
HOST |= {"maximum.default": np.maximum, "minimum.default": np.minimum, "max.other": np.maximum, "min.other": np.minimum}
_in_place("clamp", "default", _clamp)
_in_place("clamp_min", "default", lambda x, least: np.maximum(x, _like(x, least)))
_in_place("clamp_max", "default", lambda x, most: np.minimum(x, _like(x, most)))
_in_place("addcmul", "default", lambda x, one, two, *, value=1: x + _like(x, value) * one * two)
_in_place("addcdiv", "default", lambda x, one, two, *, value=1: x + _like(x, value) * one / two)
_in_place("masked_fill", "Scalar", lambda x, mask, value: np.where(mask, _like(x, value), x))
_in_place("tril", "default", lambda x, diagonal=0: np.tril(x, diagonal))
_in_place("triu", "default", lambda x, diagonal=0: np.triu(x, diagonal))
_in_place("cumsum", "default", lambda x, dim, *, dtype=None: np.cumsum(x, axis=dim, dtype=dtype))
_in_place("pow", "Scalar", np.power)
HOST["pow.Tensor_Scalar"] = lambda x, exponent: np.square(x) if exponent == 2 else np.power(x, _like(x, exponent))
HOST["pow.Tensor_Tensor"] = np.power
HOST["pow.Scalar"] = lambda base, x: np.power(np.asarray(base, x.dtype if x.dtype.kind == "f" else None), x)
HOST["rsub.Scalar"] = lambda x, other, alpha=1: other - (x if alpha == 1 else alpha * x)
HOST["where.self"] = HOST["where.ScalarOther"] = HOST["where.ScalarSelf"] = np.where

# -- views, which share memory ---------------------------------------------------------------------------------------


def _select(x: Array, dim: int, index: int) -> Array:
    place: tuple[Any, ...] = (*(slice(None) for _ in range(dim % x.ndim)), index)
    found: Array = x[place]
    return found


@_host("slice.Tensor")
def _slice(x: Array, dim: int = 0, start: int | None = None, end: int | None = None, step: int = 1) -> Array:
    return x[(*(slice(None) for _ in range(dim % x.ndim)), slice(start, end, step))]


@_host("expand.default")
def _expand(x: Array, size: Sequence[int], *, implicit: bool = False) -> Array:
    del implicit
    kept = (1,) * (len(size) - x.ndim) + x.shape
    shape = [have if want == -1 else want for have, want in zip(kept, size, strict=True)]
    # NumPy's broadcasts are read-only, and a program may write to a view of the same size.
    return x.reshape(shape) if prod(shape) == x.size else np.broadcast_to(x, shape)


@_host("split.Tensor")
def _split(x: Array, size: int, dim: int = 0) -> tuple[Array, ...]:
    return tuple(_slice(x, dim, at, at + size) for at in range(0, max(x.shape[dim], 1), max(size, 1)))


@_host("squeeze.default", "squeeze.dim", "squeeze.dims")
def _squeeze(x: Array, dim: Any = None) -> Array:
    dims = range(x.ndim) if dim is None else [dim] if isinstance(dim, int) else dim
    return np.squeeze(x, tuple(at % x.ndim for at in dims if x.ndim and x.shape[at] == 1))


HOST |= {
    "select.int": _select,
    "select_copy.int": lambda x, dim, index: _select(x, dim, index).copy(),
    "narrow.default": lambda x, dim, start, length: _slice(x, dim, start, start + length),
    "chunk.default": lambda x, chunks, dim=0: _split(x, max(-(-x.shape[dim] // chunks), 1), dim),
    "unbind.int": lambda x, dim=0: tuple(_select(x, dim, index) for index in range(x.shape[dim])),
    "view.default": lambda x, shape: x.reshape(shape),
    "reshape.default": lambda x, shape: x.reshape(shape),
    "t.default": lambda x: x.T,
    "numpy_T.default": lambda x: x.T,
    "transpose.int": np.swapaxes,
    "permute.default": np.transpose,
    "unsqueeze.default": np.expand_dims,
    "diagonal.default": lambda x, offset=0, dim1=0, dim2=1: np.lib.stride_tricks.as_strided(
        (view := np.diagonal(x, offset, dim1, dim2)), view.shape, view.strides, writeable=x.flags.writeable
    ),
    "detach.default": lambda x: x,
    "alias.default": lambda x: x,
    "clone.default": lambda x, **options: x.copy(),
    "contiguous.default": lambda x, **options: np.ascontiguousarray(x),
}

# -- new tensors ------------------------------------------------------------------------------------------------------


def _full(size: Sequence[int], value: Any, *, dtype: Any = None, **options: Any) -> Array:
    del options
    kind = np.bool_ if isinstance(value, bool) else np.int64 if isinstance(value, int) else np.float32
    return np.full(size, value, kind if dtype is None else dtype)


def _constant(value: float) -> Function:
    return lambda size, *, dtype=None, **options: np.full(size, value, np.float32 if dtype is None else dtype)


def _constant_like(value: float) -> Function:
    return lambda x, *, dtype=None, **options: np.full(x.shape, value, x.dtype if dtype is None else dtype)


def _arange(start: float, end: float, step: float = 1, *, dtype: Any = None, **options: Any) -> Array:
    del options
    kind = np.int64 if all(isinstance(item, int) for item in (start, end, step)) else np.float32
    return np.arange(start, end, step, dtype=kind if dtype is None else dtype)


def _wide(x: Array) -> Array:
    """Products of 16-bit numbers are summed in float32, as PyTorch does."""
    return x.astype(np.float32) if x.dtype in (_BF16, np.float16) else x


def _product(one: Array, other: Array) -> Array:
    found: Array = np.matmul(_wide(one), _wide(other)).astype(one.dtype)
    return found


def _sum_of_products(x: Array, one: Array, other: Array, *, beta: float = 1, alpha: float = 1) -> Array:
    wide = _wide(x)
    found: Array = _like(wide, float(beta)) * wide + _like(wide, float(alpha)) * np.matmul(_wide(one), _wide(other))
    return found.astype(x.dtype)


@_host("index_put.default")
def _index_put(x: Array, indices: Sequence[Array | None], values: Array, accumulate: bool = False) -> Array:
    place: Any = tuple(slice(None) if index is None else index for index in indices)
    found = x.copy()
    if accumulate:
        np.add.at(found, place, values)
    else:
        found[place] = values
    return found


HOST |= {
    "full.default": _full,
    "zeros.default": _constant(0),
    "empty.memory_format": _constant(0),
    "ones.default": _constant(1),
    "zeros_like.default": _constant_like(0),
    "empty_like.default": _constant_like(0),
    "ones_like.default": _constant_like(1),
    "full_like.default": lambda x, value, *, dtype=None, **o: np.full(x.shape, value, x.dtype if dtype is None else dtype),
    "new_zeros.default": lambda x, size, *, dtype=None, **o: np.zeros(size, x.dtype if dtype is None else dtype),
    "new_ones.default": lambda x, size, *, dtype=None, **o: np.ones(size, x.dtype if dtype is None else dtype),
    "new_full.default": lambda x, size, value, *, dtype=None, **o: np.full(size, value, x.dtype if dtype is None else dtype),
    "arange.default": lambda end, **options: _arange(0, end, **options),
    "arange.start": _arange,
    "arange.start_step": _arange,
    "eye.default": lambda n, *, dtype=None, **options: np.eye(n, dtype=np.float32 if dtype is None else dtype),
    "eye.m": lambda n, m, *, dtype=None, **options: np.eye(n, m, dtype=np.float32 if dtype is None else dtype),
    "linspace.default": lambda a, b, n, *, dtype=None, **o: np.linspace(a, b, n, dtype=np.float32 if dtype is None else dtype),
    "scalar_tensor.default": lambda s, *, dtype=None, **o: np.asarray(s, np.float32 if dtype is None else dtype),
    "cat.default": lambda tensors, dim=0: np.concatenate(tensors, axis=dim),
    "stack.default": lambda tensors, dim=0: np.stack(tensors, axis=dim),
    "repeat.default": np.tile,
    "outer.default": np.outer,
    "mm.default": _product,
    "bmm.default": _product,
    "matmul.default": _product,
    "addmm.default": _sum_of_products,
    "to.dtype": lambda x, dtype, *rest, **options: x.astype(dtype),
    "to.device": lambda x, device, dtype, *rest, **options: x.astype(dtype),
    "to.dtype_layout": lambda x, *, dtype=None, **options: x if dtype is None else x.astype(dtype),
    "_to_copy.default": lambda x, *, dtype=None, **options: x.copy() if dtype is None else x.astype(dtype),
    "logical_not.default": np.logical_not,
}


@_host("pad.default", "constant_pad_nd.default")
def _pad(x: Array, pad: Sequence[int], mode: Any = "constant", value: float | None = None) -> Array:
    value = value if isinstance(mode, str) else mode
    pairs = list(zip(pad[::2], pad[1::2], strict=True))[::-1]
    return np.pad(x, [(0, 0)] * (x.ndim - len(pairs)) + pairs, constant_values=value or 0)


# -- reductions -------------------------------------------------------------------------------------------------------


def _axes(dim: Any) -> Any:
    return dim if dim is None or isinstance(dim, int) else tuple(dim) or None


@_host("linalg_vector_norm.default")
def _norm(x: Array, order: float = 2, dim: Any = None, keepdim: bool = False, *, dtype: Any = None) -> Any:
    x = x if dtype is None else x.astype(dtype)
    if order == 2:
        return np.sqrt(np.sum(np.square(x), axis=_axes(dim), keepdims=keepdim))
    return np.power(np.sum(np.power(np.abs(x), order), axis=_axes(dim), keepdims=keepdim), 1 / order)


HOST |= {
    "sum.default": lambda x, *, dtype=None: np.sum(x, dtype=dtype),
    "mean.default": lambda x, *, dtype=None: np.mean(x, dtype=dtype),
    "sum.dim_IntList": lambda x, dim, keepdim=False, *, dtype=None: np.sum(x, axis=_axes(dim), keepdims=keepdim, dtype=dtype),
    "mean.dim": lambda x, dim, keepdim=False, *, dtype=None: np.mean(x, axis=_axes(dim), keepdims=keepdim, dtype=dtype),
    "max.default": np.max,
    "min.default": np.min,
    "amax.default": lambda x, dim=(), keepdim=False: np.max(x, axis=_axes(dim), keepdims=keepdim),
    "std.correction": lambda x, dim=None, *, correction=None, keepdim=False: np.std(
        x, axis=_axes(dim), ddof=1 if correction is None else correction, keepdims=keepdim
    ),
    "var.correction": lambda x, dim=None, *, correction=None, keepdim=False: np.var(
        x, axis=_axes(dim), ddof=1 if correction is None else correction, keepdims=keepdim
    ),
    "linalg_qr.default": lambda x, mode="reduced": tuple(np.linalg.qr(x, mode)),
}

# -- writes, some of random numbers -----------------------------------------------------------------------------------


def _write(x: Array, value: Any) -> Array:
    x[...] = value
    return x


HOST |= {
    "copy_.default": lambda x, src, non_blocking=False: _write(x, src),
    "fill_.Scalar": _write,
    "fill_.Tensor": _write,
    "zero_.default": lambda x: _write(x, 0),
    "uniform_.default": lambda x, low=0.0, high=1.0, *, generator=None, stream: _write(x, _uniform(x, low, high, stream)),
    "normal_.default": lambda x, mean=0.0, std=1.0, *, generator=None, stream: _write(x, _normal(x, mean, std, stream)),
    "bernoulli_.float": lambda x, p=0.5, *, generator=None, stream: _write(x, stream.kept(x.shape, p)),
    "rand.default": lambda size, *, stream, **options: stream.uniform(tuple(size)),
    "randn.default": lambda size, *, stream, **options: stream.normal(tuple(size)),
    "rand_like.default": lambda x, *, stream, **options: stream.uniform(x.shape),
    "randn_like.default": lambda x, *, stream, **options: stream.normal(x.shape),
}


def _uniform(x: Array, low: float, high: float, stream: Stream) -> Array:
    found = stream.uniform(x.shape, x.dtype.name)
    kind = found.dtype.type
    # PyTorch multiplies and adds with one rounding.
    scaled: Array = (found.astype(np.float64) * float(kind(high) - kind(low)) + float(kind(low))).astype(found.dtype)
    return scaled


def _normal(x: Array, mean: float, std: float, stream: Stream) -> Array:
    if x.dtype != np.float32 or (not x.flags.c_contiguous and prod(x.shape) > 0):
        raise GraphError(f"normal numbers in {x.dtype.name} need PyTorch: use a worker with --engine torch")
    return stream.normal(x.shape, mean, std)
