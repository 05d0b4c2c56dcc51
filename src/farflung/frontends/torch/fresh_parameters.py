"""Initial values of parameters that a forward makes, as BigBird does when it replaces its attention for short sequences.

The first forward makes a module, gives it the parameters of the old one, and drops those that it was made with. What filled them
stays out of the graph, and ``engines.torch.keys`` gives such draws no number. A forward that computes with them is refused.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from farflung.errors import CaptureError

__all__ = ["FreshParameters"]


class FreshParameters(TorchFunctionMode):
    """Leaves out what fills parameters that ``module`` does not have."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self._module = module
        #: By id, kept alive, so that the id stays its own.
        self._made: dict[int, nn.Parameter] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        first = args[0] if args else (kwargs or {}).get("tensor")
        if isinstance(first, nn.Parameter) and _fills(func) and all(first is not own for own in self._module.parameters()):
            self._made[id(first)] = first
            return first
        result = func(*args, **(kwargs or {}))
        if self._made and any(isinstance(leaf, torch.Tensor) for leaf in pytree.tree_leaves(result)):
            for leaf in pytree.tree_leaves((args, kwargs)):
                if id(leaf) in self._made:
                    raise CaptureError(
                        f"the forward makes a parameter of shape {tuple(leaf.shape)} and computes with its initial values, which "
                        "would be new ones in each step: make it in the module's constructor"
                    )
        return result


def _fills(func: Any) -> bool:
    name = getattr(func, "__name__", "")
    in_place = name.endswith("_") and not name.endswith("__")
    return in_place and (getattr(func, "__module__", "") == "torch.nn.init" or getattr(torch.Tensor, name, None) is func)
