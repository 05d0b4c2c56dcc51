"""Integer tensors of a trace whose values are known, because they depend on nothing but numbers of the code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import _disable_current_modes

__all__ = ["KnownValues", "untraced"]

_MAX_KNOWN = 1 << 22
_MAKERS = frozenset({torch.arange, torch.full, torch.zeros, torch.ones})


@contextmanager
def untraced() -> Iterator[None]:
    """Real tensors compute for real inside."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


class KnownValues(TorchFunctionMode):
    """Computes the values of integer tensors that depend on nothing but ``torch.arange`` and the like, beside the trace.

    An index without dimensions whose value is known becomes a number: PyTorch reads its value anyway, and a trace cannot.
    """

    def __init__(self) -> None:
        super().__init__()
        #: Traced tensor by its id (kept alive, so that the id stays its own) and its value.
        self._values: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value of ``tensor`` (None: unknown)."""
        found = self._values.get(id(tensor))
        return None if found is None else found[1]

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__getitem__:
            args = (args[0], self._numbered(args[1]))
        result = func(*args, **kwargs)
        self._forget(func, args, kwargs)
        if isinstance(result, torch.Tensor) and not result.dtype.is_floating_point and result.numel() <= _MAX_KNOWN:
            self._learn(func, result, args, kwargs)
        return result

    def _numbered(self, index: Any) -> Any:
        if isinstance(index, tuple):
            return tuple(self._numbered(item) for item in index)
        known = self.value(index) if isinstance(index, torch.Tensor) and not index.dim() else None
        if known is None or known.dtype in (torch.bool, torch.uint8):  # a mask
            return index
        with untraced():
            return int(known)

    def _forget(self, func: Any, args: Any, kwargs: Any) -> None:
        """Values that ``func`` wrote to, and those of other views of the same memory, are known no more."""
        name = getattr(func, "__name__", "")
        writes = name == "__setitem__" or (name.endswith("_") and not name.endswith("__")) or name.startswith("__i")
        for tensor in (args[0] if writes and args else None, kwargs.get("out")):
            if isinstance(tensor, torch.Tensor):
                memory = tensor.untyped_storage()._cdata
                kept = self._values.items()
                self._values = {key: one for key, one in kept if one[0].untyped_storage()._cdata != memory}

    def _learn(self, func: Any, result: torch.Tensor, args: Any, kwargs: Any) -> None:
        read = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if func not in _MAKERS and not read:
            return
        if any(id(tensor) not in self._values for tensor in read):
            return

        def real(leaf: Any) -> Any:
            return self._values[id(leaf)][1] if isinstance(leaf, torch.Tensor) else leaf

        plain_args, plain_kwargs = pytree.tree_map(real, (args, {**kwargs, **({"device": "cpu"} if "device" in kwargs else {})}))
        try:
            with untraced():
                value = func(*plain_args, **plain_kwargs)
        except (RuntimeError, TypeError, ValueError, NotImplementedError):
            return  # not known then: the library's own way of tracing stays
        if isinstance(value, torch.Tensor) and value.shape == result.shape and not _may_trap(value):
            self._values[id(result)] = (result, value)


def _may_trap(value: torch.Tensor) -> bool:
    """Whether ``value`` has a smallest integer of its type: the processor ends a program that divides it by -1."""
    if value.dtype not in (torch.int32, torch.int64):
        return False
    with untraced():
        return bool((value == torch.iinfo(value.dtype).min).any())
