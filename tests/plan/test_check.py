"""What a lack of memory advises: nothing that the job does already."""

from __future__ import annotations

import pytest

from farflung.job.spec import JobSpec, OptimizerSpec, PlanSpec
from farflung.plan.check import _remedy

ALL = (
    'add a device or memory, make micro-batches smaller, allow recomputation (plan.recompute = "auto"), or take an optimizer '
    "with less state"
)


@pytest.mark.parametrize(
    ("job", "text"),
    [
        (
            JobSpec(micro_batch_sizes=(4,), optimizer=OptimizerSpec(name="adamw"), plan=PlanSpec(recompute="never")),
            ALL,
        ),
        (
            JobSpec(micro_batch_sizes=(4,), optimizer=OptimizerSpec(name="adamw"), plan=PlanSpec(recompute="auto")),
            "add a device or memory, make micro-batches smaller, or take an optimizer with less state",
        ),
        (
            JobSpec(micro_batch_sizes=(4,), optimizer=OptimizerSpec(name="sgd", momentum=0.9), plan=PlanSpec(recompute="always")),
            "add a device or memory, make micro-batches smaller, or take an optimizer with less state",
        ),
        (
            JobSpec(micro_batch_sizes=(1, 1), optimizer=OptimizerSpec(name="sgd"), plan=PlanSpec(recompute="auto")),
            "add a device or memory",
        ),
    ],
)
def test_the_advice_fits_the_job(job: JobSpec, text: str) -> None:
    assert _remedy(job) == text
