"""How long a search may go on: a number of evaluations, seconds, or both."""

from __future__ import annotations

from collections.abc import Callable

from farflung.clock import precise_time

__all__ = ["Budget"]


class Budget:
    """Counts evaluations; ``left`` is false when they or the seconds are spent. The clock is a parameter.

    ``patience``: evaluations without an improvement after which nothing is left, for searches that report improvements.
    """

    def __init__(
        self,
        evaluations: int | None,
        seconds: float | None,
        now: Callable[[], float] = precise_time,
        patience: int | None = None,
    ) -> None:
        self.evaluations = evaluations
        self.used = 0
        self._now = now
        self._end = None if seconds is None else now() + seconds
        self._patience, self._improved = patience, 0

    def spend(self, count: int = 1) -> None:
        """Count ``count`` evaluations."""
        self.used += count

    def improved(self) -> None:
        """The last evaluation is better than all before it."""
        self._improved = self.used

    def left(self) -> bool:
        """Whether the search may go on."""
        if self.evaluations is not None and self.used >= self.evaluations:
            return False
        if self._patience is not None and self.used - self._improved >= self._patience:
            return False
        return self._end is None or self._now() < self._end
