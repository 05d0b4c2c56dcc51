"""Arithmetic of update programs on Python numbers.

An optimizer computes bias corrections and step sizes as Python numbers, in float64. A program repeats exactly these operations,
so that the numbers that reach the tensors have the same bits as in the optimizer's own code.
"""

from __future__ import annotations

import math
import operator
from collections.abc import Callable, Mapping

from farflung.errors import GraphError

__all__ = ["COMPARISONS", "ITEM", "NUMBERS", "PREFIX", "Number", "apply"]

Number = int | float

#: What names of these operators begin with.
PREFIX = "number."
#: The value of a tensor with one element.
ITEM = "number.item"
_INT_BOUND = 1 << 63


def _power(base: Number, exponent: Number) -> Number:
    if isinstance(base, int) and isinstance(exponent, int) and abs(base) > 1 and exponent > 63:
        raise OverflowError("an integer power does not fit into 64 bits")
    return base**exponent  # ``apply`` refuses a complex result


_Function = Callable[..., Number]

#: Comparisons give a bool.
COMPARISONS: Mapping[str, _Function] = {
    "lt": operator.lt,
    "le": operator.le,
    "gt": operator.gt,
    "ge": operator.ge,
    "eq": operator.eq,
    "ne": operator.ne,
}
_UNARY: Mapping[str, _Function] = {
    "neg": operator.neg,
    "abs": abs,
    "float": float,
    "int": int,
    "sqrt": math.sqrt,
    "log": math.log,
    "exp": math.exp,
    "cos": math.cos,
    "sin": math.sin,
    "tanh": math.tanh,
    "floor": math.floor,
    "ceil": math.ceil,
}
_BINARY: Mapping[str, _Function] = {
    "add": operator.add,
    "sub": operator.sub,
    "mul": operator.mul,
    "truediv": operator.truediv,
    "floordiv": operator.floordiv,
    "mod": operator.mod,
    "pow": _power,
    "max": max,
    "min": min,
    **COMPARISONS,
}
#: Name without prefix -> number of operands and function.
NUMBERS: Mapping[str, tuple[int, _Function]] = {
    **{name: (1, function) for name, function in _UNARY.items()},
    **{name: (2, function) for name, function in _BINARY.items()},
}


def apply(name: str, *operands: Number) -> Number:
    """The result of the operator ``name``: an int of at most 64 bits, a float or a bool.

    Raises:
        GraphError: the result is no such number (a division by zero, a power that is too large).
    """
    try:
        found: object = NUMBERS[name][1](*operands)
    except (ArithmeticError, ValueError) as error:
        raise GraphError(f"number.{name}{operands} has no result: {error}") from None
    if not isinstance(found, (int, float)) or (isinstance(found, int) and not -_INT_BOUND <= found < _INT_BOUND):
        raise GraphError(f"number.{name}{operands} gives no real number of 64 bits")
    return found
