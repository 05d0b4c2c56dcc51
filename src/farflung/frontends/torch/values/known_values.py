"""Integer tensors of a trace whose values are known, because they depend on nothing but numbers of the code."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree
from torch.utils._python_dispatch import TorchDispatchMode, _disable_current_modes

__all__ = ["KnownValues", "is_indefinite", "untraced"]

_MAX_KNOWN = 1 << 22
_MAKERS = frozenset({torch.arange, torch.full, torch.zeros, torch.ones})
#: What reads values of a tensor. The index of an export is read by the first.
_READERS = frozenset(
    {
        torch.Tensor.item,
        torch.Tensor.tolist,
        torch.Tensor.__bool__,
        torch.Tensor.__int__,
        torch.Tensor.__index__,
        torch.Tensor.__float__,
    }
)


def is_indefinite(func: torch._ops.OpOverload) -> bool:
    """Whether each call of ``func`` may give other values: random numbers, or memory as it was."""
    return torch.Tag.nondeterministic_seeded in func.tags or "empty" in func._schema.name


class _Indefinite(Exception):
    """A value is that of one call only."""


class _DefiniteOnly(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Ends a computation before its first indefinite operator, so that no generator moves on."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_indefinite(func):
            raise _Indefinite
        return func(*args, **(kwargs or {}))


@contextmanager
def untraced() -> Iterator[None]:
    """Real tensors compute for real inside."""
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


@dataclass(frozen=True, slots=True)
class _Known:
    """``value`` of ``tensor`` (kept alive, so that its id stays its own) while no operator writes to its memory."""

    tensor: torch.Tensor
    value: torch.Tensor
    memory: int
    version: int

    @property
    def valid(self) -> bool:
        """Whether nobody has written to the tensor, or given it another memory."""
        return (_memory(self.tensor), self.tensor._version) == (self.memory, self.version)


class KnownValues(TorchFunctionMode):
    """Computes the values of integer tensors that depend on nothing but ``torch.arange`` and the like, beside the trace.

    Code may read known values, as an eager run does: for a branch, a number, or an index without dimensions.
    """

    def __init__(self) -> None:
        super().__init__()
        #: By the id of the traced tensor.
        self._values: dict[int, _Known] = {}

    def value(self, tensor: torch.Tensor) -> torch.Tensor | None:
        """The value of ``tensor`` (None: unknown)."""
        found = self._values.get(id(tensor))
        return found.value if found is not None and found.valid else None

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.__getitem__:
            args = (args[0], self._numbered(args[1]))
        if func in _READERS and (value := self.value(args[0])) is not None and value.dtype is not torch.uint8:
            with untraced():
                return func(value)
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
        """Values that ``func`` wrote to are known no more, also those of tensors that count writes to the memory alone."""
        name = getattr(func, "__name__", "")
        writes = (
            name == "__setitem__"
            or (name.endswith("_") and not name.endswith("__"))
            or (name.startswith("__i") and name != "__invert__")
        )
        for tensor in (args[0] if writes and args else None, kwargs.get("out")):
            if isinstance(tensor, torch.Tensor):
                memory = _memory(tensor)
                self._values = {key: one for key, one in self._values.items() if one.memory != memory}

    def _learn(self, func: Any, result: torch.Tensor, args: Any, kwargs: Any) -> None:
        read = [leaf for leaf in pytree.tree_leaves((args, kwargs)) if isinstance(leaf, torch.Tensor)]
        if (func not in _MAKERS and not read) or result.is_inference():  # such tensors do not count writes
            return
        if any(self.value(tensor) is None for tensor in read):
            return

        def real(leaf: Any) -> Any:
            return self.value(leaf) if isinstance(leaf, torch.Tensor) else leaf

        plain_args, plain_kwargs = pytree.tree_map(real, (args, {**kwargs, **({"device": "cpu"} if "device" in kwargs else {})}))
        try:
            with untraced(), _DefiniteOnly():  # type: ignore[no-untyped-call]
                value = func(*plain_args, **plain_kwargs)
        except (_Indefinite, RuntimeError, TypeError, ValueError, NotImplementedError):
            return  # not known then: the library's own way of tracing stays
        if isinstance(value, torch.Tensor) and value.shape == result.shape and not _may_trap(value):
            self._values[id(result)] = _Known(result, value, _memory(result), result._version)


def _memory(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _may_trap(value: torch.Tensor) -> bool:
    """Whether ``value`` has a smallest integer of its type: the processor ends a program that divides it by -1."""
    if value.dtype not in (torch.int32, torch.int64):
        return False
    with untraced():
        return bool((value == torch.iinfo(value.dtype).min).any())
