"""Deadlines: how long a phase of a run may last without any progress. A pure state machine; times are seconds of any clock."""

from __future__ import annotations

from collections.abc import Collection, Hashable
from dataclasses import dataclass

__all__ = ["Deadlines", "Phase"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a run waits for now. ``progress`` changes whenever something happens; ``seconds``: how long it may stay the same."""

    run: str
    progress: Hashable
    seconds: float


class Deadlines:
    """Follows the phases of all runs. Not thread-safe."""

    def __init__(self) -> None:
        #: run -> what was seen last, and since when
        self._seen: dict[str, tuple[Hashable, float]] = {}

    def expired(self, phases: Collection[Phase], now: float) -> list[Phase]:
        """Return those of ``phases`` (of all runs that wait for something) whose deadline is over; each is returned once."""
        before, self._seen = self._seen, {}
        late = []
        for phase in phases:
            progress, since = before.get(phase.run, (None, now))
            if phase.run not in before or progress != phase.progress:
                since = now
            elif now - since > phase.seconds:
                late.append(phase)
                since = now  # whoever is called late has as much time again to react
            self._seen[phase.run] = (phase.progress, since)
        return late
