"""Which workers keep copies of whose states, and how often, as a job's broker tells its workers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from farflung.errors import WireError
from farflung.messages.fields import number, table, whole

__all__ = ["Rounds", "read_rounds"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rounds:
    """``every``: steps between rounds (0: there are none); ``guards``: device -> who keeps copies of its states.

    ``budget``: bytes that copies may take on links per step (0: ``every`` is fixed). Then rounds are as far apart as the last one
    was large, ``least`` steps at least.
    """

    every: int = 0
    guards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    least: int = 1
    budget: float = 0.0

    def header(self) -> dict[str, Any]:
        """As plain values."""
        guards = {device: list(guards) for device, guards in self.guards.items()}
        return {"every": self.every, "guards": guards, "least": self.least, "budget": self.budget}

    def gap(self, nbytes: int) -> int:
        """Steps from a round that took ``nbytes`` on links to the next one."""
        return max(self.least, math.ceil(nbytes / self.budget)) if self.budget > 0.0 else self.every


def read_rounds(header: Mapping[str, Any]) -> Rounds:
    """What ``Rounds.header`` gave.

    Raises:
        WireError: it is malformed.
    """
    guards = table(header, "guards")
    if not all(isinstance(names, list) and all(isinstance(name, str) for name in names) for names in guards.values()):
        raise WireError("bad message: guards must be lists of names")
    return Rounds(
        every=whole(header, "every"),
        guards={device: tuple(names) for device, names in guards.items()},
        least=whole(header, "least"),
        budget=number(header, "budget"),
    )
