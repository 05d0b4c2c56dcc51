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

from farflung.frontends.torch.values.known_values import KnownValues, untraced

__all__ = ["eager_masks"]

_MODULE = "transformers.masking_utils"
_MODELS = "transformers.models."
#: Their encoders make a mask of ones where the caller gives no mask, read it without a check, and make none in a trace.
_READ_ONES = tuple(f"{_MODELS}{name}.modeling_{name}" for name in ("longt5", "pop2piano", "switch_transformers"))
_DELTA_RULE = "torch_chunk_gated_delta_rule"


def _delta_rules() -> list[ModuleType]:
    """The loaded models of the library that contain the gated delta rule."""
    models = [module for name, module in list(sys.modules.items()) if name.startswith(_MODELS)]
    return [module for module in models if _DELTA_RULE in vars(module)]


@contextmanager
def eager_masks() -> Iterator[None]:
    """While it lasts, ``transformers`` (if it is loaded) makes its masks as in an eager run."""
    known = KnownValues()
    library = sys.modules.get(_MODULE)
    if library is None:
        with known:
            yield
        return
    with ExitStack() as stack:
        for module in filter(None, map(sys.modules.get, _READ_ONES)):
            stack.enter_context(patch.object(module, "is_torchdynamo_compiling", lambda: False))
        for module in (library, *_delta_rules()):
            if hasattr(module, "is_torchdynamo_exporting"):
                stack.enter_context(patch.object(module, "is_torchdynamo_exporting", lambda: False))
        original = getattr(library, "find_packed_sequence_indices", None)
        if original is not None:

            def find_packed(position_ids: torch.Tensor) -> Any:
                value = known.value(position_ids)
                with untraced():
                    one_sequence = value is not None and bool((value.diff(dim=-1) == 1).all())
                return None if one_sequence else original(position_ids)

            stack.enter_context(patch.object(library, "find_packed_sequence_indices", find_packed))
        stack.enter_context(known)
        yield
