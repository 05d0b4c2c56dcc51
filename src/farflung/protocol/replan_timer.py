"""When to search for a better plan because a device or link has changed its speed: soon, and not too often.

A speed may change back, and each change of plans costs a pause. So after a search there is none for ``SEARCH`` seconds, and after
a change of plans for ``REST`` seconds, twice as long for each earlier change of the last hour, up to ``MOST``. Requests wait
meanwhile. So a run changes its plan at most seven times an hour. Pure: times are parameters. Cost: O(runs) for each call.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field

__all__ = ["ReplanTimer"]

#: Seconds: between two searches, after a first change of plans, after many, and for how long changes count.
SEARCH, REST, MOST, HOUR = 5.0, 60.0, 3600.0, 3600.0


@dataclass(slots=True)
class _Run:
    #: Why a search was requested (empty: none was).
    reason: str = ""
    after: float = -math.inf
    changes: deque[float] = field(default_factory=deque)


class ReplanTimer:
    """The searches of all runs. Not thread-safe."""

    def __init__(self) -> None:
        self._runs: dict[str, _Run] = {}

    def request(self, run: str, why: str) -> None:
        """Request a search for ``run``; of several reasons the latest counts."""
        self._runs.setdefault(run, _Run()).reason = why

    def due(self, now: float) -> dict[str, str]:
        """Return the runs to search for now, and why. The search counts as done."""
        found = {name: run.reason for name, run in self._runs.items() if run.reason and now >= run.after}
        for name in found:
            self._runs[name].reason = ""
            self._runs[name].after = now + SEARCH
        return found

    def take(self, run: str) -> str:
        """Return why a search for ``run`` was requested (empty: none was). The request is done."""
        state = self._runs.get(run)
        if state is None:
            return ""
        why, state.reason = state.reason, ""
        return why

    def rests(self, run: str, now: float) -> bool:
        """Return whether ``run`` changed its plan recently."""
        state = self._runs.get(run)
        return state is not None and bool(state.changes) and now < state.changes[-1] + _rest(state)

    def changed(self, run: str, now: float) -> None:
        """``run`` has changed its plan for a better one."""
        state = self._runs.setdefault(run, _Run())
        while state.changes and state.changes[0] <= now - HOUR:
            state.changes.popleft()
        state.changes.append(now)
        state.after = now + _rest(state)

    def wait(self, now: float) -> float:
        """Return the seconds until a search is due (infinite: none was requested)."""
        return min((max(run.after - now, 0.0) for run in self._runs.values() if run.reason), default=math.inf)

    def forget(self, run: str) -> None:
        """``run`` is over."""
        self._runs.pop(run, None)


def _rest(run: _Run) -> float:
    return float(min(REST * 2 ** (len(run.changes) - 1), MOST))
