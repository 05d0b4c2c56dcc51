"""Learning rates over steps, and other settings of the optimizer that a schedule sets."""

from __future__ import annotations

import math

from farflung.job.spec import CurveSpec, JobSpec, ScheduleSpec, Setting
from farflung.job.value_tables import read_values

__all__ = ["factor", "rates", "scheduled", "stretched"]

#: The first factor of one cycle (Smith and Topin 2018; the default of PyTorch's OneCycleLR).
_CYCLE_BEGIN = 1 / 25
#: Settings beside the learning rate, in the order in which ``rates`` has them.
_OTHERS: tuple[Setting, ...] = ("momentum", "weight_decay")


def factor(job: JobSpec, step: int) -> float:
    """The factor of step ``step`` (from 0) on every learning rate; see ``curve_factor``."""
    return curve_factor(job.schedule, step, job.steps)


def curve_factor(curve: CurveSpec | ScheduleSpec, step: int, steps: int) -> float:
    """The factor of step ``step`` (from 0) of ``steps``. Steps after the last keep the final factor.

    Warm-up: ``(step + 1) / warmup`` for ``step < warmup``. Afterwards ``t = (step - warmup) / (steps - warmup)`` in [0, 1] and

    - cosine: ``final + (1 - final) (1 + cos(pi t)) / 2`` (SGDR, Loshchilov and Hutter 2017, equation (5), without restarts)
    - linear: ``1 - (1 - final) t``
    - wsd: 1, then in the last ``decay`` steps linearly to ``final`` (MiniCPM, Hu et al. 2024, section 4)
    - inverse_sqrt: ``sqrt(warmup / (step + 1))`` (Vaswani et al. 2017, section 5.3)
    - one_cycle: along a cosine from 1/25 to 1 at step ``warmup - 1``, then along a cosine to ``final`` at the last step
    """
    if step < 0:
        raise ValueError(f"steps count from 0, got {step}")
    if curve.name == "one_cycle":
        return _one_cycle(curve, step, steps)
    if step < curve.warmup:
        return (step + 1) / curve.warmup
    if curve.name in ("constant", "values"):
        return 1.0
    if curve.name == "inverse_sqrt":
        return math.sqrt(max(curve.warmup, 1) / (step + 1))
    begin = curve.warmup
    if curve.name == "wsd":
        begin = max(begin, steps - (curve.decay or max(1, steps // 10)))
    t = min(1.0, max(0.0, (step - begin) / max(1, steps - begin)))
    if curve.name == "cosine":
        return curve.final + (1.0 - curve.final) * (1.0 + math.cos(math.pi * t)) / 2.0
    return 1.0 - (1.0 - curve.final) * t


def _one_cycle(curve: CurveSpec | ScheduleSpec, step: int, steps: int) -> float:
    top = max((curve.warmup or int(0.3 * steps)) - 1, 1)
    if step <= top:
        return _cosine(_CYCLE_BEGIN, 1.0, step / top)
    return _cosine(1.0, curve.final, min(1.0, (step - top) / max(1, steps - 1 - top)))


def _cosine(begin: float, end: float, t: float) -> float:
    return end + (begin - end) * (1.0 + math.cos(math.pi * t)) / 2.0


def stretched(schedule: str, before: int, steps: int) -> str:
    """What changes when a run of ``before`` steps continues as one of ``steps`` steps (empty: no learning rate changes)."""
    if schedule in ("constant", "inverse_sqrt", "values") or steps == before:
        return ""
    return f"its {schedule} schedule of learning rates now ends at step {steps} instead of {before}"


def scheduled(job: JobSpec) -> tuple[Setting, ...]:
    """The settings of the optimizer that ``rates`` has: the learning rate, and what the schedule sets beside it."""
    schedule = job.schedule
    return ("lr", *(name for name in _OTHERS if name in schedule.values or getattr(schedule, name) is not None))


def rates(job: JobSpec, step: int) -> tuple[float, ...]:
    """The learning rates of step ``step``: one for each of the optimizer's groups, in order, then the default.

    A frozen group's rate is 0; a group without ``lr`` has the default. The same for each further setting of ``scheduled``, of
    which the job holds values (after the last one it stays).

    Raises:
        InputError: the job lacks the values of a setting, or they are damaged.
    """
    groups, found = len(job.optimizer.groups) + 1, []
    for name in scheduled(job):
        if name == "lr" and name not in job.schedule.values:
            found += _learning_rates(job, step)
        else:
            values = read_values(job.schedule.values.get(name, ""), groups)
            at = min(step, len(values) // groups - 1) * groups
            found += values[at : at + groups]
    return tuple(found)


def _learning_rates(job: JobSpec, step: int) -> list[float]:
    scale = factor(job, step)
    default = job.optimizer.lr
    groups = (0.0 if group.frozen else default if group.lr is None else group.lr for group in job.optimizer.groups)
    return [rate * scale for rate in (*groups, default)]
