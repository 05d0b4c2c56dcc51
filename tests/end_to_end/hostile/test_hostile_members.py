"""One hostile member of several under ``sync robust``: the run goes on, the member is named, and the loss is hardly worse."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from farflung.errors import TrainingError
from farflung.messages.conversions.step_reports import StepReport
from tests.support.runs.loopback import Loopback, captured, text_job
from tests.support.runs.played_runs import End, play
from tests.support.steps.executor_threads import Case, Ran, differing, job_of, run_threads
from tests.support.steps.hostile_members import ATTACKS, hostile
from tests.support.steps.replica_cases import knot
from tests.support.steps.strategy_cases import straight

SIZES = [64] * 5
STEPS = 30
#: Five pipelines of two stages.
GRID = {
    0: [(name, range(i, i + 1)) for i, name in enumerate("abcde")],
    1: [(name, range(i, i + 1)) for i, name in enumerate("fghij")],
}


def lesson(step: int, index: int) -> tuple[Tensor, Tensor]:
    """Samples of one distribution for all members: a third of the labels is noise, so the loss has a floor."""
    random = torch.Generator().manual_seed(100 * step + index)
    x = torch.randn(SIZES[index], 6, generator=random)
    learnt = (x @ torch.randn(6, 8, generator=torch.Generator().manual_seed(1))).argmax(dim=1)
    noise = torch.randint(0, 8, (SIZES[index],), generator=random)
    return x, torch.where(torch.rand(SIZES[index], generator=random) < 0.33, noise, learnt)


def case_of(rule: str = "trimmed_mean", *, stages: int = 2, **changes: Any) -> Case:
    settings = {"rule": rule, "faulty": 1}
    document = {
        "steps": STEPS,
        "micro_batch_sizes": SIZES,
        "optimizer": {"name": "sgd", "lr": 1.0},
        "plan": {"replicas": 5},
        "sync": {"strategy": "robust", "settings": settings},
    }
    return Case(
        job=job_of(**(document | changes)),
        devices=("a", "f")[:stages],
        make=straight if stages == 1 else knot,
        replicas={stage: GRID[stage] for stage in range(stages)},
        batch=lesson,
        cut_seed=1,
    )


@pytest.fixture(scope="module")
def undisturbed() -> dict[int, Ran]:
    return {stages: run_threads(case_of(stages=stages)) for stages in (1, 2)}


def close_at_the_end(ran: Ran, truth: Ran) -> bool:
    """Whether the loss of the honest pipelines' last step is within 5 % of the undisturbed run's."""
    found, wanted = (np.mean(one.reports[-1].losses[:4]) for one in (ran, truth))
    return bool(abs(found - wanted) <= 0.05 * wanted)


@pytest.mark.parametrize(
    ("attack", "stages"),
    [
        *(pytest.param(attack, 2, marks=[] if attack in ("nan", "sign-flipped") else pytest.mark.slow) for attack in ATTACKS),
        ("nan", 1),
    ],
)
def test_one_hostile_member_of_five_changes_the_loss_by_less_than_5_percent(
    attack: str, stages: int, undisturbed: dict[int, Ran]
) -> None:
    with hostile(attack, 4, range(stages)):
        ran = run_threads(case_of(stages=stages))
    assert close_at_the_end(ran, undisturbed[stages]), (ran.reports[-1].losses, undisturbed[stages].reports[-1].losses)
    assert undisturbed[stages].losses[-1] < 0.9 * undisturbed[stages].losses[0], "there is something to learn"
    spoilt = {"e", "j"} if stages == 2 else {"e"}
    for report in ran.reports:  # those of the leader, which has the last stage
        assert report.excluded == (spoilt - {"e"} or spoilt if attack in ("nan", "infinite") else frozenset())
    for name in "bcd":
        assert differing(ran.held["a"], ran.held[name]) == [], "honest replicas have the same weights"


@pytest.mark.parametrize(("rule", "attack"), [("geometric_median", "nan"), ("flag", "infinite")])
def test_rules_over_whole_vectors_leave_a_spoilt_member_out(rule: str, attack: str) -> None:
    truth = run_threads(case_of(rule, stages=1))
    with hostile(attack, 4):
        ran = run_threads(case_of(rule, stages=1))
    assert close_at_the_end(ran, truth)
    assert {frozenset(report.excluded) for report in ran.reports} == {frozenset("e")}


def spoilt_input(case: Case, index: int) -> Case:
    """``case`` with inputs of micro-batch ``index`` that overflow."""

    def batch(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        x, y = lesson(step, micro_batch)
        return (x * float("inf"), y) if micro_batch == index and step >= 0 else (x, y)

    case.batch = batch
    return case


@pytest.mark.parametrize("index", [pytest.param(4, marks=pytest.mark.slow), 0])
def test_an_overflow_of_a_whole_pipeline_is_tolerated_and_its_origin_is_known(index: int, undisturbed: dict[int, Ran]) -> None:
    ran = run_threads(spoilt_input(case_of(), index))
    origin, last = "abcde"[index], "fghij"[index]
    reports: list[StepReport] = ran.reports
    assert len(reports) == STEPS
    for report in reports:
        assert {origin, last} >= report.excluded != frozenset()
        assert report.loss is not None
        assert np.isfinite(report.loss)
    rest = [i for i in range(5) if i != index]
    found, wanted = (np.mean([one.reports[-1].losses[i] for i in rest]) for one in (ran, undisturbed[2]))
    assert abs(found - wanted) <= 0.05 * wanted
    assert all(np.isfinite(value).all() for value in ran.states.values())


def test_more_spoilt_members_than_the_rule_tolerates_end_the_run() -> None:
    with hostile("nan", 3), hostile("nan", 4), pytest.raises(TrainingError) as caught:
        run_threads(case_of(stages=1))
    text = "step 0: the gradients of d, e in stage 0 are not finite numbers, with sync.settings.faulty = 1: "
    assert str(caught.value) == text + "lower the learning rate, or raise faulty"


def play_robust(cluster: Loopback, steps: int, replicas: int) -> End:
    job = text_job(
        steps=steps,
        micro_batch_sizes=[2] * replicas,
        plan={"replicas": replicas},
        sync={"strategy": "robust", "settings": {"faulty": 1}},
        optimizer={"name": "sgd", "lr": 0.3},
        evaluate={"batches": 4},
    )
    return play(cluster, captured(job, cluster.home), workers=len(cluster.workers))


def evaluated(end: End) -> float:
    """The loss of the evaluation at the end."""
    assert (end.result.status, end.result.cause) == ("finished", "")
    lines = [json.loads(line) for line in (end.folder / "metrics.jsonl").read_text().splitlines()]
    return float(next(line["loss"] for line in lines if line["kind"] == "evaluation"))


def test_a_worker_with_nan_gradients_is_in_the_records_and_loses_standing(home: Any) -> None:
    with Loopback(home, 5) as cluster:
        truth = play_robust(cluster, 6, 5)
        with hostile("nan", 4):
            found = play_robust(cluster, 6, 5)
        members = {str(one["name"]): one for one in cluster.client.status()["members"]}
    plan = json.loads((found.folder / "plan.json").read_text())
    liar = plan["stages"][0]["replicas"][4]["device"]
    lines = [json.loads(line) for line in (found.folder / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if line["kind"] == "step"]
    assert [(line["excluded"], line["blamed"]) for line in steps] == [([liar], [liar])] * 6
    before, after = evaluated(truth), evaluated(found)
    assert abs(after - before) <= 0.05 * before
    text = f"planned last, since its gradients were not finite in step 5 of {found.run}; farflung kick {liar} --undo resets this"
    assert {name: one["idle"] for name, one in members.items() if "planned" in str(one["idle"])} == {liar: text}
