"""Learning rates over steps: linear warm-up, then constant, cosine or linear decay."""

from __future__ import annotations

import math

from farflung.job.spec import JobSpec

__all__ = ["factor", "rates", "stretched"]


def factor(job: JobSpec, step: int) -> float:
    """The factor of step ``step`` (from 0) on every learning rate.

    Warm-up: ``(step + 1) / warmup`` for ``step < warmup``. Afterwards ``t = (step - warmup) / (steps - warmup)`` in [0, 1] and
    cosine ``final + (1 - final) (1 + cos(pi t)) / 2`` (SGDR, Loshchilov and Hutter 2017, equation (5), without restarts) or
    linear ``1 - (1 - final) t``. Steps after the last keep the final factor.
    """
    if step < 0:
        raise ValueError(f"steps count from 0, got {step}")
    schedule = job.schedule
    if step < schedule.warmup:
        return (step + 1) / schedule.warmup
    if schedule.name == "constant":
        return 1.0
    t = min(1.0, (step - schedule.warmup) / max(1, job.steps - schedule.warmup))
    if schedule.name == "linear":
        return 1.0 - (1.0 - schedule.final) * t
    return schedule.final + (1.0 - schedule.final) * (1.0 + math.cos(math.pi * t)) / 2.0


def stretched(schedule: str, before: int, steps: int) -> str:
    """What changes when a run of ``before`` steps continues as one of ``steps`` steps (empty: no learning rate changes)."""
    if schedule == "constant" or steps == before:
        return ""
    return f"its {schedule} schedule of learning rates now ends at step {steps} instead of {before}"


def rates(job: JobSpec, step: int) -> tuple[float, ...]:
    """The learning rates of step ``step``: one for each of the optimizer's groups, in order, then the default.

    A frozen group's rate is 0; a group without ``lr`` has the default.
    """
    scale = factor(job, step)
    default = job.optimizer.lr
    groups = (0.0 if group.frozen else default if group.lr is None else group.lr for group in job.optimizer.groups)
    return tuple(rate * scale for rate in (*groups, default))
