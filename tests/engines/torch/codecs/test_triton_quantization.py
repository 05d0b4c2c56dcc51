"""The quantizer's kernel compiles without what would change its bits; ``test_triton_selection`` lets Triton interpret it."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from farflung.codecs.quantization.quantized import BlockQuantized
from farflung.engines.torch.codecs import kernels
from tests.support.engines.payloads import encodes_as_the_host

ROTATED = BlockQuantized(bits=4, block=128, rotate=True)


@pytest.mark.parametrize(("architecture", "pointer"), [(90, "*fp32"), (80, "*i16")])
@pytest.mark.parametrize("levels", [(4, 256, 8, True), (8, 4096, 0, False)], ids=["rotated int4", "int8"])
def test_the_kernel_compiles_for_devices_that_are_not_here(
    architecture: int, pointer: str, levels: tuple[object, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton: Any = pytest.importorskip("triton", reason="Triton is not installed: pip install farflung[triton]")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    from farflung.engines.torch.codecs.triton_quantization import quantize_blocks

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    signature = {
        "arrays": (pointer, "*i8", "*u8", "*fp32"),
        "numel": "i32",
        "seed": "i64",
        "factor": "fp32",
        "levels": "constexpr",
        "rows": "constexpr",
    }
    source = ASTSource(quantize_blocks, signature, constexprs={"levels": levels, "rows": 2})
    built = triton.compile(source, target=GPUTarget("cuda", architecture, 32), options={"enable_fp_fusion": False})
    assert built.asm["cubin"]
    assert "div.rn.f32" in built.asm["ptx"]
    assert [word for word in (".ftz", "div.full", "div.approx", "fma.rn.f32") if word in built.asm["ptx"]] == []


def test_without_triton_operators_quantize(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "suits_kernels", lambda flat: True)
    monkeypatch.setattr(kernels, "kernels_of", lambda module: None)
    assert encodes_as_the_host(ROTATED, torch.randn(1_000))


def test_where_nothing_compiles_operators_quantize(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*args: object) -> None:
        raise RuntimeError("no compiler")

    refused: set[torch.device] = set()
    monkeypatch.setattr(kernels, "REFUSED", refused)
    monkeypatch.setattr(kernels, "suits_kernels", lambda flat: flat.device not in refused)
    monkeypatch.setattr(kernels, "kernels_of", lambda module: SimpleNamespace(encode_quantized=broken))
    with pytest.warns(UserWarning, match=r"nothing for cpu \(RuntimeError no compiler\): codecs take tensor operators"):
        assert encodes_as_the_host(ROTATED, torch.randn(1_000))
    assert refused == {torch.device("cpu")}


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
def test_a_device_gives_the_bytes_of_the_specification(dtype: torch.dtype) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: pip install farflung[triton]")
    for rounding in ("nearest", "stochastic"):
        for bits, block in ((4, 128), (8, 256), (4, 4096)):
            codec = BlockQuantized(bits=bits, block=block, rotate=True, rounding=rounding, seed=block)
            assert encodes_as_the_host(codec, torch.randn(1 << 22).to(dtype), "cuda")
    assert not kernels.REFUSED
