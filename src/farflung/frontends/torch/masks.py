"""Masks and linear attention of the ``transformers`` library as an eager run makes them.

While anything is traced, the library gives up choices that it makes by looking: it builds a causal mask where it would rely on
``is_causal``, repeats keys and values where it would share them, and keeps the check for packed sequences in the graph. Other
kernels run then, and their gradients differ in the last bits. A graph has fixed shapes and one mode, so these choices can be made
as in an eager run; a check of values only where the values are known, because they come from ``torch.arange`` alone.

Models with the gated delta rule (Qwen 3.5, OLMo hybrid) solve a triangular system in an eager run. While they are exported, they
compute each row of its inverse instead: hundreds of operators, whose sums are rounded differently.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from types import ModuleType
from typing import Any
from unittest.mock import patch

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["eager_masks"]

_MODULE = "transformers.masking_utils"
_MODELS = "transformers.models."
_DELTA_RULE = "torch_chunk_gated_delta_rule"
_MAX_KNOWN = 1 << 22


@contextmanager
def _untraced() -> Iterator[None]:
    """Real tensors compute for real inside."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class _Known(TorchFunctionMode):
    """Computes the values of integer tensors that depend on nothing but ``torch.arange``, beside the trace."""

    def __init__(self) -> None:
        super().__init__()
        #: Traced tensor by its id (kept alive, so that the id stays its own) and its value.
        self._values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        found = self._values.get(id(tensor))
        return None if found is None else found[1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        result = func(*args, **kwargs)
        if isinstance(result, torch.Tensor) and not result.dtype.is_floating_point and result.numel() <= _MAX_KNOWN:
            self._learn(func, result, args, kwargs)
        return result

    def _learn(self, func: Any, result: torch.Tensor, args: Any, kwargs: Any) -> None:
        read = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func is not torch.arange and not read:
            return
        if any(id(tensor) not in self._values for tensor in read):
            return

        def real(leaf: Any) -> Any:
            return self._values[id(leaf)][1] if isinstance(leaf, torch.Tensor) else leaf

        plain_args, plain_kwargs = pytree.tree_map(real, (args, {**kwargs, **({"device": "cpu"} if "device" in kwargs else {})}))
        try:
            with _untraced():
                value = func(*plain_args, **plain_kwargs)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return  # not known then: the library's own way of tracing stays
        if isinstance(value, torch.Tensor) and value.shape == result.shape:
            self._values[id(result)] = (result, value)


def _delta_rules() -> list[ModuleType]:
    """The loaded models of the library that contain the gated delta rule."""
    models = [module for name, module in list(sys.modules.items()) if name.startswith(_MODELS)]
    return [module for module in models if _DELTA_RULE in vars(module)]


@contextmanager
def eager_masks() -> Iterator[None]:
    """While it lasts, ``transformers`` (if it is loaded) makes its masks as in an eager run."""
    library = sys.modules.get(_MODULE)
    if library is None:
        yield
        return
    known = _Known()
    with ExitStack() as stack:
        for module in (library, *_delta_rules()):
            if hasattr(module, "is_torchdynamo_exporting"):
                stack.enter_context(patch.object(module, "is_torchdynamo_exporting", lambda: False))
        original = getattr(library, "find_packed_sequence_indices", None)
        if original is not None:

            def find_packed(position_ids: torch.Tensor) -> Any:
                value = known.value(position_ids)
                with _untraced():
                    one_sequence = value is not None and bool((value.diff(dim=-1) == 1).all())
                return None if one_sequence else original(position_ids)

            stack.enter_context(patch.object(library, "find_packed_sequence_indices", find_packed))
        stack.enter_context(known)
        yield
