"""The data arguments of ``train``: a function, a ``DataLoader``, a dataset or an iterable, as batches by step."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from farflung.api.evaluation import Evaluation
from farflung.errors import InputError
from farflung.foreign_text import shown
from farflung.units import counted

if TYPE_CHECKING:
    from farflung.frontends.caller import BatchSource
    from farflung.frontends.torch.ambient import Example

__all__ = ["DataSettings", "GivenBatches", "Inputs", "read_inputs"]


@dataclass(frozen=True, kw_only=True)
class GivenBatches:
    """The caller's batches. ``batch(step, micro_batch)``, or ``batch(index)`` for evaluation, returns the module's arguments.

    ``origin`` of the same place is what errors call the batch. ``length``: batches of an epoch (None: unknown, or a function).
    ``last``: samples of an epoch's last batch, where it is smaller. ``once``: nothing can be read twice.
    """

    batch: Callable[..., Any]
    origin: Callable[..., str]
    close: Callable[[], None] = lambda: None
    length: int | None = None
    last: int | None = None
    once: bool = False

    def check(self, argument: str, batches: int, *, repeats: bool) -> None:
        """See that the first ``batches`` have the same shapes, and that they can be read again if the run ``repeats`` some.

        Raises:
            InputError: the last batch of an epoch is smaller, or the data are an iterator.
        """
        if self.last is not None and self.length is not None and batches >= self.length:
            raise InputError(
                f"the last batch of {argument} has only {counted(self.last, 'sample')}, and all batches of a run need the same "
                "shapes: pass drop_last=True to the DataLoader"
            )
        if self.once and repeats:
            raise InputError(
                f"{argument} is an iterator, which can be read only once, and this run reads batches again: pass an iterable "
                "such as a DataLoader or a list, or a function"
            )


@dataclass(frozen=True, kw_only=True)
class DataSettings:
    """``accumulate``: batches of a step. ``batch_size``: samples of a batch, if the data are single samples.

    ``data`` and ``evaluate`` are what the caller calls these arguments.
    """

    accumulate: int
    batch_size: int | None
    seed: int
    data: str = "data"
    evaluate: str = "evaluate"


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What ``train`` reads: ``training``, for ``steps`` steps, and ``held_out``, for ``evaluation``."""

    training: GivenBatches
    steps: int
    evaluation: Evaluation | None = None
    held_out: GivenBatches | None = None

    def example(self) -> Example:
        """The first batch, which the model is captured with."""
        from farflung.frontends.torch.ambient import Example

        return Example(batch=self.training.batch(0, 0), origin=self.training.origin(0, 0))

    def held_out_example(self, metrics: tuple[str, ...]) -> Example | None:
        """The first batch for evaluation, which also computes ``metrics``."""
        from farflung.frontends.torch.ambient import Example

        given = self.held_out
        return None if given is None else Example(batch=given.batch(0), origin=given.origin(0), outputs=("loss", *metrics))

    def close(self) -> None:
        """End the processes that load batches."""
        self.training.close()
        if self.held_out is not None:
            self.held_out.close()


def read_inputs(
    data: Any, evaluate: Any, settings: DataSettings, *, steps: int | None, epochs: float | None, repeats: bool
) -> Inputs:
    """Read the arguments of ``train``; ``repeats``: whether lost workers make the run read batches again.

    Raises:
        InputError: data have no batches or too few, or arguments exclude each other.
    """
    size = settings.batch_size
    if size is not None and (type(size) is not int or size < 1):
        raise InputError(f"batch_size={size!r:.80}: must be a whole number, at least 1")
    training = _training(data, settings)
    found = _steps(training, settings.accumulate, steps, epochs)
    if type(found) is int and found > 0:
        training.check(settings.data, found * settings.accumulate, repeats=repeats)
    if evaluate is None:
        return Inputs(training=training, steps=found)
    if not isinstance(evaluate, Evaluation):
        if not (_is_function(evaluate) or hasattr(evaluate, "__iter__") or hasattr(evaluate, "__getitem__")):
            kind = type(evaluate).__name__
            raise InputError(f"{settings.evaluate}={shown(evaluate)} is of the type {kind}: pass data, or an Evaluation")
        evaluate = Evaluation(batch_fn=evaluate, every_batches=training.length or 0)  # after each epoch
    evaluation, held_out = _held_out(evaluate, settings)
    held_out.check(settings.evaluate, evaluation.batches or 1, repeats=True)
    return Inputs(training=training, steps=found, evaluation=evaluation, held_out=held_out)


