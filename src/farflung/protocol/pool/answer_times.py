"""How long helpers take for tasks, and how long they may take."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import median

from farflung.protocol.pool.pool_events import TaskKind

__all__ = ["AnswerTimes", "Patience"]

#: Recent answers that count.
_SEEN = 16


@dataclass(frozen=True, slots=True, kw_only=True)
class Patience:
    """How many seconds a helper may take for a task before another device may take the task.

    That is ``factor`` times the longest of the recent answers of its kind, at least ``least``, and ``first`` before there was any
    answer. ``hedge``: an idle device repeats a helper's task that takes ``hedge`` times the median of the recent answers
    (0: never).
    """

    least: float = 2.0
    factor: float = 4.0
    first: float = 20.0
    hedge: float = 0.0


class AnswerTimes:
    """The recent answer times of all helpers of a pool, by kind of task, in seconds."""

    def __init__(self, patience: Patience) -> None:
        self._patience = patience
        self._seen: dict[TaskKind, deque[float]] = {kind: deque(maxlen=_SEEN) for kind in TaskKind}

    def add(self, kind: TaskKind, seconds: float) -> None:
        """A helper took ``seconds`` for a task of ``kind``."""
        self._seen[kind].append(seconds)

    def until_late(self, kind: TaskKind) -> float:
        """Return the time after which a helper is late with a task of ``kind``."""
        seen = self._seen[kind]
        return max(self._patience.least, self._patience.factor * max(seen)) if seen else self._patience.first

    def until_hedge(self, kind: TaskKind) -> float | None:
        """Return the time after which an idle device repeats a task of ``kind`` (None: never, or unknown yet)."""
        seen = self._seen[kind]
        return self._patience.hedge * median(seen) if seen and self._patience.hedge else None
