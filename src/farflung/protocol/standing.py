"""The standing of members: who broke the protocol, was late, or reported losses of peers that were there.

An offense costs points. A member with some points is planned last: only if a run can't begin without it. A member with many
points is in quarantine: no run is planned for it until the broker's owner resets its standing.
"""

from __future__ import annotations

from dataclasses import dataclass, field

__all__ = ["LAST", "QUARANTINE", "Offense", "Standing"]

#: Points from which a member is planned last, and from which it is in quarantine.
LAST, QUARANTINE = 2, 3
#: Members whose standing is remembered; the one that offended least recently is forgotten first.
_MOST = 10_000


@dataclass(frozen=True, slots=True)
class Offense:
    """What a member did, and its points. Offenses of this kind alone bring no member beyond ``most`` points."""

    cause: str
    points: int
    most: int = 1 << 30


@dataclass(slots=True)
class _Record:
    points: int = 0
    causes: list[str] = field(default_factory=list)


class Standing:
    """Points by member name. Not thread-safe."""

    def __init__(self) -> None:
        self._records: dict[str, _Record] = {}

    def offend(self, name: str, offense: Offense) -> None:
        """``name`` has done ``offense``."""
        record = self._records.pop(name, None) or _Record()
        record.points = max(record.points, min(record.points + offense.points, offense.most))
        record.causes = [*record.causes, offense.cause][-QUARANTINE:]
        self._records[name] = record
        if len(self._records) > _MOST:
            del self._records[next(iter(self._records))]

    def pardon(self, name: str, points: int) -> None:
        """An offense of ``points`` was none."""
        if name in self._records:
            self._records[name].points -= points
            if self._records[name].points <= 0:
                del self._records[name]

    def reset(self, name: str) -> bool:
        """Forget all offenses of ``name``; return whether there were any."""
        return self._records.pop(name, None) is not None

    def last(self, name: str) -> bool:
        """Return whether ``name`` is planned last, or not at all."""
        return name in self._records and self._records[name].points >= LAST

    def quarantined(self, name: str) -> bool:
        """Return whether no run is planned for ``name``."""
        return name in self._records and self._records[name].points >= QUARANTINE

    def text(self, name: str) -> str:
        """Return what became of ``name``, and why, for people (empty: nothing)."""
        if not self.last(name):
            return ""
        what = "in quarantine" if self.quarantined(name) else "planned last"
        return f"{what}, since {self._records[name].causes[-1]}; farflung kick {name} --undo resets this"
