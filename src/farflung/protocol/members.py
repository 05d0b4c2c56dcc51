"""The members of a cluster: their states as people see them, and the wishes of their owners."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farflung.protocol.events import Offer

__all__ = ["Gone", "Member", "MemberState", "Parting"]


class MemberState(StrEnum):
    """The state of a member.

    ``joining``: it has a certificate and no session yet. ``profiling``: its device or its links are measured. ``standby``: it
    waits for work. ``assigned``: it is part of a plan. ``active``: it trains. ``draining``: it leaves or pauses when its present
    work is over. ``gone``: it left or was lost.
    """

    JOINING = "joining"
    PROFILING = "profiling"
    STANDBY = "standby"
    ASSIGNED = "assigned"
    ACTIVE = "active"
    DRAINING = "draining"
    GONE = "gone"


class Parting(StrEnum):
    """How a member wants to leave: ``leave`` migrates its work after the current step, ``drain`` ends its run first."""

    NO = ""
    DRAIN = "drain"
    LEAVE = "leave"


@dataclass(slots=True, kw_only=True)
class Member:
    """A connected worker.

    ``dismissed``: it was told that it may leave. ``drift``: its step times over those of its last measurement (1 or more).
    ``capacity``: how many of the ``measured_with`` workers of its host, itself included, reached their full speed at once
    (0: not measured).
    """

    name: str
    address: str
    offer: Offer
    generation: int = 0
    run: str | None = None
    paused: bool = False
    parting: Parting = Parting.NO
    dismissed: bool = False
    drift: float = 1.0
    capacity: float = 0.0
    measured_with: int = 0

    @property
    def speed(self) -> float:
        """FLOP/s that it reaches now, from measurement and step times."""
        return self.offer.speed / self.drift

    @property
    def ready(self) -> bool:
        """Whether a run may be planned for it."""
        return self.run is None and not self.paused and not self.parting

    @property
    def withdraws(self) -> bool:
        """Whether its run must continue without it."""
        return self.paused or self.parting is Parting.LEAVE

    def state(self, *, trains: bool, profiled: bool = False) -> MemberState:
        """``trains``: its run is running; ``profiled``: its device or links are measured now."""
        if self.parting or (self.paused and self.run is not None):
            return MemberState.DRAINING
        if profiled:
            return MemberState.PROFILING
        if self.run is None:
            return MemberState.STANDBY
        return MemberState.ACTIVE if trains else MemberState.ASSIGNED


@dataclass(frozen=True, slots=True, kw_only=True)
class Gone:
    """A member that was lost or left."""

    name: str
    generation: int
    cause: str
