"""Executors under plans made by hand: whatever the plan, every bit is that of a plain PyTorch loop."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from farflung.graph.cut import cut
from farflung.job import JobSpec
from farflung.job.spec import EvaluateSpec
from tests.support.steps.executor_threads import (
    Case,
    differing,
    hand_plan,
    job_of,
    other,
    plainly,
    random_batches,
    run_threads,
    tangle,
)

#: Stages of one device need not be neighbours, and a device may come back.
PLACEMENTS = [("a",), ("a", "b"), ("a", "a", "b"), ("a", "b", "a"), ("a", "b", "c", "a", "b")]


def equals_plain(case: Case) -> None:
    truth, ran = plainly(case), run_threads(case)
    assert [tuple(losses) for losses in ran.micro_losses] == list(truth.micro_losses)
    assert differing(truth.gradients, ran.gradients) == []
    assert differing(truth.states, ran.states) == []


@pytest.mark.parametrize("devices", PLACEMENTS, ids="".join)
@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "eager-3"])
def test_unequal_micro_batches_equal_a_plain_loop(devices: tuple[str, ...], schedule: str) -> None:
    equals_plain(Case(job=job_of(), devices=devices, schedule=schedule, cut_seed=len(devices)))


@pytest.mark.parametrize("seed", range(4))
def test_any_cut(seed: int) -> None:
    equals_plain(Case(job=job_of(steps=2), devices=("a", "b", "c", "b"), cut_seed=seed))


@pytest.mark.parametrize("weighting", ["samples", "equal"])
def test_the_reported_loss_is_the_weighted_mean(weighting: str) -> None:
    job = job_of(weighting=weighting, steps=1)
    ran = run_threads(Case(job=job, devices=("a", "b")))
    expected = sum(job.weight(index) * loss for index, loss in enumerate(ran.micro_losses[0]))
    assert ran.losses[0] == pytest.approx(expected, rel=1e-12)


GROUPS = [{"match": "norm|bias", "weight_decay": 0.0, "lr": 1e-3}, {"match": "^up", "weight_decay": 0.3}]
SETTINGS: dict[str, dict[str, Any]] = {
    "momentum, groups, clipping": {
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.9, "nesterov": True, "groups": GROUPS, "clip_norm": 0.1}
    },
    "adamw, groups, clipping": {"optimizer": {"name": "adamw", "lr": 1e-2, "groups": GROUPS, "clip_norm": 0.2}},
    "warm-up and cosine": {"schedule": {"name": "cosine", "warmup": 2, "final": 0.1}, "steps": 5},
    "linear": {"schedule": {"name": "linear", "warmup": 1}},
    "frozen": {"optimizer": {"name": "sgd", "lr": 0.1, "groups": [{"match": "^up|^norm", "frozen": True}]}},
    "tied and frozen": {"optimizer": {"name": "sgd", "lr": 0.1, "groups": [{"match": "^mix", "frozen": True}]}},
    "bf16": {"precision": "bf16"},
    "fp16": {"precision": "fp16"},
    "fp16, clipping, overflows": {
        "precision": "fp16",
        "loss_scale": {"initial": 2.0**24, "every": 2},
        "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5, "clip_norm": 0.1},
        "steps": 16,
    },
    "bf16, clipping": {"precision": "bf16", "optimizer": {"name": "sgd", "lr": 0.1, "momentum": 0.5, "clip_norm": 0.1}},
}


@pytest.mark.parametrize("changes", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("recompute", [False, True], ids=["kept", "recomputed"])
def test_settings_equal_a_plain_loop(changes: dict[str, Any], recompute: bool) -> None:
    equals_plain(Case(job=job_of(**changes), devices=("a", "b", "a"), recompute=recompute, cut_seed=3))


def test_clipping_bites() -> None:
    free = job_of(optimizer={"name": "sgd", "lr": 0.1}, steps=2)
    clipped = job_of(optimizer={"name": "sgd", "lr": 0.1, "clip_norm": 1e-3}, steps=2)
    loose, tight = (run_threads(Case(job=job, devices=("a", "b"))) for job in (free, clipped))
    assert tight.reports[0].grad_norm is not None
    assert tight.reports[0].grad_norm > 1e-2
    assert loose.losses[1] != tight.losses[1]
    assert loose.reports[0].grad_norm is None


def test_what_is_frozen_sends_no_gradient_back() -> None:
    """Everything up to the shared layer is frozen, so no stage before its first trainable parameter hears of a gradient."""
    frozen = {"name": "sgd", "lr": 0.1, "groups": [{"match": "^up|^norm|^mix|^layer", "frozen": True}]}
    case = Case(job=job_of(optimizer=frozen, steps=2), devices=("a", "b", "c", "d"), cut_seed=2)
    graphs = case.graphs()
    graph = graphs[max(graphs)]
    pieces = cut(graph, hand_plan(case, graph).bounds)
    first = next(piece.stage for piece in pieces if "last.bias" in piece.states)
    assert first >= 2
    assert [edge for piece in pieces[: first + 1] for edge in piece.sends_gradients] == []
    ran = run_threads(case)
    equals_plain(case)
    assert not any(name.startswith(("up", "mix")) for name in ran.gradients)


def test_evaluation_changes_nothing() -> None:
    job = job_of(steps=4)
    looked = job.model_copy(update={"evaluate": job.evaluate.model_copy(update={"every": 1, "batches": 6})})
    case = Case(job=job, devices=("a", "b", "a", "c"), cut_seed=1)
    without, ran = run_threads(case), run_threads(other(case, job=looked, evaluation=True))
    assert without.micro_losses == ran.micro_losses
    assert differing(without.states, ran.states) == []
    assert sorted(ran.evaluations) == [1, 2, 3, 4]
    assert len({outputs["loss"] for outputs in ran.evaluations.values()}) == 4


def test_the_trace_of_a_long_evaluation_has_few_names() -> None:
    job = evaluating(job_of(steps=1), batches=9)
    ran = run_threads(Case(job=job, devices=("a", "b"), evaluation=True))
    assert {"send eval-done", "decode eval-done"} <= ran.spans
    assert [name for name in ran.spans if name[-1].isdigit()] == []


def test_evaluation_is_that_of_the_module() -> None:
    job = job_of(steps=2)
    job = job.model_copy(update={"evaluate": job.evaluate.model_copy(update={"batches": 3})})
    case = Case(job=job, devices=("a", "b", "c"), evaluation=True)
    ran = run_threads(case)
    module = tangle()
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in ran.states.items()}, strict=False)
    module.eval()
    with torch.no_grad():
        expected = float(module(*random_batches(job.micro_batch_sizes)(-2, 0)))
    assert ran.evaluations == {2: {"loss": pytest.approx(expected, rel=1e-12)}}


def evaluating(job: JobSpec, **settings: int) -> JobSpec:
    """``job`` with an evaluation, which a file could not ask for together with data of the caller's."""
    return job.model_copy(update={"evaluate": EvaluateSpec(**settings)})


