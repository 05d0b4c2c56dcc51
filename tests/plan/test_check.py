"""What a lack of memory advises: nothing that the job does already. What a plan may not have."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.errors import PlanError
from farflung.job.spec import JobSpec, OptimizerSpec, PlanSpec
from farflung.plan.check import _remedy, check_plan
from tests.support.plans.hand_plans import JOB, chain, plan_of, topology

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


@pytest.mark.parametrize("job", [None, JOB])
def test_a_site_has_no_optimizer_states_on_a_disk(job: JobSpec | None) -> None:
    graph = chain()
    plan = plan_of(graph, JOB)
    first, second, third = plan.stages
    offloads = replace(plan, stages=(first, replace(second, offload="optimizer"), third))
    one, two, three = topology().devices
    site = topology().with_devices([one, replace(two, ranks=2), three])
    assert check_plan(offloads, graph, topology(), job)
    assert check_plan(plan, graph, site, job)
    with pytest.raises(PlanError) as raised:
        check_plan(offloads, graph, site, job)
    assert str(raised.value) == (
        "stage 1 has its optimizer states on a disk, and device 'd1' is a site of 2 ranks, which has them in memory; "
        "remove offload from the stage, or put it on a device without ranks"
    )
