"""``StopTraining``, other exceptions of callbacks and Ctrl-C end a training after a step, and nothing is lost."""

from __future__ import annotations

import re
import signal
import threading
from typing import Any

import pytest

from farflung import Evaluation, StopTraining, TrainResult
from farflung.telemetry.records import EvaluationRecord, StepRecord
from tests.support.runs.small_training import PLACES, held_out, plain_net, same, trained


def raising(error: BaseException, at: int) -> Any:
    def on_step(record: StepRecord) -> None:
        if record.step == at:
            raise error

    return on_step


def check_whole(found: TrainResult, at: int, there: bool) -> None:
    """Weights, losses and records belong to the same steps; here exactly to those up to ``at``."""
    assert found.steps == len(found.losses) == len(found.records)
    assert found.steps == at + 1 if not there else at + 1 <= found.steps < 100_000
    shorter = trained(steps=found.steps)
    assert same(found, shorter)
    assert found.losses == shorter.losses


@PLACES
def test_stop_training_returns_the_result_so_far(place: str | None, there: bool) -> None:
    found = trained(place, steps=100_000, on_step=raising(StopTraining(), 2))
    assert found.stopped
    check_whole(found, 2, there)


@PLACES
def test_after_an_evaluation(place: str | None, there: bool) -> None:
    def on_result(record: EvaluationRecord) -> None:
        if record.step == 4:
            raise StopTraining

    evaluation = Evaluation(batch_fn=held_out, batches=2, every=2, on_result=on_result)
    found = trained(place, steps=100_000, evaluation=evaluation)
    assert [record.step for record in found.evaluations][:2] == [2, 4]
    check_whole(found, 3, there)


@PLACES
def test_another_exception_has_the_result(place: str | None, there: bool) -> None:
    mine = LookupError("my own mistake")
    with pytest.raises(LookupError, match="my own mistake") as caught:
        trained(place, steps=100_000, on_step=raising(mine, 1))
    assert caught.value is mine
    (note,) = caught.value.__notes__
    assert re.fullmatch(r"the result so far, after (1 step|\d+ steps), is in the attribute 'result' of this exception", note)
    check_whole(caught.value.result, 1, there)  # type: ignore[attr-defined]


@PLACES
def test_an_interrupt_has_the_result(place: str | None, there: bool) -> None:
    main = threading.main_thread().ident
    assert main is not None
    seen: list[int] = []

    def on_step(record: StepRecord) -> None:
        seen.append(record.step)
        if record.step == 2:
            signal.pthread_kill(main, signal.SIGINT)

    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt, match=r"training was interrupted after .* of 100000 steps; its workers") as caught:
            trained(place, steps=100_000, on_step=on_step)
    finally:
        signal.signal(signal.SIGINT, before)
    found: TrainResult = caught.value.result  # type: ignore[attr-defined]
    assert found.stopped
    assert str(caught.value).startswith(f"training was interrupted after {found.steps} of")
    assert found.steps == len(found.losses)
    assert there or found.steps == len(seen), "the step under way was finished and reported"
    assert same(found, trained(steps=found.steps))


def test_stopping_at_the_last_step_is_no_early_end() -> None:
    found = trained(steps=3, on_step=raising(StopTraining(), 2))
    assert not found.stopped
    assert found.steps == 3


def test_replicas_that_train_alone_end_together() -> None:
    from farflung import SyncSpec

    sync = SyncSpec(strategy="local_sgd", settings={"sync_every": 3})
    found = trained(module=plain_net, steps=50, workers=2, replicas=2, sync=sync, on_step=raising(StopTraining(), 3))
    assert found.steps == len(found.losses) == 4
