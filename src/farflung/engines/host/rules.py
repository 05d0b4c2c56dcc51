"""Runs the update programs of a rule: an optimizer that arrived as data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from farflung.engines.base import Array
from farflung.engines.host.operators import host_dtype
from farflung.engines.host.programs import call, check_memory, last_uses, reads
from farflung.errors import GraphError
from farflung.graph.ir import InitStep, LocalRef
from farflung.optim import Rule, UpdateProgram
from farflung.optim.numbers import ITEM, PREFIX, apply

__all__ = ["HostRule"]

#: Bytes that the values of a program may take at a time: a multiple of the parameter's, and in any case.
_GROWTH, _SMALL = 12, 1 << 20


class HostRule:
    """The programs of a rule for one parameter."""

    def __init__(self, rule: Rule, where: str) -> None:
        self.rule, self._where = rule, where

    def run(self, parameter: Array, gradient: Array, settings: Sequence[float], states: Sequence[Any] | None) -> list[Any]:
        """Update ``parameter`` in place; return its states.

        Raises:
            GraphError: an operator fails, a state is not as declared, or no program applies.
        """
        inputs = [parameter, gradient, *settings, *(states or ())]
        for program in self.rule.first if states is None else self.rule.later:
            if not program.guards or self._holds(program, inputs):
                return self._own(self._run(program, inputs), parameter)
        raise GraphError(
            f"{self._where}: no program of the optimizer fits this step (settings {', '.join(map(repr, settings))}); submit the "
            "job again, with as many steps as it will have"
        )

    def _holds(self, program: UpdateProgram, inputs: Sequence[Any]) -> bool:
        """Whether the guards hold. Only calls on numbers and on tensors of one element run, on copies."""
        places: list[Any] = [None, None]  # guards depend neither on the parameter nor on its gradient
        places += [item if not isinstance(item, np.ndarray) else item.copy() if item.size == 1 else None for item in inputs[2:]]
        guards, allow = dict(program.guards), self._allow(inputs[0], ())
        for step in program.steps:
            known = all(places[place] is not None for place in reads(step))
            found = self._step(step, places, allow) if known else None
            places.append(None if isinstance(found, np.ndarray) and found.size != 1 else found)
            expected = guards.get(len(places) - 1)
            if expected is None:
                continue
            if places[-1] is None:
                raise GraphError(f"{self._where}: a guard depends on the values of a tensor")
            if bool(places[-1]) is not expected:
                return False  # what follows may have no result here: the root of a negative number
        return True

    def _run(self, program: UpdateProgram, inputs: Sequence[Any]) -> list[Any]:
        places = [*inputs]
        kept = [item.index for item in program.results if isinstance(item, LocalRef)]
        last = last_uses(program.steps, len(inputs), kept)
        for number, step in enumerate(program.steps):
            places.append(self._step(step, places, self._allow(inputs[0], places[len(inputs) :])))
            for done in last.get(number, ()):
                places[done] = None
        return [places[item.index] if isinstance(item, LocalRef) else item for item in program.results]

    def _allow(self, parameter: Array, made: Sequence[Any]) -> Callable[[int], object]:
        """Return what refuses a call that takes too many bytes beside the values ``made``."""
        most = max(_GROWTH * parameter.nbytes, _SMALL)
        return lambda more: check_memory(made, more, most, self._where)

    def _step(self, step: InitStep, places: Sequence[Any], allow: Callable[[int], object]) -> Any:
        if not step.target.startswith(PREFIX):
            return call(step, places.__getitem__, self._where, allow)
        operands: list[Any] = [places[arg.index] if isinstance(arg, LocalRef) else arg for arg in step.args]
        if step.target == ITEM:
            return operands[0].item()
        return apply(step.target.removeprefix(PREFIX), *operands)

    def _own(self, results: Sequence[Any], parameter: Array) -> list[Any]:
        """States as declared, in memory of their own."""
        found: list[Any] = []
        taken = [parameter]
        for slot, item in zip(self.rule.states, results, strict=True):
            value = item
            if not slot.number:
                declared = slot.kind, slot.shape_for(parameter.shape)
                if (value.dtype, value.shape) != (host_dtype(declared[0]), declared[1]):
                    raise GraphError(
                        f"{self._where}: state {slot.name!r} is declared {declared[0]}{list(declared[1])}, but its program gives "
                        f"{value.dtype.name}{list(value.shape)}"
                    )
                is_shared = any(np.may_share_memory(value, other) for other in taken)
                value = value.copy() if is_shared or not value.flags.writeable else value
                taken.append(value)
            found.append(value)
        return found
