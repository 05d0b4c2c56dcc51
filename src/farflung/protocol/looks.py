"""When to look for a better plan because a device or a link has drifted: at once, and seldom enough.

What drifts may drift back, and each change of plans costs a pause. So after a look nobody looks for ``LOOK`` seconds, and after a
change of plans for ``REST`` seconds, twice as long for each change of the last hour before that, up to ``MOST``; what is wanted
meanwhile waits. So a run has at most seven changes in an hour, however its machines come and go in speed. Pure: times are
parameters. Cost: O(runs) for each call.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

__all__ = ["Looks"]

#: Seconds: between two looks, after a first change of plans and at most; and for how long changes count.
LOOK, REST, MOST, HOUR = 5.0, 60.0, 3600.0, 3600.0


@dataclass(slots=True)
class _Run:
    #: Why it is to be looked for (empty: it is not).
    wanted: str = ""
    after: float = -math.inf
    changes: deque[float] = field(default_factory=deque)


class Looks:
    """The looks of all runs. Not thread-safe."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def want(self, run: str, why: str) -> None:
        """Something of ``run`` has drifted; of several reasons the latest is told."""
        self._runs.setdefault(run, _Run()).wanted = why

    def due(self, now: float) -> dict[str, str]:
        """The runs to look at now, and why; they count as looked at."""
        found = {name: run.wanted for name, run in self._runs.items() if run.wanted and now >= run.after}
        for name in found:
            self._runs[name].wanted = ""
            self._runs[name].after = now + LOOK
        return found

    def taken(self, run: str) -> str:
        """Why ``run`` is to be looked at (empty: it is not), for who has just done so."""
        held = self._runs.get(run)
        if held is None:
            return ""
        why, held.wanted = held.wanted, ""
        return why

    def rests(self, run: str, now: float) -> bool:
        """Whether ``run`` has changed its plan a moment ago."""
        held = self._runs.get(run)
        return held is not None and bool(held.changes) and now < held.changes[-1] + _rest(held)

    def changed(self, run: str, now: float) -> None:
        """``run`` has changed its plan for a better one."""
        held = self._runs.setdefault(run, _Run())
        while held.changes and held.changes[0] <= now - HOUR:
            held.changes.popleft()
        held.changes.append(now)
        held.after = now + _rest(held)

    def wait(self, now: float) -> float:
        """Seconds until some run is due (infinite: none is wanted)."""
        return min((max(run.after - now, 0.0) for run in self._runs.values() if run.wanted), default=math.inf)

    def forget(self, run: str) -> None:
        """``run`` is over."""
        self._runs.pop(run, None)


def _rest(run: _Run) -> float:
    return float(min(REST * 2 ** (len(run.changes) - 1), MOST))
