"""The caller's callbacks, and how they end a training."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from farflung.api.evaluation import Evaluation
from farflung.api.reports import Reports
from farflung.engines.base import Array
from farflung.errors import InputError
from farflung.foreign_text import shown
from farflung.graph.ir import Graph, StateKind
from farflung.job import JobSpec
from farflung.known_names import did_you_mean
from farflung.plan.model import Plan
from farflung.telemetry.activity import TrainingProgress
from farflung.telemetry.records import EvaluationRecord, RecoveryRecord, StepRecord

__all__ = ["Callbacks", "Checkpoint", "EarlyStop", "Listeners", "StopTraining", "listed"]

_Step = Callable[[StepRecord], None]
_Evaluated = Callable[[EvaluationRecord], None]
#: Reads states by name.
_Read = Callable[[Sequence[str]], Mapping[str, Array]]


class StopTraining(Exception):
    """Raise it in a callback to end the training early; ``train`` returns the result so far."""


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """The checkpoint after ``step`` steps, as callbacks get it. Its weights are read when they are asked for."""

    step: int
    graph: Graph
    read: _Read

    def state_dict(self) -> dict[str, Array]:
        """Read parameters and buffers as NumPy arrays by their names in the module. A tied parameter has all its names.

        With a ticket, the broker sends the newest checkpoint, which may be one of a later step.

        Raises:
            FarflungError: the checkpoint can't be read.
        """
        states = {one.name: one for one in self.graph.states if one.persistent and one.kind is not StateKind.CONSTANT}
        found = self.read(list(states))
        return {alias: array for name, array in found.items() for alias in (name, *states[name].aliases)}


_Saved = Callable[[Checkpoint], None]


@dataclass(frozen=True, kw_only=True)
class EarlyStop:
    """End the training after ``patience`` evaluations in a row without an improvement of more than ``min_delta``.

    ``metric``: ``"loss"`` or the name of a metric. ``largest``: whether larger values are better.

    Raises:
        InputError: a number is out of range.
    """

    patience: int = 3
    min_delta: float = 0.0
    metric: str = "loss"
    largest: bool = False

    def __post_init__(self) -> None:
        if type(self.patience) is not int or self.patience < 1:
            raise InputError(f"EarlyStop(patience={self.patience!r}): patience must be a whole number, at least 1")
        delta: Any = self.min_delta
        if isinstance(delta, bool) or not isinstance(delta, (int, float)) or not delta >= 0:
            raise InputError(f"EarlyStop(min_delta={self.min_delta!r}): min_delta must be a number, at least 0")

    def watch(self) -> _Evaluated:
        """A callback that has seen no evaluation yet."""
        best, bad = float("inf"), 0

        def watch(record: EvaluationRecord) -> None:
            nonlocal best, bad
            value = record.loss if self.metric == "loss" else record.metrics[self.metric]
            value = -value if self.largest else value
            if value < best - self.min_delta:
                best, bad = value, 0
                return
            bad += 1
            if bad >= self.patience:
                raise StopTraining

        return watch


class Listeners:
    """The caller's functions of a step, of an evaluation, and of a checkpoint."""

    def __init__(
        self, on_step: Iterable[_Step] = (), on_evaluation: Iterable[_Evaluated] = (), on_checkpoint: Iterable[_Saved] = ()
    ) -> None:
        self.on_step, self.on_evaluation, self.on_checkpoint = tuple(on_step), tuple(on_evaluation), tuple(on_checkpoint)

    @classmethod
    def of(cls, callbacks: Sequence[Any], early_stop: object, evaluation: Evaluation | None, metrics: Iterable[str]) -> Listeners:
        """Read the arguments of ``train``.

        Raises:
            InputError: one is something else, or early stopping has nothing to look at.
        """
        found = [_methods(one) for one in callbacks]
        evaluated = [on_evaluation for _, on_evaluation, _ in found if on_evaluation is not None]
        if evaluation is not None and evaluation.on_result is not None:
            evaluated.insert(0, evaluation.on_result)
        if early_stop is not None:
            evaluated.append(_early_stop(early_stop, evaluation, ["loss", *metrics]).watch())
        saved = [on_checkpoint for _, _, on_checkpoint in found if on_checkpoint is not None]
        return cls([on_step for on_step, _, _ in found if on_step is not None], evaluated, saved)


