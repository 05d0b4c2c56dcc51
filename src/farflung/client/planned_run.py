"""The plan of a run as a client sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farflung.messages.watching import Planned
from farflung.plan.model import Plan

__all__ = ["PlannedRun"]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """What the broker reports when it has made the plan. ``recovered``: an earlier plan of the run has begun to train."""

    plan: Plan
    addresses: Mapping[str, str]
    first_step: int
    predicted_seconds: float
    #: One line, and the tables.
    summary: str
    explanation: str
    attempt: int = 1
    relays: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    recovered: bool = False

    @classmethod
    def of(cls, message: Planned) -> PlannedRun:
        """Read the plan in the broker's message."""
        return cls(
            plan=Plan.from_json(message.plan),
            addresses=message.addresses,
            first_step=message.first_step,
            predicted_seconds=message.predicted,
            summary=message.summary,
            explanation=message.explanation,
            attempt=message.attempt,
            relays=message.relays,
            recovered=message.recovered,
        )
