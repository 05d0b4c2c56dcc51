"""The layout and the payload of a tensor, as ``messages.arrays.encode_array`` makes them of an array."""

from __future__ import annotations

import torch

from farflung.codecs.base import FLOATING, Codec, Payload
from farflung.codecs.quantization.quantized import BlockQuantized
from farflung.codecs.sparse.topk import TopK
from farflung.engines.layout import distinct
from farflung.engines.torch.arrays import spec_of
from farflung.engines.torch.codecs.kernels import by_kernels
from farflung.engines.torch.codecs.quantize import FlatTensor, TensorOperators
from farflung.engines.torch.codecs.topk import encode_topk
from farflung.wire.arrays import ArrayMeta, c_strides, packed_layout

__all__ = ["encode_tensor"]


def encode_tensor(codec: Codec, tensor: torch.Tensor) -> tuple[ArrayMeta, Payload] | None:
    """The layout and the payload of ``tensor`` by ``codec``; only what the payload holds leaves the device.

    ``None`` if the codec, the element type or the layout is one that the host must encode, or sends all elements as they are.
    """
    tensor = tensor.detach()
    spec, strides = spec_of(tensor), tuple(tensor.stride())
    shown = tuple(1 if stride == 0 else size for size, stride in zip(spec.shape, strides, strict=True))
    if spec.dtype not in FLOATING or not tensor.numel() or not distinct(shown, strides):
        return None
    meta = ArrayMeta(spec.dtype, spec.shape, None if strides == c_strides(spec.shape) else strides)
    if meta.memory_nbytes > meta.nbytes:  # gaps, which a receiver must make
        return None
    dims, numel = packed_layout(meta)
    flat = tensor.as_strided([size for size, _ in dims], [stride for _, stride in dims]).reshape(-1)
    shape = spec.shape if meta.strides is None else (numel,)  # rows have a meaning to some codecs
    if isinstance(codec, BlockQuantized) and codec.exact:
        payload = _quantized(codec, spec.dtype, shape, flat)
    elif isinstance(codec, TopK):
        payload = encode_topk(codec, spec.dtype, shape, flat)
    else:
        payload = None
    return None if payload is None else (meta, payload)


def _quantized(codec: BlockQuantized, dtype: str, shape: tuple[int, ...], flat: torch.Tensor) -> Payload | None:
    """By a kernel where one suits, else by tensor operators."""
    payload: Payload | None = by_kernels(
        flat, "triton_quantization", lambda kernels: kernels.encode_quantized(codec, dtype, shape, flat)
    )
    return codec.encode_flat(dtype, shape, FlatTensor(tensor=flat), TensorOperators()) if payload is None else payload
