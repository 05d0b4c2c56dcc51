"""Losses and gradients that are not numbers: stop, skip, roll back, by the job's word."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import Tensor, nn
from torch.nn import functional

from farflung.errors import CheckpointError, TrainingError
from farflung.messages.submission import Bundle
from farflung.step.run_setup import Committed
from tests.support.steps.executor_threads import (
    BatchFunction,
    Case,
    Ran,
    calm_tangle,
    differing,
    job_of,
    newest,
    other,
    plainly,
    random_batches,
    root,
    run_threads,
)

SIZES = [4, 2, 3]
OPTIMIZERS = {
    "momentum": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
    "adamw, clipping": {"name": "adamw", "lr": 1e-2, "clip_norm": 0.5},
}


def case_of(tmp_path: Path, policy: str, steps: int, optimizer: dict[str, Any], **changes: Any) -> Case:
    job = job_of(on_nan=policy, steps=steps, optimizer=optimizer, micro_batch_sizes=SIZES, checkpoint={"every": 2, "keep": 9})
    given = {"devices": ("a", "b", "a"), "make": calm_tangle, "root": tmp_path / f"run-{policy}-{steps}", "cut_seed": 3}
    return Case(job=job, **{**given, **changes})


def only(steps: list[int]) -> BatchFunction:
    """The data of these steps, as if there were no others."""
    plain = random_batches(SIZES)
    return lambda step, index: plain(steps[step] if step >= 0 else step, index)


def applied(case: Case, steps: list[int]) -> Any:
    """A plain loop over the data of ``steps`` alone."""
    job = case.job.model_copy(update={"steps": len(steps)})
    return plainly(other(case, job=job, batch=only(steps), spoilt={}))


def skipped(ran: Ran) -> list[int]:
    return [report.step for report in ran.reports if report.skipped]


def test_stop_names_step_and_remedy_and_leaves_the_checkpoint(tmp_path: Path) -> None:
    case = case_of(tmp_path, "stop", 6, OPTIMIZERS["momentum"], spoilt={3: float("inf")})
    with pytest.raises(TrainingError, match=r"step 3: the loss of micro-batches \[0, 1, 2\] is not a finite number; lower the"):
        run_threads(case)
    kept = Ran(plan=None, store=None)  # type: ignore[arg-type]
    from farflung.broker.records.run_store import RunStore

    assert case.root is not None
    kept.store = RunStore(case.root)
    assert kept.store.checkpoints.steps() == (2,)
    kept.store.checkpoints.verify(2)


def test_stop_at_gradients_that_are_not_numbers(tmp_path: Path) -> None:
    case = case_of(tmp_path, "stop", 3, OPTIMIZERS["adamw, clipping"], make=root, devices=("a", "b"), spoilt={1: 0.0}, cut_seed=0)
    with pytest.raises(TrainingError, match=r"step 1: the norm of the gradients is not a finite number"):
        run_threads(case)


@pytest.mark.parametrize("spoilt", [1, 2])
@pytest.mark.parametrize("devices", [("a",), ("a", "b")])
def test_stop_at_gradients_that_are_not_numbers_without_clipping(tmp_path: Path, devices: tuple[str, ...], spoilt: int) -> None:
    sgd, checkpoint = {"name": "sgd", "lr": 0.05}, {"every": 1, "keep": 9}
    case = case_of(tmp_path, "stop", 3, sgd, make=root, devices=devices, spoilt={spoilt: 0.0}, cut_seed=0)
    case = other(case, job=case.job.model_copy(update={"checkpoint": case.job.checkpoint.model_copy(update=checkpoint)}))
    text = rf"step {spoilt}: the gradient of '(first|second)\.weight'( \(and of 1 more parameters of stage 0\))? is not a finite"
    with pytest.raises(TrainingError, match=text):
        run_threads(case)
    from farflung.broker.records.run_store import RunStore

    assert case.root is not None
    assert max(RunStore(case.root).checkpoints.steps()) == spoilt, "made by the steps before"


class Lopsided(nn.Module):
    """The gradient of ``first`` is not a number where the input is zero, that of ``second`` is (as is the loss)."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(6, 8, bias=False), nn.Linear(8, 8)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        z = self.first(x)
        return functional.cross_entropy(self.second(z * z.square().sum().sqrt()), y)


