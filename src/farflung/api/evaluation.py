"""What ``train`` evaluates on, and when."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any

from farflung.errors import InputError
from farflung.telemetry.records import EvaluationRecord

__all__ = ["Evaluation"]


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """Evaluation of the module during and after training, on the workers that train it.

    ``batch_fn(index)`` returns the module's arguments for evaluation batch ``index`` (as ``train``'s ``batch_fn`` does) and runs
    in the caller's process. It may also be data, such as a ``DataLoader``. ``batches``: batches of one evaluation (default: 1 of
    a function, all of data). ``every``: steps between evaluations (0: only after the last step). ``every_batches``: in place of
    ``every``, batches of training between evaluations, such as those of an epoch. ``on_result(record)`` is called after each
    evaluation and may raise ``StopTraining``.
    The module is in evaluation mode and must return its loss in that mode, too.

    Raises:
        InputError: a number is out of range, or a function can't be called.
    """

    batch_fn: Callable[[int], Any] | Iterable[Any]
    batches: int | None = None
    every: int = 0
    every_batches: int = 0
    on_result: Callable[[EvaluationRecord], None] | None = None

    def __post_init__(self) -> None:
        for name, least in (("batches", 1), ("every", 0), ("every_batches", 0)):
            value = getattr(self, name)
            if (value is not None or name != "batches") and (type(value) is not int or value < least):
                raise InputError(f"Evaluation({name}={value!r}): {name} must be a whole number, at least {least}")
        if self.every and self.every_batches:
            raise InputError(f"Evaluation(every={self.every}, every_batches={self.every_batches}): remove one of them")
        if self.on_result is not None and not callable(self.on_result):
            raise InputError(
                f"Evaluation(on_result={self.on_result!r:.80}) can't be called: pass a function of an EvaluationRecord"
            )
        if not (callable(self.batch_fn) or hasattr(self.batch_fn, "__iter__") or hasattr(self.batch_fn, "__getitem__")):
            raise InputError(
                f"Evaluation(batch_fn={self.batch_fn!r:.80}) can't be called: pass a function of the index of a batch, or data"
            )

    def of(self, batches: int) -> Evaluation:
        """This evaluation on that many batches."""
        return replace(self, batches=batches)
