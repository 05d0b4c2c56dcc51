"""The table of operators: the name of an operator to the function that traces it.

A function takes the operator's arguments as PyTorch declares them, with JAX arrays for tensors. An operator that draws takes its
random numbers as the keyword argument ``bits``, made on the host by ``engines.jax.random_bits``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farflung.errors import GraphError

__all__ = ["OPERATORS", "Tensor", "function_of", "operator"]

#: A JAX array, or a tracer that stands for one.
Tensor = Any
Function = Callable[..., Any]

OPERATORS: dict[str, Function] = {}


def operator(*targets: str) -> Callable[[Function], Function]:
    """Register a function as the operators ``targets`` (names without the prefix ``aten.``, or with ``farflung.``)."""

    def register(function: Function) -> Function:
        for target in targets:
            name = target if target.startswith("farflung.") else f"aten.{target}"
            if name in OPERATORS:
                raise ValueError(f"operator {name} stands twice in the table")
            OPERATORS[name] = function
        return function

    return register


def function_of(target: str) -> Function:
    """The function of the operator ``target``.

    Raises:
        GraphError: the JAX engine has no such operator.
    """
    try:
        return OPERATORS[target]
    except KeyError:
        raise GraphError(f"the JAX engine has no operator {target!r}: place its stage on a worker with --engine torch") from None
