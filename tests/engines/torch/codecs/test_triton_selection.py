"""The kernels for CUDA choose what the NumPy specification chooses; without a device Triton interprets them."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from farflung.codecs.sparse.selection import select
from farflung.engines.torch.arrays import to_array
from farflung.engines.torch.codecs import kernels
from farflung.engines.torch.codecs.topk import select_tensor
from tests.support.engines import interpreted_kernels
from tests.support.engines.interpreted_kernels import DTYPES, tensors

OPTIONS = {"enable_fp_fusion": False}
SELECTING = Path(kernels.__file__).with_name("triton_selection.py")


def loaded(name: str) -> ModuleType:
    """The kernels, decorated anew."""
    spec = importlib.util.spec_from_file_location(name, SELECTING)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)
    return module


def test_kernels_choose_what_the_specification_chooses() -> None:
    """Triton must be told before it is loaded that it shall interpret, so that has a process of its own."""
    pytest.importorskip("triton", reason="Triton is not installed: pip install farflung[triton]")
    ran = subprocess.run(
        [
            sys.executable,
            "-W",
            "error",
            "-W",
            "ignore::DeprecationWarning",
            "-m",
            interpreted_kernels.__name__,
        ],
        cwd=Path(__file__).parents[4],
        env={**os.environ, "TRITON_INTERPRET": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr[-2000:]
    assert ran.stdout == "66 choices, 9 sparse and 528 quantized payloads are the same\n"


@pytest.mark.parametrize(("architecture", "pointer"), [(90, "*i32"), (80, "*i16")])
def test_kernels_compile_for_devices_that_are_not_here(
    architecture: int, pointer: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    triton: Any = pytest.importorskip("triton", reason="Triton is not installed: pip install farflung[triton]")
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    monkeypatch.setenv("TRITON_CACHE_DIR", str(tmp_path))
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    module = loaded("selecting_compiled")
    source, digit = {"source": pointer}, {"low": "constexpr", "width": "constexpr"}
    sums = {"above": "*i32", "equal": "*i32"}
    wide = pointer == "*i32"
    kernels = (
        (
            module.count_digits,
            source | {"prefix": "*i32", "counts": "*i32", "numel": "i32"} | digit,
            (20, 11) if wide else (7, 8),
        ),
        (module.count_kept, source | {"edge": "*i32"} | sums | {"numel": "i32"}, ()),
        (module.write_kept, source | {"edge": "*i32"} | sums | {"found": "*i64", "numel": "i32"}, ()),
    )
    for kernel, signature, numbers in kernels:
        built = ASTSource(kernel, signature, constexprs=dict(zip(digit, numbers, strict=False)))
        assert triton.compile(built, target=GPUTarget("cuda", architecture, 32), options=OPTIONS).asm["cubin"]
    del sys.modules["selecting_compiled"]


def test_without_triton_operators_choose(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "suits_kernels", lambda flat: True)
    monkeypatch.setattr(kernels, "kernels_of", lambda module: None)
    flat = tensors(torch.float32)["odd"]
    np.testing.assert_array_equal(to_array(select_tensor(flat, 90)), select(to_array(flat), 90))


def test_triton_is_looked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "farflung.engines.torch.codecs.triton_selection", None)
    kernels.kernels_of.cache_clear()
    assert kernels.kernels_of("triton_selection") is None
    kernels.kernels_of.cache_clear()


def test_a_device_for_which_nothing_compiles_takes_operators_and_says_so_once(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []

    def broken(flat: torch.Tensor, count: int) -> torch.Tensor:
        calls.append(count)
        raise RuntimeError("Failed to find C compiler\nPlease specify it via CC")

    refused: set[torch.device] = set()
    monkeypatch.setattr(kernels, "REFUSED", refused)
    monkeypatch.setattr(kernels, "suits_kernels", lambda flat: flat.device not in refused)
    monkeypatch.setattr(kernels, "kernels_of", lambda module: SimpleNamespace(select_by_kernels=broken))
    flat = tensors(torch.float32)["normal"]
    with pytest.warns(
        UserWarning, match=r"nothing for cpu \(RuntimeError Failed to find C compiler\): codecs take tensor operators"
    ):
        found = select_tensor(flat, 90)
    np.testing.assert_array_equal(to_array(found), select(to_array(flat), 90))
    select_tensor(flat, 91)
    assert calls == [90]


def test_memory_that_runs_out_is_no_reason_to_try_otherwise(monkeypatch: pytest.MonkeyPatch) -> None:
    def full(flat: torch.Tensor, count: int) -> torch.Tensor:
        raise torch.OutOfMemoryError("full")

    monkeypatch.setattr(kernels, "suits_kernels", lambda flat: True)
    monkeypatch.setattr(kernels, "kernels_of", lambda module: SimpleNamespace(select_by_kernels=full))
    with pytest.raises(torch.OutOfMemoryError):
        select_tensor(torch.ones(5), 2)


def test_nothing_of_a_tensor_is_nothing() -> None:
    assert select_tensor(torch.ones(5), 0).tolist() == []
    assert select_tensor(torch.empty(0), 2).tolist() == []


@pytest.mark.gpu
@pytest.mark.parametrize("dtype", DTYPES)
def test_a_device_chooses_what_the_specification_chooses(dtype: torch.dtype) -> None:
    pytest.importorskip("triton", reason="Triton is not installed: pip install farflung[triton]")
    from farflung.engines.torch.codecs.triton_selection import select_by_kernels

    for size in (9_000, 1 << 22):
        for flat in tensors(dtype, size).values() if size == 9_000 else [torch.randn(size).to(dtype)]:
            for count in (1, 90, flat.numel() // 3 + 1, flat.numel()):
                wanted = select(to_array(flat), min(count, flat.numel()))
                np.testing.assert_array_equal(to_array(select_by_kernels(flat.cuda(), count)), wanted)
                np.testing.assert_array_equal(to_array(select_tensor(flat.cuda(), count)), wanted)
    assert not kernels.REFUSED
