"""What the workers of one process are told about the end of a run."""

from __future__ import annotations

from typing import Any, cast

from farflung.api.callbacks import Callbacks, Checkpoint, Listeners, StopTraining
from farflung.api.local_training import _Listener
from farflung.step.run_setup import Phase
from farflung.telemetry.activity import TrainingProgress
from farflung.telemetry.records import EvaluationRecord, StepRecord


class _Folder:
    def write_record(self, record: object) -> None:
        return

    def reader(self) -> object:
        return None


def test_all_workers_get_one_answer_when_a_checkpoint_ends_the_run_between_their_questions() -> None:
    """Otherwise one of them would begin the next step, in which the other one takes no part."""

    def stop(checkpoint: Checkpoint) -> None:
        raise StopTraining

    callbacks = Callbacks(Listeners(on_checkpoint=[stop]), cast(TrainingProgress, lambda record: None))
    listener = _Listener(cast(Any, _Folder()), callbacks, cast(Any, None))
    listener.take(EvaluationRecord(step=2, loss=1.0, elapsed=1.0))
    assert listener.ends_after(Phase.EVAL, 2) is False, "the first worker goes on"
    listener.saved(2)
    assert isinstance(listener.error, StopTraining)
    assert listener.ends_after(Phase.EVAL, 2) is False, "and so does the second one"
    assert listener.ends_after(Phase.TRAIN, 2) is None
    listener.take(StepRecord(step=2, loss=1.0, seconds=1.0, elapsed=1.0, samples=1, tokens=0))
    assert listener.ends_after(Phase.TRAIN, 2) is True
