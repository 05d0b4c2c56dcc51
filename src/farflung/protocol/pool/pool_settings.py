"""The settings of the task pool of a stage server, as they follow from plan and job."""

from __future__ import annotations

from dataclasses import dataclass

from farflung.job.spec import JobSpec
from farflung.plan import Plan
from farflung.protocol.pool.answer_times import Patience

__all__ = ["PoolSettings"]

#: With duplicates, an idle device repeats a task that takes more than this many times the median of the recent answers.
_HEDGE = 1.5


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolSettings:
    """``room``, ``helper_room``: slices that a server and a helper have between forward and backward, at most."""

    room: int
    helper_room: int
    patience: Patience

    @classmethod
    def of(cls, plan: Plan, job: JobSpec, stage: int) -> PoolSettings:
        """Return the settings of each server of ``stage``. A helper has slices of all of these servers."""
        room = job.micro_batches if plan.schedule == "gpipe" else len(plan.stages) - stage
        return cls(
            room=room,
            helper_room=max(2, room // len(plan.replicas_of(stage))),
            patience=Patience(hedge=_HEDGE if job.plan.duplicates else 0.0),
        )
