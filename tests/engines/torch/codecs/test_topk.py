"""Top-k of tensors chooses what the NumPy specification chooses, and gives the same bytes."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from farflung.codecs import get_codec
from farflung.codecs.sparse.selection import select
from farflung.codecs.sparse.topk import TopK
from farflung.engines.torch.arrays import to_array
from farflung.engines.torch.codecs.topk import plain_topk, plain_untopk, select_tensor
from tests.support.engines.payloads import encodes_as_the_host

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def tensors(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(70_000, generator=generator)
    odd = normal.clone()
    odd[[5, 77, 100]] = torch.tensor([float("nan"), float("inf"), -0.0])
    return {
        "normal": normal.to(dtype),
        "ties": torch.randint(-3, 4, (70_000,), generator=generator).to(dtype),
        "mostly zero": (normal * (torch.rand(70_000, generator=generator) < 0.004)).to(dtype),
        "odd": odd.to(dtype),
        "small": normal[:300].to(dtype),
    }


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", ["normal", "ties", "mostly zero", "odd", "small"])
def test_the_same_elements_as_the_specification(kind: str, dtype: torch.dtype) -> None:
    flat = tensors(dtype)[kind]
    for count in (1, 299, 1200, 40_000):
        wanted = select(to_array(flat), min(count, flat.numel()))
        np.testing.assert_array_equal(to_array(select_tensor(flat, min(count, flat.numel()))), wanted)


@pytest.mark.parametrize("dtype", [*DTYPES, torch.int64])
@pytest.mark.parametrize(
    "params", [{"ratio": 100}, {"ratio": 10, "values": "float16"}, {"ratio": 50, "values": "int8"}, {"ratio": 1}]
)
def test_the_same_bytes_as_the_specification(dtype: torch.dtype, params: dict[str, object]) -> None:
    codec = get_codec("topk", **params)
    assert isinstance(codec, TopK)
    for tensor in (*tensors(dtype).values(), tensors(dtype)["normal"].reshape(200, 350).T):
        assert encodes_as_the_host(codec, tensor) == (dtype.is_floating_point and codec.pays(tensor.numel(), tensor.itemsize))


def test_other_selections_are_left_to_the_specification() -> None:
    codec = TopK(ratio=20, selection="blocks")
    tensor = tensors(torch.float32)["normal"]
    assert not encodes_as_the_host(codec, tensor)


def test_the_peer_is_what_everybody_would_write() -> None:
    array = np.array([1.0, -5.0, 0.5, 4.0], np.float32)
    values, indices = plain_topk(array, 2)
    assert sorted(zip(indices.tolist(), values.tolist(), strict=True)) == [(1, -5.0), (3, 4.0)]
    assert indices.dtype == np.int64
    assert plain_untopk(values, indices, 4).tolist() == [0.0, -5.0, 0.0, 4.0]


@pytest.mark.gpu
def test_a_device_chooses_the_same() -> None:
    for tensor in tensors(torch.float32).values():
        codec = TopK(ratio=100, values="float16")
        assert encodes_as_the_host(codec, tensor, "cuda") == codec.pays(tensor.numel(), 4)
