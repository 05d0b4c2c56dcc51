"""Who is still heard: leases by the receiver's clock, and generations that fence out those who come back too late.

A lease is renewed by whatever its holder says and runs out after ``length`` seconds of silence (Gray and Cheriton, "Leases", SOSP
1989, without their clocks that agree: only the receiver's monotonic clock counts, so a clock that is set changes nothing). Each
session of a member has a number, its generation; what is said under an older one is not heard. A receiver that was stopped itself
has heard nobody in that time, so it lets leases run on by as much as it missed. O(members) for each look.
"""

from __future__ import annotations

from dataclasses import dataclass

from farflung.units import Seconds

__all__ = ["LEASE", "Leases"]

#: How long a member may be silent.
LEASE = Seconds(5.0)


@dataclass(slots=True, kw_only=True)
class _Held:
    generation: int
    heard: float


class Leases:
    """The leases of all members; times are seconds of one monotonic clock. Not thread-safe."""

    def __init__(self, length: Seconds = LEASE, tick: Seconds = Seconds(0.5)) -> None:  # noqa: B008 - immutable
        """``tick``: how often ``expired`` is asked."""
        self.length, self._tick = length, tick
        self._held: dict[str, _Held] = {}
        self._looked: float | None = None

    def grant(self, name: str, generation: int, now: float) -> None:
        """``name`` has a new session; what it says under an older generation is not heard any more."""
        self._held[name] = _Held(generation=generation, heard=now)

    def hear(self, name: str, generation: int, now: float) -> bool:
        """``name`` said something under ``generation``; False: that is over."""
        held = self._held.get(name)
        if held is None or held.generation != generation:
            return False
        held.heard = now
        return True

    def end(self, name: str, generation: int) -> bool:
        """The session is over; False: it was before, or another one has taken its place."""
        held = self._held.get(name)
        if held is None or held.generation != generation:
            return False
        del self._held[name]
        return True

    def generation(self, name: str) -> int:
        """The current one (0: ``name`` has no session)."""
        held = self._held.get(name)
        return 0 if held is None else held.generation

    def silence(self, name: str, now: float) -> Seconds:
        """For how long nothing was heard of ``name`` (0: it has no session)."""
        held = self._held.get(name)
        return Seconds(0.0 if held is None else max(now - held.heard, 0.0))

    def expired(self, now: float) -> list[tuple[str, int]]:
        """Names and generations whose lease has run out; they hold it until ``end``."""
        missed = 0.0 if self._looked is None else now - self._looked - self._tick
        if missed > self._tick:  # this process was stopped, or starved: what came meanwhile waits to be read
            for held in self._held.values():
                held.heard = min(held.heard + missed, now)
        self._looked = now
        return [(name, held.generation) for name, held in self._held.items() if now - held.heard > self.length]
