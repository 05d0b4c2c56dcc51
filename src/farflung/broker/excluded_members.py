"""Members whose gradients of a step were not finite: whom the workers of a run agree on, and who began it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Mapping

from farflung.messages.conversions.step_reports import StepReport

__all__ = ["blamed_members", "excluded_members"]


def excluded_members(reports: Mapping[str, StepReport], faulty: int) -> tuple[str, ...]:
    """Return the members that more than ``faulty`` workers have left out of a step: at least one of these workers is honest.

    ``reports``: of one step, by worker.
    """
    counts = Counter(name for report in reports.values() for name in report.excluded if name in reports)
    return tuple(sorted(name for name, count in counts.items() if count > faulty))


def blamed_members(reports: Mapping[str, StepReport], excluded: Collection[str]) -> tuple[str, ...]:
    """Return those of ``excluded`` that did not only pass on what another excluded member had sent them.

    If two members of a pipeline blame each other, both are returned: without a recomputation nobody knows which one lies.
    """

    def excused(name: str) -> bool:
        senders = reports[name].spoilers & set(excluded)
        return any(name not in reports[sender].spoilers for sender in senders)

    return tuple(name for name in excluded if not excused(name))
