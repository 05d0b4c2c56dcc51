"""Sync rounds with missing members: who counts, with which weight, and when a sync round stops waiting."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from farflung.errors import InputError
from farflung.units import Seconds

__all__ = ["SyncRound", "renormalized"]


def renormalized(group: Sequence[int], weights: Sequence[float], present: Collection[int]) -> dict[int, float]:
    """Weights of the members of ``group`` that are present, divided by their sum.

    Raises:
        InputError: nobody is present.
    """
    found = {member: weight for member, weight in zip(group, weights, strict=True) if member in present}
    total = sum(found.values())
    if total <= 0:
        raise InputError(f"no member of the group {list(group)} is present: wait for one, or go back to a checkpoint")
    return {member: weight / total for member, weight in found.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class SyncRound:
    """One exchange as seen by who ends it: complete when all have arrived, or at the deadline with at least ``quorum``.

    A value: each event returns the next value. Times are seconds of the caller's clock.
    """

    group: tuple[int, ...]
    weights: tuple[float, ...]
    deadline: Seconds
    quorum: int = 1
    arrived: frozenset[int] = frozenset()
    closed: bool = False

    def arrive(self, member: int, now: float) -> SyncRound:
        """``member``'s values are complete. Late or unknown members change nothing."""
        if self.closed or member not in self.group:
            return self
        return replace(self, arrived=self.arrived | {member}).tick(now)

    def leave(self, member: int, now: float) -> SyncRound:
        """``member`` is known to be gone: nobody waits for it, unless it had arrived."""
        if self.closed or member not in self.group or member in self.arrived or len(self.group) == 1:
            return self
        present = [index for index, other in enumerate(self.group) if other != member]
        group, weights = tuple(self.group[i] for i in present), tuple(self.weights[i] for i in present)
        return replace(self, group=group, weights=weights).tick(now)

    def tick(self, now: float) -> SyncRound:
        """Time has come to ``now``."""
        enough = len(self.arrived) >= min(self.quorum, len(self.group))
        done = len(self.arrived) == len(self.group) or (now >= self.deadline and enough)
        return replace(self, closed=True) if done and self.arrived and not self.closed else self

    @property
    def missing(self) -> tuple[int, ...]:
        """Who has not arrived."""
        return tuple(member for member in self.group if member not in self.arrived)

    def shares(self) -> dict[int, float]:
        """Weight of each member that arrived; they add up to 1."""
        return renormalized(self.group, self.weights, self.arrived)
