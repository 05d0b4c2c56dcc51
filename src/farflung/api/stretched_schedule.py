"""The warning about a run that resumes with another number of steps, on which its schedule of learning rates depends."""

from __future__ import annotations

import sys
import warnings

from farflung.job.rates import stretched
from farflung.job.spec import JobSpec

__all__ = ["warn_if_stretched"]


def warn_if_stretched(job: JobSpec, before: int) -> None:
    """Warn the caller of ``train`` where ``job`` continues a run of ``before`` steps under other learning rates."""
    change = stretched(job.schedule.name, before, job.steps)
    if change:
        warnings.warn(
            f"resume={job.checkpoint.resume!r}: {change}, so the weights are not those of one run of {job.steps} steps; "
            "for these, give the final number of steps from the start and end early with StopTraining",
            stacklevel=_callers_level(),
        )


def _callers_level() -> int:
    """The ``stacklevel`` of the first frame outside of this package, for the function that calls this one."""
    level, frame = 1, sys._getframe(1)
    while frame.f_back is not None and str(frame.f_globals.get("__name__", "")).startswith("farflung."):
        level, frame = level + 1, frame.f_back
    return level
