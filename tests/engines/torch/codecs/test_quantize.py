"""Quantizers of tensors give the bytes of the NumPy quantizers."""

from __future__ import annotations

import itertools

import pytest
import torch

from farflung.codecs.quantization.quantized import BlockQuantized
from farflung.engines.torch.codecs import quantize
from tests.support.engines.payloads import encodes_as_the_host

DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16]


def tensors(dtype: torch.dtype) -> dict[str, torch.Tensor]:
    generator = torch.Generator().manual_seed(0)
    normal = torch.randn(3_001, generator=generator)
    odd = normal.clone()
    odd[[5, 300, 900, 1_500]] = torch.tensor([float("nan"), float("inf"), -float("inf"), -0.0])
    signs = torch.where(torch.rand(1_024, generator=generator) < 0.5, 0.0, -0.0)
    found = {
        "normal": normal,
        "odd": odd,
        "zeros of both signs": signs,
        "zeros": torch.zeros(1_024),
        "minus zeros": -torch.zeros(1_024),
        "large": normal * (3e38 if dtype is not torch.float16 else 6e4),
        "tiny": normal * 1e-42,
        "ties": torch.randint(-7, 8, (1_024,), generator=generator) / 2,
        "rows": normal[:3_000].reshape(10, 10, 30),
        "transposed": normal[:3_000].reshape(50, 60).T,
        "slice": normal[:3_000].to(dtype).reshape(50, 60)[:, 7:47],
        "expanded": normal[:600].reshape(1, 600).expand(4, 600),
        "short last dim": normal[:1_000].reshape(500, 2, 1),
    }
    return {name: tensor.to(dtype) for name, tensor in found.items()}


SETTINGS = [
    {"bits": bits, "rounding": rounding, "rotate": rotate, "block": block}
    for bits, rounding, rotate, block in itertools.product(
        (8, 4, 3, 2, 1), ("nearest", "stochastic"), (False, True), (128, "row", 30)
    )
    if bits > 2 or rounding == "stochastic"
]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_the_same_bytes_as_the_specification(dtype: torch.dtype) -> None:
    encoded = set()
    for number, settings in enumerate(SETTINGS):
        codec = BlockQuantized(**settings, seed=number)  # type: ignore[arg-type]
        for name, tensor in tensors(dtype).items():
            if encodes_as_the_host(codec, tensor):
                encoded.add(name)
    assert encoded == tensors(dtype).keys() - {"slice"}


@pytest.mark.parametrize("bits", [8, 4, 3, 2])
@pytest.mark.parametrize("block", [30, 64, 4096])
def test_runs_are_the_whole(bits: int, block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quantize, "RUN", 200)
    codec = BlockQuantized(bits=bits, block=block, rotate=True, rounding="stochastic")
    for numel in (9_001, 8_192, 4_100):
        assert encodes_as_the_host(codec, torch.randn(numel, generator=torch.Generator().manual_seed(bits)))


@pytest.mark.parametrize("codec", [BlockQuantized(bits=2), BlockQuantized(bits=1), BlockQuantized(bits=4, scale="normal")])
def test_sums_without_an_order_are_left_to_the_host(codec: BlockQuantized) -> None:
    assert not encodes_as_the_host(codec, torch.randn(1_024))


def test_what_is_smaller_as_it_is_is_left_to_the_host() -> None:
    assert not encodes_as_the_host(BlockQuantized(bits=8), torch.randn(8))
    assert not encodes_as_the_host(BlockQuantized(bits=8), torch.arange(1_024))
    assert not encodes_as_the_host(BlockQuantized(bits=8), torch.empty(0, 4))


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_device_gives_the_same_bytes(dtype: torch.dtype) -> None:
    for settings in SETTINGS:
        codec = BlockQuantized(**settings, seed=3)  # type: ignore[arg-type]
        for tensor in tensors(dtype).values():
            encodes_as_the_host(codec, tensor, "cuda")