def listed(callbacks: Any, on_step: _Step | None) -> list[Any]:
    """The caller's ``callbacks``, and ``on_step``.

    Raises:
        InputError: ``callbacks`` is no list.
    """
    if not isinstance(callbacks, Iterable) or isinstance(callbacks, str):
        raise InputError(
            f"callbacks={shown(callbacks)} is of the type {type(callbacks).__name__}: pass a list, as in callbacks=[function]"
        )
    return [*callbacks, *([] if on_step is None else [on_step])]


def _methods(one: Any) -> tuple[_Step | None, _Evaluated | None, _Saved | None]:
    """A callback's functions of a step, of an evaluation and of a checkpoint."""
    on_step, on_evaluation, on_checkpoint = (getattr(one, f"on_{name}", None) for name in ("step", "evaluation", "checkpoint"))
    if on_step is on_evaluation is on_checkpoint is None:
        on_step = one
    given = [function for function in (on_step, on_evaluation, on_checkpoint) if function is not None]
    if isinstance(one, type) or not all(map(callable, given)):
        raise InputError(
            f"callbacks has {shown(one)}: pass functions of a StepRecord, or objects with a method on_step, on_evaluation or "
            "on_checkpoint"
        )
    return on_step, on_evaluation, on_checkpoint


def _early_stop(given: object, evaluation: Evaluation | None, known: Sequence[str]) -> EarlyStop:
    found = EarlyStop(patience=given) if type(given) is int else given
    if not isinstance(found, EarlyStop):
        raise InputError(f"early_stop={shown(given)}: pass a number of evaluations, or an EarlyStop")
    if evaluation is None:
        raise InputError("early_stop compares evaluations, and there is none: pass evaluate, too")
    if found.metric not in known:
        raise InputError(
            f"EarlyStop(metric={found.metric!r}): {did_you_mean(found.metric, known)}the evaluation has {', '.join(known)}; "
            "add the metric to metrics"
        )
    return found


class Callbacks:
    """Passes records on to the caller's functions and keeps the first exception, with which the run shall end.

    Functions are called one at a time, on whatever thread brings the record, and no more after an exception. After
    ``StopTraining``, only checkpoints are passed on, so that the last one is not missed.
    """

    def __init__(
        self,
        listeners: Listeners,
        progress: TrainingProgress,
        reports: Reports | None = None,
    ) -> None:
        self._listeners = listeners
        #: One function at a time: in this process, each worker's thread may bring something.
        self._lock = threading.RLock()
        #: Shows each step before the caller's function is called.
        self.progress = progress
        #: Experiment trackers, which get each record, and recoveries.
        self.reports = reports
        #: Steps that were reported.
        self.steps = 0
        self.error: BaseException | None = None

    @property
    def given(self) -> bool:
        """Whether the caller has a callback, which may end the run."""
        return bool(self._listeners.on_step or self._listeners.on_evaluation or self._listeners.on_checkpoint)

    def saved(self, step: int, graph: Graph, read: _Read) -> None:
        """There is a checkpoint after ``step`` steps; ``read`` reads its states."""
        with self._lock:
            if self.error is not None and not isinstance(self.error, StopTraining):
                return
            try:
                for on_checkpoint in self._listeners.on_checkpoint:
                    on_checkpoint(Checkpoint(step=step, graph=graph, read=read))
            except StopTraining as error:
                self.error = self.error or error
            except BaseException as error:  # noqa: BLE001 - as in ``__call__``
                self.error = error

    def planned(self, job: JobSpec, plan: Plan) -> None:
        """The training begins by ``plan``, or continues by it."""
        if self.reports is not None:
            self.reports.begin(job, plan)

    def recovered(self, run: str, record: RecoveryRecord) -> None:
        """``run`` continues after a loss."""
        self.progress.note(run, str(record))
        if self.reports is not None:
            self.reports.take(record)

    def __call__(self, record: StepRecord | EvaluationRecord) -> None:
        """Report ``record`` to the trackers and to the caller's function."""
        if self.reports is not None:
            self.reports.take(record)
        self.steps += isinstance(record, StepRecord)
        with self._lock:
            if self.error is not None:
                return
            try:
                if isinstance(record, StepRecord):
                    self.progress(record)
                    for on_step in self._listeners.on_step:
                        on_step(record)
                else:
                    for on_evaluation in self._listeners.on_evaluation:
                        on_evaluation(record)
            except BaseException as error:  # noqa: BLE001 - whatever it is, the run ends cleanly first, then ``train`` raises it
                self.error = error
