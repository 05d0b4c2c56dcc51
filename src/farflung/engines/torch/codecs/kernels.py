"""When Triton's kernels take a tensor: it lies on a CUDA device, Triton is installed, and it compiles for that device."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import cache
from importlib import import_module
from types import ModuleType
from typing import TypeVar

import torch

from farflung.errors import CodecError
from farflung.foreign_code import translated

__all__ = ["REFUSED", "by_kernels", "kernels_of", "suits_kernels"]

Made = TypeVar("Made")
#: Devices for which the kernels could not be compiled.
REFUSED: set[torch.device] = set()


def suits_kernels(flat: torch.Tensor) -> bool:
    """Whether the kernels take it."""
    return flat.is_cuda and flat.element_size() in (2, 4) and flat.device not in REFUSED


@cache
def kernels_of(module: str) -> ModuleType | None:
    """Return the module of this package that has the kernels; ``None`` if Triton is not installed."""
    try:
        return import_module(f"farflung.engines.torch.codecs.{module}")
    except ImportError:
        return None


def by_kernels(flat: torch.Tensor, module: str, compute: Callable[[ModuleType], Made]) -> Made | None:
    """Return what ``compute`` makes of ``flat`` with the kernels of ``module``.

    ``None``: there are none for its device. A device for which nothing compiles is reported once.
    """
    kernels = kernels_of(module) if suits_kernels(flat) else None
    if kernels is None:
        return None
    try:
        with translated(_refusal):
            return compute(kernels)
    except CodecError as error:
        REFUSED.add(flat.device)
        warnings.warn(f"Triton compiles nothing for {flat.device} ({error}): codecs take tensor operators", stacklevel=2)
        return None


def _refusal(error: Exception) -> Exception:
    """Return ``error`` of Triton as a ``CodecError``. Compilation fails in many ways: no compiler, a new device."""
    if isinstance(error, torch.OutOfMemoryError):
        return error
    return CodecError(f"{type(error).__name__} {error!s:.200}".splitlines()[0])
