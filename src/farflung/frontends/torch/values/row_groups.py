"""Linear layers on groups of rows whose sizes the data decide, as a router that sorts rows by expert calls them (JetMoE).

Such code reads the sizes with ``sizes.tolist()``, cuts the rows with ``rows.split``, gives each part to a linear layer, and joins
the results with ``torch.cat``. A trace does not know the sizes, but it knows the shape of the result: as many rows as before.
Here stand-ins take the place of the list and of the parts, and ``torch.cat`` puts one operator, ``farflung.grouped_linear``, into
the graph. Any other use of a stand-in reads the sizes after all, and is refused where it happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from unittest.mock import patch

import torch
from torch._subclasses.fake_tensor import FakeTensor

__all__ = ["StandIn", "grouped_call", "sizes_as_stand_ins"]

_TOLIST = FakeTensor.tolist


class StandIn:
    """Something whose shape or values the data decide; torch calls that take it arrive at the mode that captures, or here."""

    @classmethod
    def __torch_function__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        for item in (*args, *(kwargs or {}).values()):
            for found in item if isinstance(item, (list, tuple)) else (item,):
                if isinstance(found, StandIn):
                    found.read()
        return NotImplemented

    __hash__ = object.__hash__

    def __eq__(self, other: object) -> bool:
        return self is other or bool(self.read() == other)

    def read(self) -> Any:
        """The real thing: raises what the trace raises of data that it does not have."""
        raise NotImplementedError


class _Grouping(StandIn):
    """Something that depends on ``sizes``."""

    sizes: torch.Tensor

    def read(self) -> list[int]:
        """The sizes as numbers."""
        found: list[int] = _TOLIST(self.sizes)  # type: ignore[arg-type]
        return found


class _Sizes(_Grouping, Sequence[int]):
    """``sizes.tolist()``."""

    def __init__(self, sizes: torch.Tensor) -> None:
        self.sizes = sizes

    def __len__(self) -> int:
        return self.sizes.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return self.read()[index]


class _Parts(_Grouping, Sequence["_Part"]):
    """``rows.split(sizes)``: a part for each size."""

    def __init__(self, rows: torch.Tensor, sizes: torch.Tensor) -> None:
        self.rows, self.sizes = rows, sizes

    def __len__(self) -> int:
        return self.sizes.shape[0]

    def __getitem__(self, index: Any) -> Any:
        return _Part(self, range(len(self))[index]) if isinstance(index, int) else self.read()[index]


@dataclass(frozen=True, slots=True, eq=False)
class _Part(_Grouping):
    """Part ``number`` of the rows, after a linear layer if ``weight`` is given."""

    parts: _Parts
    number: int
    weight: torch.Tensor | None = None

    @property
    def sizes(self) -> torch.Tensor:  # type: ignore[override]
        """Those of all parts."""
        return self.parts.sizes

    def __bool__(self) -> bool:
        return bool(self.read())

    def __getattr__(self, name: str) -> Any:
        return getattr(self.read(), name)


@contextmanager
def sizes_as_stand_ins() -> Iterator[None]:
    """While it lasts, ``tolist`` of a traced vector of integers gives a stand-in; hold ``PATCHES``."""

    def tolist(given: FakeTensor) -> Any:
        return _Sizes(given) if given.dim() == 1 and given.dtype in (torch.int64, torch.int32) else _TOLIST(given)

    with patch.object(FakeTensor, "tolist", tolist):
        yield


def _split(rows: torch.Tensor, sizes: Any, dim: int = 0) -> Any:
    return _Parts(rows, sizes.sizes) if isinstance(sizes, _Sizes) and dim == 0 and rows.dim() == 2 else None


def _linear(part: Any, weight: torch.Tensor, bias: Any = None) -> Any:
    plain = isinstance(part, _Part) and part.weight is None and bias is None
    return _Part(part.parts, part.number, weight) if plain else None


def _cat(parts: Any, dim: int = 0) -> Any:
    if not parts or dim != 0 or not all(isinstance(part, _Part) for part in parts):
        return None
    whole, weights = parts[0].parts, [part.weight for part in parts]
    in_order = [(part.parts, part.number) for part in parts] == [(whole, number) for number in range(len(whole))]
    if not in_order or any(weight is None or weight.shape != weights[0].shape for weight in weights):
        return None
    return torch.ops.farflung_capture.grouped_linear.default(whole.rows, weights, whole.sizes)


_CALLS: Mapping[Any, Callable[..., Any]] = {
    torch.Tensor.split: _split,
    torch.nn.functional.linear: _linear,
    torch.cat: _cat,
}


def grouped_call(func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
    """What stands for the result of ``func``; ``None``: the call is not part of a product of groups."""
    rule = _CALLS.get(func)
    if rule is None or not any(isinstance(item, StandIn) for item in _given(args)):
        return None
    return rule(*args, **kwargs)


def _given(args: tuple[Any, ...]) -> Iterator[Any]:
    for item in args:
        yield from item if isinstance(item, (list, tuple)) else (item,)
