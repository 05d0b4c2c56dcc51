"""Tensors for selections; as a program, under ``TRITON_INTERPRET=1``: the kernels against the NumPy specification."""

from __future__ import annotations

import itertools

import numpy as np
import torch

from farflung.codecs.quantization.quantized import BlockQuantized
from farflung.codecs.sparse.selection import select
from farflung.codecs.sparse.topk import TopK
from farflung.engines.torch.arrays import to_array
from farflung.engines.torch.codecs import kernels
from tests.support.engines.payloads import encodes_as_the_host

DTYPES = [torch.float32, torch.float16, torch.bfloat16]


def tensors(dtype: torch.dtype, size: int = 5_000) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(size, generator=generator)
    odd = normal.clone()
    odd[[5, 77, 100, 200]] = torch.tensor([float("nan"), float("inf"), -0.0, -float("inf")])
    odd[300:320] = torch.tensor([float("nan")]).view(torch.int32).add(torch.arange(20, dtype=torch.int32)).view(torch.float32)
    return {
        "normal": normal.to(dtype),
        "ties": torch.randint(-3, 4, (size,), generator=generator).to(dtype),
        "mostly zero": (normal * (torch.rand(size, generator=generator) < 0.004)).to(dtype),
        "zeros": torch.zeros(500, dtype=dtype),
        "equal": torch.full((4_097,), -2.5, dtype=dtype),
        "odd": odd.to(dtype),
        "tiny": (normal * 1e-38).to(dtype),
        "one": normal[:1].to(dtype),
        "strided": normal.to(dtype)[1::3],
        "reversed strides": normal[: size // 100 * 100].to(dtype).reshape(100, -1).T.reshape(-1),
    }


def compare() -> str:
    """Raises where a choice or a payload differs."""
    from farflung.engines.torch.codecs.triton_selection import select_by_kernels

    kernels.suits_kernels = lambda flat: flat.element_size() < 8
    codec, choices, payloads = TopK(ratio=20, values="float16"), 0, 0
    for dtype in DTYPES:
        cases = [(flat, count) for flat in tensors(dtype).values() for count in (90, flat.numel() + 1)]
        cases.append((tensors(dtype, 40_000)["ties"], 20_000))  # of more than one program
        for flat, count in cases:
            found = select_by_kernels(flat, count)
            assert found.dtype == torch.int64
            np.testing.assert_array_equal(to_array(found), select(to_array(flat), min(count, flat.numel())))
        for flat, count in ((torch.empty(0, dtype=dtype), 3), (torch.ones(3, dtype=dtype), 0)):
            assert select_by_kernels(flat, count).tolist() == []
        choices += len(cases) + 1
        for tensor in list(tensors(dtype).values())[:3]:
            assert encodes_as_the_host(codec, tensor)
            payloads += 1
    quantized = sum(quantized_as_the_host(dtype) for dtype in DTYPES)
    assert not kernels.REFUSED
    return f"{choices} choices, {payloads} sparse and {quantized} quantized payloads are the same"


def quantized_as_the_host(dtype: torch.dtype) -> int:
    """How many payloads the kernel makes; raises where one differs."""
    from farflung.engines.torch.codecs.triton_quantization import encode_quantized

    count = 0
    settings = itertools.product((8, 4), (32, 4096), ("nearest", "stochastic"), (False, True))
    for seed, (bits, block, rounding, rotate) in enumerate(settings):
        codec = BlockQuantized(bits=bits, block=block, rounding=rounding, rotate=rotate, seed=seed)
        for flat in (*tensors(dtype, 5_001).values(), 3e38 * tensors(torch.float32)["normal"], -torch.zeros(600)):
            array = np.ascontiguousarray(to_array(flat))
            payload = encode_quantized(codec, array.dtype.name, array.shape, flat)
            if payload is not None:
                assert payload.to_bytes() == codec.encode(array).to_bytes(), (codec, dtype, flat.shape)
                count += 1
    assert encode_quantized(BlockQuantized(bits=3), "float32", (600,), torch.ones(600)) is None
    assert encode_quantized(BlockQuantized(block=96), "float32", (600,), torch.ones(600)) is None
    return count


if __name__ == "__main__":
    print(compare())
