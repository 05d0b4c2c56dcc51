"""``farflung submit --resume RUN``: a new run that continues an earlier one from its newest checkpoint."""

from __future__ import annotations

from farflung.client.control import ControlClient
from farflung.errors import InputError
from farflung.job import JobSpec, check_job
from farflung.job.rates import stretched

__all__ = ["adapted", "start_line"]


def adapted(job: JobSpec, resume: str | None, steps: int | None) -> JobSpec:
    """Return ``job`` with the options ``--resume`` and ``--steps``.

    Raises:
        InputError: the job does not allow so few steps.
    """
    if resume is not None:
        job = job.model_copy(update={"checkpoint": job.checkpoint.model_copy(update={"resume": resume})})
    if steps is not None:
        job = job.model_copy(update={"steps": steps})
        check_job(job)
    return job


def start_line(client: ControlClient, source: str, steps: int | None) -> str:
    """Return a line on where a run that continues ``source`` begins (``steps``: of the new job, ``None``: as before).

    Raises:
        InputError: there is no run or folder ``source`` at the broker, or no step is left.
        CheckpointError: it has no checkpoint.
    """
    found = client.resumable(source)
    begin, before = int(str(found["step"])), int(str(found["steps"]))
    wanted = steps or before
    if steps is not None and steps <= begin:
        raise InputError(f"--steps must be above {begin}, got {steps}: {source} has a checkpoint after step {begin}")
    if wanted <= begin:
        raise InputError(f"{source} has a checkpoint after step {begin} of {wanted}: add --steps N with N above {begin}")
    line = f"continues {source} after step {begin}, up to step {wanted}"
    change = stretched(str(found["schedule"]), before, wanted)
    return f"{line}; {change}" if change else line
