"""The table of operators: functions of ``tape`` values by the name on the allow-list."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeVar

from farflung.engines.reference.tape import value_of

__all__ = ["DRAWING", "OPERATORS", "filled", "operator", "shape_of", "size_list"]

Function = TypeVar("Function", bound=Callable[..., Any])

#: Name -> function. It takes the operator's arguments; element types as NumPy's; devices, layouts and formats are left out.
OPERATORS: dict[str, Callable[..., Any]] = {}
#: Operators whose function takes the random numbers of the call (a ``draws.Draw``, or ``None``) as its first argument.
DRAWING: set[str] = set()


def operator(*names: str, draws: bool = False) -> Callable[[Function], Function]:
    """Enter a function under ``names`` (those of PyTorch without ``aten.``)."""

    def enter(function: Function) -> Function:
        for name in names:
            full = name if name.startswith("farflung.") else f"aten.{name}"
            OPERATORS[full] = function
            if draws:
                DRAWING.add(full)
        return function

    return enter


def filled(defaults: Mapping[str, Any], given: Sequence[Any], named: Mapping[str, Any]) -> list[Any]:
    """The values of further arguments: ``given`` by place and ``named``, else their ``defaults``."""
    found = {**defaults, **dict(zip(defaults, given, strict=False)), **named}
    if len(given) > len(defaults) or found.keys() != defaults.keys():
        raise ValueError(f"the further arguments are {', '.join(defaults)}")
    return list(found.values())


def shape_of(operand: Any) -> tuple[int, ...]:
    """The shape of an argument."""
    found: tuple[int, ...] = value_of(operand).shape
    return found


def size_list(given: Any, count: int) -> tuple[int, ...]:
    """A list of ``count`` sizes, of which one may stand for all."""
    items = tuple(given) if isinstance(given, (list, tuple)) else (given,)
    return items * count if len(items) == 1 else items
