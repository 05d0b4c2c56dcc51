"""Stages with replicas: gradients are summed in the job's order, so every bit is that of a plain PyTorch loop."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farflung.errors import PlanError
from farflung.plan.check import check_plan
from farflung.plan.model import Plan
from tests.support.steps.executor_threads import Case, differing, job_of, newest, other, plainly, random_batches, run_threads
from tests.support.steps.replica_cases import LAYOUTS, SIZES, case_of, knot, small_plan


def equals_plain(case: Case) -> None:
    truth, ran = plainly(case), run_threads(case)
    assert [tuple(losses) for losses in ran.micro_losses] == list(truth.micro_losses)
    assert differing(truth.gradients, ran.gradients) == []
    assert differing(truth.states, ran.states) == []


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "eager-3"])
def test_replicas_equal_a_plain_loop(layout: str, schedule: str) -> None:
    equals_plain(other(case_of(layout), schedule=schedule))


def test_every_replica_ends_with_the_same_weights() -> None:
    case = case_of("2 x 2")
    truth = plainly(case)
    ran = run_threads(case)
    for device in "abcd":
        held = ran.held[device]
        assert held
        assert differing({name: truth.states[name] for name in held}, held) == []


SETTINGS: dict[str, dict[str, Any]] = {
    "clipping": {"optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "clip_norm": 0.05}},
    "frozen": {"optimizer": {"name": "sgd", "lr": 0.1, "groups": [{"match": "^up", "frozen": True}]}},
    "bf16": {"precision": "bf16"},
    "equal weights": {"weighting": "equal"},
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
def test_settings_with_replicas_equal_a_plain_loop(changes: dict[str, Any]) -> None:
    equals_plain(case_of("2 x 2", **changes))


@pytest.mark.parametrize(("parts", "layout"), [(1, None), (2, None), (2, "2 x 2"), (3, None), (3, "1 x 3")])
def test_virtual_replicas_decide_the_order_of_addition(parts: int, layout: str | None) -> None:
    """Whether one worker or several hold them."""
    case = case_of(layout or "2 x 2", virtual_replicas=parts)
    equals_plain(case if layout else other(case, replicas={}))


def test_the_order_shows_in_the_last_bits() -> None:
    one, plain = (plainly(case_of("2 x 2", virtual_replicas=parts)) for parts in (2, None))
    assert differing(one.gradients, plain.gradients)


def test_replicas_without_several_stages() -> None:
    case = Case(job=job_of(), devices=("a",), make=knot, replicas={0: [("a", range(1)), ("b", range(1, 3))]})
    equals_plain(case)


def test_a_skipped_step_leaves_replicas_equal() -> None:
    case = other(case_of("2 x 2", on_nan="skip", steps=4), spoilt={1: float("inf")})
    alone = other(case, replicas={})
    ran, single = run_threads(case), run_threads(alone)
    assert [report.skipped for report in ran.reports] == [False, True, False, False]
    assert differing(single.states, ran.states) == []


def test_checkpoints_and_evaluation_with_replicas(tmp_path: Path) -> None:
    job = case_of("2 x 2", checkpoint={"every": 2}, steps=4).job
    job = job.model_copy(update={"evaluate": job.evaluate.model_copy(update={"batches": 2})})
    case = other(case_of("2 x 2"), job=job, root=tmp_path, evaluation=True, batch=random_batches(SIZES))
    ran, single = run_threads(case), run_threads(other(case, replicas={}, root=None))
    assert ran.kept == [2, 4]
    held = newest(ran)
    assert differing(dict(single.states), held.read(list(single.states))) == []
    assert ran.evaluations == single.evaluations


REFUSED: dict[str, tuple[list[tuple[str, range]], dict[str, Any], str]] = {
    "gap": ([("a", range(2)), ("c", range(3, 6))], {}, "they must share 0 to 6 in order"),
    "empty": ([("a", range(6)), ("c", range(6, 6))], {}, "they must share 0 to 6 in order"),
    "twice": ([("a", range(3)), ("a", range(3, 6))], {}, "each on a device of its own"),
    "home": ([("c", range(3)), ("a", range(3, 6))], {}, "the first must be on its home 'a'"),
    "split": ([("a", range(2)), ("c", range(2, 6))], {"virtual_replicas": 2}, "replicas hold whole virtual replicas"),
}


@pytest.mark.parametrize(("replicas", "changes", "text"), REFUSED.values(), ids=REFUSED)
def test_what_replicas_may_not_be(replicas: list[tuple[str, range]], changes: dict[str, Any], text: str) -> None:
    plan, graph, job = small_plan(other(case_of("2 x 2", **changes), replicas={0: replicas}))
    with pytest.raises(PlanError, match=text):
        check_plan(plan, graph, None, job)


def test_batch_norm_takes_no_replicas() -> None:
    case = Case(job=job_of(), devices=("a",), replicas={0: [("a", range(1)), ("b", range(1, 3))]})
    plan, graph, job = small_plan(case)
    with pytest.raises(PlanError, match=r"updates 'norm\.\w+' in its forward \(batch norm\)"):
        check_plan(plan, graph, None, job)


def test_a_plan_with_replicas_is_read_back() -> None:
    plan, _, _ = small_plan(case_of("uneven"))
    assert Plan.from_json(plan.to_json()) == plan
    assert plan.devices == ("a", "c", "b", "d")
    assert plan.device_of(1, 0) == "b"
    assert plan.device_of(1, 1) == "d"
