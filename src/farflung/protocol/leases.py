"""Leases by the receiver's clock, and generations that fence out members that come back too late.

Any message of a member renews its lease. The lease expires after ``length`` seconds of silence (Gray and Cheriton, "Leases", SOSP
1989; unlike there, only the receiver's monotonic clock counts, so clocks need not agree). Each session of a member has a number,
its generation; messages under an older one are ignored. A receiver that was stopped itself received nothing in that time, so it
extends all leases by the time that it missed. Cost: O(members) for each call of ``expired``.
"""

from __future__ import annotations

from dataclasses import dataclass

from farflung.units import Seconds

__all__ = ["BEATS", "LEASE", "Leases"]

#: Seconds for which a member may be silent.
LEASE = Seconds(5.0)
#: Heartbeats in the length of a lease, in each direction (as in ZooKeeper). They are most of the CPU time of an idle broker.
BEATS = 3


@dataclass(slots=True, kw_only=True)
class _Lease:
    generation: int
    #: When the member sent something last.
    renewed: float


class Leases:
    """The leases of all members; times are seconds of one monotonic clock. Not thread-safe."""

    def __init__(self, length: Seconds = LEASE, tick: Seconds = Seconds(0.5)) -> None:  # noqa: B008 - immutable
        """``tick``: seconds between two calls of ``expired``."""
        self.length, self._tick = length, tick
        self._leases: dict[str, _Lease] = {}
        self._checked: float | None = None

    def grant(self, name: str, generation: int, now: float) -> None:
        """``name`` has a new session; messages under an older generation are ignored from now on."""
        self._leases[name] = _Lease(generation=generation, renewed=now)

    def renew(self, name: str, generation: int, now: float) -> bool:
        """``name`` sent something under ``generation``. Return False if that session is over."""
        lease = self._leases.get(name)
        if lease is None or lease.generation != generation:
            return False
        lease.renewed = now
        return True

    def end(self, name: str, generation: int) -> bool:
        """The session is over. Return False if it was over before, or if a newer one has replaced it."""
        lease = self._leases.get(name)
        if lease is None or lease.generation != generation:
            return False
        del self._leases[name]
        return True

    def generation(self, name: str) -> int:
        """Return the current generation of ``name`` (0: it has no session)."""
        lease = self._leases.get(name)
        return 0 if lease is None else lease.generation

    def silence(self, name: str, now: float) -> Seconds:
        """Return the time since ``name`` sent something (0: it has no session)."""
        lease = self._leases.get(name)
        return Seconds(0.0 if lease is None else max(now - lease.renewed, 0.0))

    def expired(self, now: float) -> list[tuple[str, int]]:
        """Return names and generations of members whose lease has expired; they stay here until ``end``."""
        missed = 0.0 if self._checked is None else now - self._checked - self._tick
        if missed > self._tick:  # this process was stopped, or got no CPU time: messages that came meanwhile wait to be read
            for lease in self._leases.values():
                lease.renewed = min(lease.renewed + missed, now)
        self._checked = now
        return [(name, lease.generation) for name, lease in self._leases.items() if now - lease.renewed > self.length]
