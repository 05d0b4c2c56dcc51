"""The standing of members: who broke the protocol, was late, reported losses of peers that were there, or has a broken machine.

An offense costs points. A member with some points is planned last: only if a run can't begin without it. A member with many
points is in quarantine: no run is planned for it until the broker's owner resets its standing. A job can make a member late, or
end its process, so the jobs of one submitter alone lead to no quarantine.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

__all__ = ["LAST", "QUARANTINE", "Offense", "Standing", "StandingRecord"]

#: Points from which a member is planned last, and from which it is in quarantine.
LAST, QUARANTINE = 2, 3
#: Members whose standing is remembered; the one that offended least recently is forgotten first.
_MOST = 10_000
#: Submitters whose points a record keeps apart; the points of further ones are added to those of the last one.
_MOST_SOURCES = 100


@dataclass(frozen=True, slots=True)
class Offense:
    """What a member did, and its points. Offenses of this kind alone bring no member beyond ``most`` points.

    ``source``: the submitter of the job that may have caused it (empty: no job can).
    """

    cause: str
    points: int
    most: int = 1 << 30
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class StandingRecord:
    """What is known against a member: ``points`` by source, and the newest causes."""

    points: Mapping[str, int] = field(default_factory=dict)
    causes: tuple[str, ...] = ()

    @property
    def total(self) -> int:
        """All points; those of one submitter's jobs count up to ``LAST``."""
        return sum(min(points, LAST) if source else points for source, points in self.points.items())

    def with_offense(self, offense: Offense) -> StandingRecord:
        """Return the record after ``offense``."""
        added = max(0, min(offense.points, offense.most - self.total))
        full = len(self.points) >= _MOST_SOURCES and offense.source not in self.points
        source = tuple(self.points)[-1] if full else offense.source
        points = {**self.points, source: self.points.get(source, 0) + added}
        return StandingRecord(points=points, causes=(*self.causes, offense.cause)[-QUARANTINE:])

    def without(self, points: int, source: str) -> StandingRecord:
        """Return the record without ``points`` of ``source``."""
        left = {**self.points, source: self.points.get(source, 0) - points}
        return StandingRecord(points={one: many for one, many in left.items() if many > 0}, causes=self.causes)


class Standing:
    """Records by member name. Not thread-safe."""

    def __init__(self) -> None:
        self._records: dict[str, StandingRecord] = {}
        #: The members whose record has changed since ``changes``.
        self._changed: dict[str, None] = {}

    def offend(self, name: str, offense: Offense) -> None:
        """``name`` has done ``offense``."""
        record = self._records.pop(name, StandingRecord())
        self._put(name, record.with_offense(offense))
        if len(self._records) > _MOST:
            self._put(next(iter(self._records)), None)

    def pardon(self, name: str, points: int, source: str = "") -> None:
        """An offense of ``points``, which a job of ``source`` may have caused, was none."""
        if name in self._records:
            left = self._records[name].without(points, source)
            self._put(name, left if left.points else None)

    def reset(self, name: str) -> bool:
        """Forget all offenses of ``name``; return whether there were any."""
        known = name in self._records
        if known:
            self._put(name, None)
        return known

    def restore(self, records: Mapping[str, StandingRecord]) -> None:
        """Take over the records of an earlier broker process, oldest first."""
        self._records = {**records, **self._records}

    def changes(self) -> dict[str, StandingRecord | None]:
        """Return the records that changed since the last call (None: the member has none any more)."""
        changed, self._changed = self._changed, {}
        return {name: self._records.get(name) for name in changed}

    def last(self, name: str) -> bool:
        """Return whether ``name`` is planned last, or not at all."""
        return self._total(name) >= LAST

    def quarantined(self, name: str) -> bool:
        """Return whether no run is planned for ``name``."""
        return self._total(name) >= QUARANTINE

    def text(self, name: str) -> str:
        """Return what became of ``name``, and why, for people (empty: nothing)."""
        points = self._total(name)
        if not points:
            return ""
        what = f"lost {points} of {QUARANTINE} points"
        if points >= LAST:
            what = "in quarantine" if points >= QUARANTINE else "planned last"
        return f"{what}, since {self._records[name].causes[-1]}; farflung kick {name} --undo resets this"

    def _total(self, name: str) -> int:
        return self._records[name].total if name in self._records else 0

    def _put(self, name: str, record: StandingRecord | None) -> None:
        self._changed[name] = None
        if record is None:
            self._records.pop(name, None)
        else:
            self._records[name] = record
