"""Values of small tensors that a factory computes from numbers alone, such as the rates of ``torch.linspace``.

A factory runs under fake tensors, which have no values. But some factories read such numbers back (``.item()``, ``.tolist()``) to
build their layers. So calls without draws on small tensors with known values are also computed for real.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor, unset_fake_temporarily
from torch.utils import _pytree as pytree

from farflung.frontends.torch.values.known_values import is_indefinite

__all__ = ["KnownNumbers"]

#: Elements of a tensor whose values are computed.
_MOST = 4096


class KnownNumbers:
    """The values by storage and geometry. A write forgets those of its storage."""

    def __init__(self) -> None:
        self._values: dict[int, dict[Any, torch.Tensor]] = {}

    def item(self, tensor: object) -> bool | int | float | complex | None:
        """The number in ``tensor`` (``None``: it is not known)."""
        found = self._find(tensor)
        with unset_fake_temporarily():
            return None if found is None else found.item()

    def computed(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        """``func`` has given ``result``, fake tensors: compute their values, if those of all arguments are known."""
        results = [item for item in pytree.tree_leaves(result) if isinstance(item, torch.Tensor)]
        given = [item for item in pytree.tree_leaves((args, kwargs)) if isinstance(item, torch.Tensor)]
        if func._schema.is_mutable:
            for item in given:
                self._values.pop(_storage(item), None)
            return
        known = [self._find(item) for item in given]
        fakes = all(isinstance(item, FakeTensor) and item.numel() <= _MOST and item.device.type == "cpu" for item in results)
        if is_indefinite(func) or not results or not fakes or any(one is None for one in known):
            return
        values = iter(known)
        new_args, new_kwargs = pytree.tree_map_only(torch.Tensor, lambda _: next(values), (tuple(args), dict(kwargs)))
        with unset_fake_temporarily():
            found = [item for item in pytree.tree_leaves(func(*new_args, **new_kwargs)) if isinstance(item, torch.Tensor)]
        for item, value in zip(results, found, strict=True):
            self._values.setdefault(_storage(item), {})[_geometry(item)] = value

    def _find(self, tensor: object) -> torch.Tensor | None:
        if not isinstance(tensor, FakeTensor):
            return None
        return self._values.get(_storage(tensor), {}).get(_geometry(tensor))


def _storage(tensor: torch.Tensor) -> int:
    return int(tensor.untyped_storage()._cdata)


def _geometry(tensor: torch.Tensor) -> Any:
    return int(tensor.storage_offset()), tuple(tensor.shape), tensor.stride(), tensor.dtype
