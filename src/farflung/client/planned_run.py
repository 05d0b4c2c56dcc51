"""The plan of a run as a client sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farflung.messages.relays import read_relays
from farflung.plan.document import plan_from_json
from farflung.plan.model import Plan
from farflung.wire.frames import Frame

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
    def from_frame(cls, frame: Frame) -> PlannedRun:
        """Read the broker's ``planned``."""
        header = frame.header
        return cls(
            plan=plan_from_json(header["plan"]),
            addresses={str(name): str(address) for name, address in header["addresses"].items()},
            first_step=int(header["first_step"]),
            predicted_seconds=float(header["predicted"]),
            summary=str(header.get("summary", header["explanation"])),
            explanation=str(header["explanation"]),
            attempt=int(header.get("attempt", 1)),
            relays=read_relays(header),
            recovered=header.get("recovered") is True,
        )
