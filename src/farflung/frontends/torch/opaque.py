"""Calls that ``torch.export`` can't trace, held as one operator of the library ``farflung_capture`` each.

The operators exist only while a module is captured: they have shapes and no kernels. Lowering gives them the names that stand in
``OPAQUE``, under which engines know them. A call is held

- where PyTorch reads values (lengths of a CTC loss) or refuses element types under fake tensors (grouped products),
- where linear layers take groups of rows whose sizes the data decide (``row_groups``),
- where a served model attends to its key-value cache (``frontends.recipes.serving``), and
- around the result of a custom ``autograd.Function``, whose gradients come from its own backward.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode

from farflung.frontends.torch.patches import PATCHES
from farflung.frontends.torch.values.row_groups import StandIn, grouped_call, sizes_as_stand_ins

__all__ = ["BRANCH", "GRADIENT", "OPAQUE", "opaque_calls"]

_LIBRARY: Any = torch.library.Library("farflung_capture", "DEF")  # type: ignore[no-untyped-call]
_LIBRARY.define(
    "ctc_loss(Tensor log_probs, Tensor targets, Tensor input_lengths, Tensor target_lengths, int blank, int reduction, "
    "bool zero_infinity) -> Tensor"
)
_LIBRARY.define(
    "cached_attention(Tensor query, Tensor key, Tensor value, Tensor cache, Tensor positions, Tensor slots, float scale, "
    "int window) -> Tensor"
)
_LIBRARY.define("grouped_mm(Tensor input, Tensor weight, Tensor offsets) -> Tensor")
_LIBRARY.define("grouped_linear(Tensor input, Tensor[] weights, Tensor sizes) -> Tensor")
_LIBRARY.define("branch(Tensor mask, int number) -> Tensor")
_LIBRARY.define("gradient(Tensor[] inputs, Tensor[] outputs, Tensor[] saved, int number) -> Tensor[]")

#: The operator around a custom function's results; ``number`` says which function of the capture it is.
GRADIENT = "farflung_capture.gradient.default"
#: Marks the mask of a branch (``mask_branches``); it has no result that anything reads.
BRANCH = "farflung_capture.branch.default"
#: Operator of the library -> its name in a graph.
OPAQUE = {
    "farflung_capture.cached_attention.default": "farflung.cached_attention",
    "farflung_capture.ctc_loss.default": "farflung.ctc_loss",
    "farflung_capture.grouped_linear.default": "farflung.grouped_linear",
    "farflung_capture.grouped_mm.default": "farflung.grouped_mm",
}


@torch.library.register_fake("farflung_capture::ctc_loss", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _ctc_loss(log_probs: torch.Tensor, *rest: Any) -> torch.Tensor:
    reduction = rest[4]
    return log_probs.new_empty(() if reduction or log_probs.dim() < 3 else log_probs.shape[1:2])


@torch.library.register_fake("farflung_capture::cached_attention", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _cached_attention(query: torch.Tensor, *rest: Any) -> torch.Tensor:
    return torch.empty_like(query, memory_format=torch.contiguous_format)


@torch.library.register_fake("farflung_capture::grouped_mm", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _grouped_mm(rows: torch.Tensor, weight: torch.Tensor, offsets: torch.Tensor) -> torch.Tensor:
    return rows.new_empty((rows.shape[0], weight.shape[2]))


@torch.library.register_fake("farflung_capture::grouped_linear", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _grouped_linear(rows: torch.Tensor, weights: Sequence[torch.Tensor], sizes: torch.Tensor) -> torch.Tensor:
    return rows.new_empty((rows.shape[0], weights[0].shape[0]))


@torch.library.register_fake("farflung_capture::branch", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _branch(mask: torch.Tensor, number: int) -> torch.Tensor:
    return mask.new_empty(())


torch.fx.node.has_side_effect(torch.ops.farflung_capture.branch.default)  # stays in the graph although nothing reads it


@torch.library.register_fake("farflung_capture::gradient", lib=_LIBRARY)  # type: ignore[untyped-decorator]
def _gradient(
    inputs: Sequence[torch.Tensor], outputs: Sequence[torch.Tensor], saved: Sequence[torch.Tensor], number: int
) -> list[torch.Tensor]:
    return [torch.empty_like(output) for output in outputs]


class _Opaque(TorchFunctionMode):
    """Puts the library's operators in the place of the calls above."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func in (torch.nn.functional.ctc_loss, torch.ctc_loss):
            return _hold_ctc(*args, **kwargs)
        if func in _SELECTS and len(args) == 2 and not kwargs and _is_labels(*args):
            return _Selected(*args)
        if func in _GROUPED and kwargs.get("bias") is None and kwargs.get("out_dtype") is None and len(args) == 2:
            rows, weight = args
            offsets = kwargs.get("offs")
            if offsets is not None and rows.dim() == 2 and weight.dim() == 3:
                return torch.ops.farflung_capture.grouped_mm.default(rows, weight, offsets)
        if (found := grouped_call(func, args, kwargs)) is not None:
            return found
        return func(*args, **kwargs)


_PRODUCTS = (getattr(torch, "_grouped_mm", None), getattr(torch.nn.functional, "grouped_mm", None))
_GROUPED = frozenset(found for found in _PRODUCTS if found is not None)


_SELECTS = (torch.Tensor.masked_select, torch.masked_select)


def _is_labels(values: torch.Tensor, mask: torch.Tensor) -> bool:
    return values.dtype in (torch.int64, torch.int32) and values.shape == mask.shape


class _Selected(StandIn):
    """``values.masked_select(mask)``: labels without padding, of which a CTC loss reads as many as its lengths say."""

    def __init__(self, values: torch.Tensor, mask: torch.Tensor) -> None:
        self._values, self._mask = values, mask

    def __getattr__(self, name: str) -> Any:
        return getattr(self.read(), name)

    def read(self) -> torch.Tensor:
        """The selected values."""
        return torch.masked_select(self._values, self._mask)

    def packed(self) -> torch.Tensor:
        """The selected values, and zeros after them."""
        flat, chosen = self._values.reshape(-1), self._mask.reshape(-1)
        behind = flat.shape[0]
        places = torch.where(chosen, chosen.cumsum(0) - 1, behind)
        return flat.new_zeros(behind + 1).scatter(0, places, flat)[:behind]


_REDUCTIONS = {"none": 0, "mean": 1, "sum": 2}


def _hold_ctc(*args: Any, **kwargs: Any) -> Any:
    given = inspect.signature(torch.nn.functional.ctc_loss).bind(*args, **kwargs)
    given.apply_defaults()
    log_probs, targets, *lengths, blank, reduction, zero_infinity = given.args
    reduction = _REDUCTIONS.get(reduction, reduction)
    targets = targets.packed() if isinstance(targets, _Selected) else targets
    lengths = [item if isinstance(item, torch.Tensor) else torch.tensor(item, dtype=torch.int64) for item in lengths]
    return torch.ops.farflung_capture.ctc_loss.default(log_probs, targets, *lengths, blank, reduction, zero_infinity)


@contextmanager
def opaque_calls() -> Iterator[None]:
    """Within the context the calls above are held; experts of ``transformers`` take the product that an eager run takes."""
    experts = sys.modules.get("transformers.integrations.moe")
    with PATCHES, ExitStack() as stack:
        if experts is not None and hasattr(experts, "is_torchdynamo_compiling"):
            stack.enter_context(patch.object(experts, "is_torchdynamo_compiling", lambda: False))
        stack.enter_context(sizes_as_stand_ins())
        stack.enter_context(_Opaque())
        yield
