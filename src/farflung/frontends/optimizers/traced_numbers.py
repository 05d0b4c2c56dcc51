"""Python numbers that note what is computed with them.

An optimizer computes with its learning rate, its step count and values that ``Tensor.item`` gives. These enter as instances of
``Traced``, which is a float everywhere. Their arithmetic gives such numbers again, and each comparison becomes a guard. A step
count that is an int enters as a float, too: Python would compute ``0.9**count`` without asking a subclass of int. In a run it is
an int again, and both give the same bits below 2**53.
"""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Protocol
from unittest.mock import patch

from farflung.frontends.torch.patches import PATCHES
from farflung.optim.numbers import COMPARISONS, NUMBERS, Number

__all__ = ["Place", "Tape", "Traced", "is_traced", "plain", "traced", "traced_functions"]


@dataclass(frozen=True, slots=True)
class Place:
    """Where a number comes from: place ``index`` of a program. ``data``: it depends on the values of tensors."""

    index: int
    data: bool


class Tape(Protocol):
    """What notes the arithmetic."""

    def number(self, name: str, operands: tuple[Number, ...]) -> Any:
        """Note the operator ``name``; return its result."""


class Traced(float):
    """A number that notes what is computed with it."""

    tape: Tape
    place: Place


def is_traced(value: object) -> bool:
    """Whether ``value`` notes what is computed with it."""
    return isinstance(value, Traced)


def plain(value: Number) -> Number:
    """The number alone."""
    return float(value) if isinstance(value, float) else value


def traced(value: Number, tape: Tape, place: Place) -> Traced:
    """``value`` as a number that notes what is computed with it."""
    found = Traced(value)
    found.tape, found.place = tape, place
    return found


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float))


def _noted(name: str, *operands: Any) -> Any:
    tape: Tape = next(item for item in operands if is_traced(item)).tape
    return tape.number(name, operands)


def _method(name: str, *, reflected: bool = False) -> Callable[..., Any]:
    def method(self: Any, *others: Any) -> Any:
        if not all(_is_number(other) for other in others):
            return NotImplemented  # a tensor, which has operators of its own
        return _noted(name, *((*others, self) if reflected else (self, *others)))

    return method


def _bool(self: Any) -> bool:
    return bool(_noted("ne", self, 0))


for _name in ("add", "sub", "mul", "truediv", "floordiv", "mod", "pow"):
    setattr(Traced, f"__{_name}__", _method(_name))
    setattr(Traced, f"__r{_name}__", _method(_name, reflected=True))
for _name in (*COMPARISONS, "neg", "abs"):
    setattr(Traced, f"__{_name}__", _method(_name))
setattr(Traced, "__bool__", _bool)  # noqa: B010 - a class attribute that type checkers take for a method
setattr(Traced, "__hash__", float.__hash__)  # noqa: B010 - defining __eq__ took it away


def _function(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        if len(args) == 1 and not kwargs and is_traced(args[0]):
            return _noted(name, args[0])
        return original(*args, **kwargs)

    return function


def _extreme(name: str, original: Callable[..., Any]) -> Callable[..., Any]:
    def function(*args: Any, **kwargs: Any) -> Any:
        items = list(args[0]) if len(args) == 1 and not kwargs and isinstance(args[0], (list, tuple)) else list(args)
        if kwargs or len(items) < 2 or not any(map(is_traced, items)) or not all(map(_is_number, items)):
            return original(*args, **kwargs)
        found = items[0]
        for item in items[1:]:
            found = _noted(name, found, item) if is_traced(found) or is_traced(item) else original(found, item)
        return found

    return function


def _power(base: Any, exponent: Any) -> Any:
    if is_traced(base) or is_traced(exponent):
        return _noted("pow", _noted("float", base) if is_traced(base) else float(base), exponent)
    return _PLAIN_POWER(base, exponent)


_PLAIN_POWER = math.pow


@contextmanager
def traced_functions() -> Iterator[None]:
    """Inside, the functions of ``math``, ``min`` and ``max`` note what they do to traced numbers."""
    with PATCHES, ExitStack() as stack:
        for name, (count, _) in NUMBERS.items():
            if count == 1 and hasattr(math, name):
                stack.enter_context(patch.object(math, name, _function(name, getattr(math, name))))
        stack.enter_context(patch.object(math, "pow", _power))
        for name in ("max", "min"):
            stack.enter_context(patch.object(builtins, name, _extreme(name, getattr(builtins, name))))
        yield
