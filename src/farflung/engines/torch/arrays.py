"""NumPy arrays to tensors and back, keeping strides; bfloat16 passes as ``ml_dtypes.bfloat16``."""

from __future__ import annotations

from collections.abc import Mapping

import ml_dtypes
import numpy as np
import torch

from farflung.engines.base import Array
from farflung.engines.layout import distinct
from farflung.errors import GraphError
from farflung.graph.ir import TensorSpec

__all__ = ["TORCH_DTYPES", "check_array", "from_array", "spec_of", "to_array"]

#: The closed table of element types.
TORCH_DTYPES: Mapping[str, torch.dtype] = {
    "float64": torch.float64,
    "float32": torch.float32,
    "float16": torch.float16,
    "bfloat16": torch.bfloat16,
    "int64": torch.int64,
    "int32": torch.int32,
    "int16": torch.int16,
    "int8": torch.int8,
    "uint8": torch.uint8,
    "bool": torch.bool,
    "complex64": torch.complex64,
    "complex128": torch.complex128,
}
_NAMES = {dtype: name for name, dtype in TORCH_DTYPES.items()}
_BF16 = np.dtype(ml_dtypes.bfloat16)


def spec_of(tensor: torch.Tensor) -> TensorSpec:
    """Shape and element type of ``tensor``."""
    return TensorSpec(dtype=_NAMES.get(tensor.dtype, str(tensor.dtype)), shape=tuple(tensor.shape))


def check_array(what: str, array: Array, spec: TensorSpec) -> None:
    """Refuse an array that isn't as declared.

    Raises:
        GraphError: names the state, its declared and its found shape and element type.
    """
    if array.shape != spec.shape or array.dtype.name != spec.dtype:
        raise GraphError(
            f"{what} is declared {spec.dtype}{list(spec.shape)} but the given array is {array.dtype.name}{list(array.shape)}"
        )


def from_array(array: Array, device: torch.device) -> torch.Tensor:
    """A fresh aligned tensor with the values and strides of ``array``; broadcast axes (stride 0) stay broadcast.

    To a GPU the copy goes through pinned memory. Kernels that are launched afterwards wait for it, the caller does not.
    """
    shape, dtype = array.shape, _torch_dtype(array.dtype.name)
    if array.dtype == _BF16:
        array = array.view(np.uint16)
    packed = array[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in array.strides)]
    strides = tuple(stride // array.itemsize for stride in packed.strides)
    if not distinct(packed.shape, strides):
        strides = torch.empty(packed.shape, device="meta").stride()
    host = _staging(packed.shape, strides, dtype, device)
    (host.view(torch.uint16) if dtype is torch.bfloat16 else host).numpy()[...] = packed
    tensor = host
    if device.type != "cpu":
        tensor = torch.empty_strided(packed.shape, strides, dtype=dtype, device=device)
        tensor.copy_(host, non_blocking=host.is_pinned())  # PyTorch reuses pinned memory only after the copy
    return tensor.expand(shape) if packed.shape != shape else tensor


def to_array(tensor: torch.Tensor, *, copy: bool = False) -> Array:
    """The values of ``tensor`` with its strides; without ``copy`` a CPU tensor's memory is shared.

    From a GPU the copy goes through pinned memory and is complete when this returns.
    """
    tensor = tensor.detach().resolve_conj().resolve_neg()
    if copy or tensor.device.type != "cpu":
        packed = tensor[tuple(slice(0, 1) if stride == 0 else slice(None) for stride in tensor.stride())]
        strides = packed.stride() if distinct(tuple(packed.shape), packed.stride()) else packed.contiguous().stride()
        host = _staging(tuple(packed.shape), strides, tensor.dtype, tensor.device)
        host.copy_(packed)
        tensor = host.expand(tensor.shape)
    if tensor.dtype is torch.bfloat16:
        return tensor.view(torch.uint16).numpy().view(_BF16)
    return tensor.numpy()


def _staging(shape: tuple[int, ...], strides: tuple[int, ...], dtype: torch.dtype, device: torch.device) -> torch.Tensor:
    """Memory of the host for a copy from or to ``device``; pinned for a GPU, from the pool of PyTorch."""
    return torch.empty_strided(shape, strides, dtype=dtype, pin_memory=device.type == "cuda")


def _torch_dtype(name: str) -> torch.dtype:
    try:
        return TORCH_DTYPES[name]
    except KeyError:
        raise GraphError(f"element type {name!r} is not known; known are {', '.join(TORCH_DTYPES)}") from None
