"""How a training ended, wherever it ran."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farflung.engines.base import Array
from farflung.plan.model import Plan
from farflung.telemetry.records import EvaluationRecord, StepRecord

__all__ = ["Outcome"]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """The plan that ran, its records, and the states after ``steps`` steps.

    ``error``: what ended the run before its last step although its states are whole: an exception of the caller's callback, or
    Ctrl-C (None: nothing did). ``checkpoint``: what ``resume`` takes.
    """

    plan: Plan
    records: tuple[StepRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]
    states: Mapping[str, Array] = field(repr=False)
    steps: int
    error: BaseException | None = None
    checkpoint: str = ""