def _steps(training: GivenBatches, accumulate: int, steps: int | None, epochs: Any) -> int:
    if epochs is None:
        if steps is None:
            raise InputError("neither steps nor epochs is given: pass steps=100, for example")
        return steps
    if steps is not None:
        raise InputError(f"steps={steps!r} beside epochs={epochs!r}: remove one of them")
    if isinstance(epochs, bool) or not isinstance(epochs, (int, float)) or not 0 < epochs < float("inf"):
        raise InputError(f"epochs must be a number above 0, got {epochs!r}")
    if training.length is None:
        raise InputError(f"epochs={epochs:g}, but the number of batches in an epoch of data is unknown: pass steps instead")
    batches = int(epochs * training.length)
    if training.length and batches < accumulate:  # data without batches have an error of their own
        raise InputError(
            f"epochs={epochs:g} of data gives {counted(batches, 'batch', 'batches')}, and a step takes {accumulate}: pass more "
            "epochs, or a smaller accumulate"
        )
    return max(1, batches // accumulate)


def _training(data: Any, settings: DataSettings) -> GivenBatches:
    if _is_function(data):
        if settings.batch_size is not None:
            raise InputError(
                f"batch_size={settings.batch_size} is for a dataset, and a function returns batches: remove batch_size"
            )
        _check_call(settings.data, data, "step", "micro_batch")
        return GivenBatches(batch=data, origin=lambda step, micro_batch: f"batch_fn({step}, {micro_batch})")
    source = _source(settings.data, data, settings)

    def position(step: int, micro_batch: int) -> int:
        return step * settings.accumulate + micro_batch

    return GivenBatches(
        batch=lambda step, micro_batch: source.batch(position(step, micro_batch)),
        origin=lambda step, micro_batch: f"batch {position(step, micro_batch)} of data",
        close=source.close,
        length=source.length,
        last=source.last,
        once=source.once,
    )


def _held_out(evaluation: Evaluation, settings: DataSettings) -> tuple[Evaluation, GivenBatches]:
    """``evaluation`` with its number of batches, and the batches."""
    data: Any = evaluation.batch_fn
    if _is_function(data):
        _check_call("Evaluation.batch_fn", data, "index")
        given = GivenBatches(batch=data, origin=lambda index: f"Evaluation.batch_fn({index})")
        return evaluation.of(1 if evaluation.batches is None else evaluation.batches), given
    source = _source(settings.evaluate, data, settings)
    count = source.length if evaluation.batches is None else evaluation.batches
    if count is None and not source.once:
        raise InputError("evaluate does not say how many batches it has: pass evaluate=Evaluation(batch_fn=..., batches=8)")
    given = GivenBatches(
        batch=source.batch,
        origin=lambda index: f"batch {index} of evaluate",
        close=source.close,
        length=source.length,
        last=source.last,
        once=source.once,
    )
    return evaluation.of(count or 1), given


def _is_function(data: Any) -> bool:
    return callable(data) and not hasattr(data, "__iter__") and not hasattr(data, "__getitem__")


def _check_call(argument: str, function: Any, *names: str) -> None:
    """See that ``function`` can be called with the positional arguments ``names``.

    Raises:
        InputError: it takes others.
    """
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C may have none
        return
    try:
        signature.bind(*names)
    except TypeError:
        takes = ", ".join(signature.parameters) or "nothing"
        raise InputError(
            f"{argument} is called with {' and '.join(names)}, but the function takes {takes}: pass a function of "
            f"({', '.join(names)})"
        ) from None


def _source(argument: str, data: Any, settings: DataSettings) -> BatchSource:
    from farflung.engines.torch.keys import preserved
    from farflung.frontends.caller.batch_source import SourceSettings, batch_source

    return batch_source(
        data,
        SourceSettings(
            argument=argument,
            batch_size=settings.batch_size,
            seed=settings.seed,
            shuffle=argument == settings.data,
            other=argument == settings.evaluate,
            preserved=preserved,
        ),
    )