def test_no_checkpoint_of_a_step_that_only_one_worker_refuses(tmp_path: Path) -> None:
    """The other worker applies the step and hands in its share; that of the worker that stops is missing."""
    case = case_of(
        tmp_path, "stop", 3, {"name": "sgd", "lr": 0.05}, make=Lopsided, devices=("a", "b"), spoilt={2: 0.0}, cut_seed=0
    )
    case = other(case, job=case.job.model_copy(update={"checkpoint": case.job.checkpoint.model_copy(update={"every": 1})}))
    with pytest.raises(TrainingError, match=r"step 2: the gradient of 'first\.weight' is not a finite number; lower the"):
        run_threads(case)
    from farflung.broker.records.run_store import RunStore

    assert case.root is not None
    assert max(RunStore(case.root).checkpoints.steps()) == 2


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_skip_leaves_everything_as_it_was(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    case = case_of(tmp_path, "skip", 5, optimizer, spoilt={2: float("inf")})
    ran = run_threads(case)
    assert skipped(ran) == [2]
    truth = applied(case, [0, 1, 3, 4])
    assert differing(truth.states, ran.states) == []
    assert [losses for report, losses in zip(ran.reports, ran.micro_losses, strict=True) if not report.skipped] == list(
        truth.micro_losses
    )
    assert any("running_mean" in name for name in ran.states)
    assert newest(ran).manifest.ledger == {"steps": 4, "samples": 36}, "the skipped step does not count"


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_rollback_returns_to_the_newest_checkpoint(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    case = case_of(tmp_path, "rollback", 6, optimizer, spoilt={3: float("nan")})
    ran = run_threads(case)
    assert skipped(ran) == [3]
    truth = applied(case, [0, 1, 4, 5])
    assert differing(truth.states, ran.states) == []
    assert ran.micro_losses[4:] == list(truth.micro_losses[2:])
    assert ran.store is not None
    ledgers = [ran.store.checkpoints.manifest(step).ledger["steps"] for step in (2, 4, 6)]
    assert ledgers == [2, 2, 4], "neither the step without numbers nor the one that was rolled back counts"


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_rollback_before_the_first_checkpoint_begins_anew(tmp_path: Path, optimizer: dict[str, Any]) -> None:
    case = case_of(tmp_path, "rollback", 4, optimizer, spoilt={1: float("inf")})
    ran = run_threads(case)
    assert skipped(ran) == [1]
    assert differing(applied(case, [2, 3]).states, ran.states) == []
    assert newest(ran).manifest.ledger == {"steps": 2, "samples": 18}


def test_the_ledger_goes_on_from_that_of_the_checkpoint(tmp_path: Path) -> None:
    case = case_of(tmp_path, "skip", 4, OPTIMIZERS["momentum"], spoilt={1: float("inf")})
    first = run_threads(case)
    assert first.store is not None
    again = other(case, resume=first.store.checkpoints.path(2), root=tmp_path / "again", spoilt={2: float("inf")})
    assert newest(run_threads(again)).manifest.ledger == {"steps": 2, "samples": 18}, "one of two before, one of two after"


def test_workers_that_disagree_on_the_ledger_make_no_checkpoint(tmp_path: Path) -> None:
    from farflung.broker.records.run_store import RunStore

    case = case_of(tmp_path, "skip", 2, OPTIMIZERS["momentum"], devices=("a", "b"))
    ran = run_threads(case)
    assert ran.store is not None
    store = RunStore(tmp_path / "other")
    shards = {shard.file.split("-")[0]: shard for shard in newest(ran).manifest.shards}
    for name, committed in (("a", 2), ("b", 1)):
        data = (ran.store.checkpoints.path(2) / shards[name].file).read_bytes()
        store.add_shard(2, name, [data], Committed(steps=committed))
    bundle = Bundle(run="run", job=case.job, graphs=case.graphs())
    with pytest.raises(CheckpointError, match=r"disagree on how many of the first 2 steps count \(a: 2, b: 1\)"):
        store.complete(2, bundle, ran.plan)
    assert store.checkpoints.steps() == ()


@pytest.mark.parametrize("policy", ["skip", "rollback"])
def test_a_finite_loss_with_gradients_that_are_not_numbers(tmp_path: Path, policy: str) -> None:
    sgd = {"name": "sgd", "lr": 0.05, "momentum": 0.9}
    case = case_of(tmp_path, policy, 4, sgd, make=root, devices=("a", "b"), spoilt={2: 0.0}, cut_seed=0)
    ran = run_threads(case)
    assert all(np.isfinite(report.loss or 0.0) for report in ran.reports)
    assert skipped(ran) == [2]
    assert differing(applied(case, [0, 1, 3]).states, ran.states) == []
