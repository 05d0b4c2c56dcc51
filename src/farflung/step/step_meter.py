"""Where the wall-clock time of one step goes."""

from __future__ import annotations

from collections.abc import Mapping

from farflung.clock import precise_time

__all__ = ["StepMeter"]


class StepMeter:
    """Wall-clock seconds of one step, split into compute (by stage) and waiting."""

    def __init__(self) -> None:
        self.begin = precise_time()
        self.busy: dict[int, float] = {}
        self.wait = 0.0
        #: What helpers did in the step, by stage and helper: samples, seconds.
        self.helped: dict[tuple[int, str], tuple[int, float]] = {}
        self._mark = 0.0
        self._stage: int | None = None

    def add_helpers(self, helped: Mapping[tuple[int, str], tuple[int, float]]) -> None:
        """Store what helpers did in the step: samples and seconds, by stage and helper."""
        self.helped.update(helped)

    def waiting(self) -> StepMeter:
        """Counts what its ``with`` takes as waiting."""
        self._stage = None
        return self

    def computing(self, stage: int) -> StepMeter:
        """Counts what its ``with`` takes as compute of ``stage``."""
        self._stage = stage
        return self

    def __enter__(self) -> None:
        self._mark = precise_time()

    def __exit__(self, *error: object) -> None:
        spent = precise_time() - self._mark
        if self._stage is None:
            self.wait += spent
        else:
            self.busy[self._stage] = self.busy.get(self._stage, 0.0) + spent
