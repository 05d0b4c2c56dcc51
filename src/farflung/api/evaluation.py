"""What ``train`` evaluates on, and when."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farflung.errors import InputError
from farflung.telemetry.records import EvaluationRecord

__all__ = ["Evaluation"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Evaluation of the module during and after training, on the workers that train it.

    ``batch_fn(index)`` returns the module's arguments for evaluation batch ``index`` (as ``train``'s ``batch_fn`` does) and runs
    in the caller's process. ``batches``: batches of one evaluation. ``every``: steps between evaluations (0: only after the last
    step). ``on_result(record)`` is called after each evaluation and may raise ``StopTraining``.
    The module is in evaluation mode and must return its loss in that mode, too.

    Raises:
        InputError: a number is out of range, or a function can't be called.
    """

    batch_fn: Callable[[int], Sequence[Any] | Mapping[str, Any]]
    batches: int = 1
    every: int = 0
    on_result: Callable[[EvaluationRecord], None] | None = None

    def __post_init__(self) -> None:
        for name, value, least in (("batches", self.batches, 1), ("every", self.every, 0)):
            if type(value) is not int or value < least:
                raise InputError(f"Evaluation({name}={value!r}): {name} must be a whole number, at least {least}")
        functions = {"batch_fn": self.batch_fn, **({} if self.on_result is None else {"on_result": self.on_result})}
        for name, function in functions.items():
            if not callable(function):
                wanted = "the index of a batch" if name == "batch_fn" else "an EvaluationRecord"
                raise InputError(f"Evaluation({name}={function!r:.80}) can't be called: pass a function of {wanted}")
