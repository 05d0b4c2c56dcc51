"""Element types, and arrays between the host and JAX."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from farflung.engines.base import Array
from farflung.errors import GraphError
from farflung.graph.ir import Arg, DTypeArg, LocalRef, StateRef, TensorSpec, ValueRef

__all__ = ["JAX_DTYPES", "aligned", "dtype_of", "place", "placed_copy", "resolve", "struct"]

#: The closed table of element types.
JAX_DTYPES: Mapping[str, Any] = {
    "float64": jnp.float64,
    "float32": jnp.float32,
    "float16": jnp.float16,
    "bfloat16": jnp.bfloat16,
    "int64": jnp.int64,
    "int32": jnp.int32,
    "int16": jnp.int16,
    "int8": jnp.int8,
    "uint8": jnp.uint8,
    "bool": jnp.bool_,
    "complex64": jnp.complex64,
    "complex128": jnp.complex128,
}
#: XLA computes on memory of the host without a copy if it begins at a multiple of this.
_ALIGNMENT = 64


def dtype_of(name: str) -> Any:
    """The element type called ``name``.

    Raises:
        GraphError: there is none.
    """
    try:
        return JAX_DTYPES[name]
    except KeyError:
        raise GraphError(f"element type {name!r} is not known; known are {', '.join(JAX_DTYPES)}") from None


def aligned(array: Array) -> Array:
    """A copy of ``array`` in one piece of memory that XLA can use as it is."""
    memory = np.empty(array.nbytes + _ALIGNMENT, np.uint8)
    start = -memory.ctypes.data % _ALIGNMENT
    found = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    found[...] = array
    return found


def place(array: Array, device: Any) -> Any:
    """``array`` on ``device``; on a CPU the memory is shared where possible, so the caller keeps it."""
    return jax.device_put(array, device)


def placed_copy(array: Array, device: Any) -> Any:
    """A copy of ``array`` on ``device``: the memory of the caller may change."""
    return jax.device_put(aligned(array), device)


def struct(spec: TensorSpec, device: Any, dtype: Any = None) -> Any:
    """What a program is compiled for: shape and element type of ``spec`` on ``device``."""
    sharding = jax.sharding.SingleDeviceSharding(device)
    return jax.ShapeDtypeStruct(spec.shape, dtype_of(spec.dtype) if dtype is None else dtype, sharding=sharding)


def resolve(arg: Arg, ref: Callable[[ValueRef | StateRef | LocalRef], Any]) -> Any:
    """``arg`` as the functions of the table take it, references replaced by ``ref``.

    Raises:
        GraphError: an element type that is not in the closed table.
    """
    if isinstance(arg, tuple):
        return [resolve(item, ref) for item in arg]
    if isinstance(arg, (ValueRef, StateRef, LocalRef)):
        return ref(arg)
    return dtype_of(arg.name) if isinstance(arg, DTypeArg) else arg