@pytest.mark.parametrize(("devices", "done"), [(("a",), 6), (("a", "b"), 6), (("a", "b", "a"), 8)])
def test_a_stop_ends_an_evaluation(tmp_path: Any, devices: tuple[str, ...], done: int) -> None:
    """Asked for after five questions, two of them at training steps unless another device makes the evaluation's loss.

    All workers end after the same micro-batch: the four under way are finished, and nothing is reported of a part."""
    job = evaluating(job_of(steps=2), batches=20)
    case = Case(job=job, devices=devices, root=tmp_path / "run", evaluation=True, stop_after=2 + 3)
    ran = run_threads(case)
    assert len(ran.reports) == 2
    assert ran.evaluations == {}
    assert ran.notes == [f"stopped: the evaluation was left out after {done} of its 20 micro-batches"]
    assert ran.kept == [2]


def test_a_stop_at_an_evaluation_between_steps_is_the_end(tmp_path: Any) -> None:
    job = evaluating(job_of(steps=9), batches=6, every=2)
    ran = run_threads(Case(job=job, devices=("a", "b"), root=tmp_path / "run", evaluation=True, stop_after=2 + 6))
    assert len(ran.reports) == 2
    assert list(ran.evaluations) == [2], "asked for after the last micro-batch: this one is whole"
    assert ran.notes == []
    assert ran.kept == [2]


def test_a_stop_ends_after_the_step_with_a_checkpoint(tmp_path: Any) -> None:
    case = Case(job=job_of(steps=9), devices=("a", "b"), root=tmp_path / "run", stop_after=3)
    ran = run_threads(case)
    assert len(ran.reports) == 3
    assert ran.kept == [3]
    assert differing(plainly(other(case, job=job_of(steps=3))).states, ran.states) == []
