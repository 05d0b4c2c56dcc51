"""The second half of a run, resumed from the checkpoint of the first."""

from __future__ import annotations

from farflung.job import JobSpec
from tests.support.runs.loopback import Finished, same


def rest(job: JobSpec, source: str, planner: str = "equal_number", workers: int | None = None, steps: int = 6) -> JobSpec:
    """The same job from ``source`` on, planned otherwise."""
    plan = job.plan.model_copy(update={"planner": planner, "schedule": "gpipe"})
    checkpoint = job.checkpoint.model_copy(update={"resume": source})
    return job.model_copy(update={"plan": plan, "checkpoint": checkpoint, "workers": workers, "steps": steps, "name": "rest"})


def continues(first: Finished, second: Finished, at: int = 3) -> None:
    """The second run's steps and its end are those of the first."""
    assert second.result.status == "finished", second.result.cause
    assert [record.step for record in second.steps] == list(range(at, 6))
    assert second.losses == first.losses[at:]
    assert [r.learning_rate for r in second.steps] == [r.learning_rate for r in first.steps[at:]]
    assert same(first.tensors(6), second.tensors(6)) == []
    assert second.result.steps == 6
