"""Who observes what a worker does in a run: metrics and traces of the machine's owner."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:  # a worker registers before it loads plans and arrays
    from farflung.messages.conversions.step_reports import StepReport
    from farflung.telemetry.trace import Span

__all__ = ["NoObserver", "WorkObserver"]


class WorkObserver(Protocol):
    """Threads of the step call. A call takes microseconds, waits for nothing and raises nothing."""

    def step(self, run: str, report: StepReport) -> None:
        """The worker has reported a step of ``run``."""

    def spans(self, run: str, spans: Sequence[Span]) -> None:
        """The worker has done ``spans``, by its own monotonic clock."""


class NoObserver:
    """Observes nothing."""

    def step(self, run: str, report: StepReport) -> None:
        """See ``WorkObserver``."""

    def spans(self, run: str, spans: Sequence[Span]) -> None:
        """See ``WorkObserver``."""
