"""Deadlines: how long a phase of a run may last without any progress. A pure state machine; times are seconds of any clock."""

from __future__ import annotations

from collections.abc import Collection, Hashable, Mapping
from dataclasses import dataclass

__all__ = ["Deadlines", "Phase", "origin"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a run waits for now. ``progress`` changes whenever something happens; ``seconds``: how long it may stay the same."""

    run: str
    progress: Hashable
    seconds: float


def origin(first: str, waits: Mapping[str, Collection[str]]) -> tuple[str, frozenset[str]]:
    """Return the worker for which ``first`` waits in the end: one that waits for nobody. ``waits``: worker -> its peers.

    If workers wait for each other in a circle, return none and the circle: one of them has not sent what it should have.
    """
    path: list[str] = []
    at = first
    while at not in path:
        path.append(at)
        if not waits.get(at):
            return at, frozenset()
        at = min(waits[at])
    return "", frozenset(path[path.index(at) :])


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

    def since(self, run: str, now: float) -> float:
        """Return when the phase of ``run`` last made progress, as far as was seen until ``now``."""
        return self._seen.get(run, (None, now))[1]
