"""Checkpoints of ``train``, and runs that continue from them, bit for bit."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung import CheckpointSpec, JobSpec, ScheduleSpec, StopTraining, SyncSpec
from farflung.checkpoint import CheckpointReader
from farflung.cli.main import main
from farflung.errors import CheckpointError, InputError
from farflung.telemetry.folder import RunFolder
from farflung.telemetry.records import StepRecord
from tests.support.runs.small_training import PLACES, Net, batch, plain_net, same, trained


@PLACES
def test_ten_steps_are_five_and_five(place: str | None, there: bool, tmp_path: Path) -> None:
    whole = trained(steps=10, clip_norm=0.5)
    folder: dict[str, Any] = {} if there else {"folder": tmp_path / "first"}
    first = trained(place, steps=5, clip_norm=0.5, **folder)
    second = trained(place, steps=10, clip_norm=0.5, resume=first.checkpoint)
    assert same(second, whole)
    assert first.losses + second.losses == whole.losses
    assert (first.steps, second.steps) == (5, 10)
    assert [record.step for record in second.records] == [5, 6, 7, 8, 9]


@PLACES
def test_a_run_that_was_stopped_continues_under_its_schedule(place: str | None, there: bool, tmp_path: Path) -> None:
    def on_step(record: StepRecord) -> None:
        if record.step == 3:
            raise StopTraining

    settings: dict[str, Any] = {"steps": 40, "lr_schedule": ScheduleSpec(name="cosine", warmup=3), "module": Net}
    first = trained(place, on_step=on_step, **settings, **({} if there else {"folder": tmp_path / "run"}))
    assert first.stopped
    second = trained(place, resume=first.checkpoint, **settings)
    assert same(second, trained(**settings))
    assert second.losses == trained(**settings).losses[first.steps :]


@PLACES
def test_more_steps_under_a_schedule_that_depends_on_them_are_warned_of(place: str | None, there: bool, tmp_path: Path) -> None:
    folder: dict[str, Any] = {} if there else {"folder": tmp_path / "run"}
    first = trained(place, steps=2, lr_schedule="cosine", **folder)
    said = r"^resume='.*': its cosine schedule of learning rates now ends at step 4 instead of 2, so the weights are not"
    with pytest.warns(UserWarning, match=said) as warned:
        trained(place, steps=4, lr_schedule="cosine", resume=first.checkpoint)
    assert len(warned) == 1
    assert Path(warned[0].filename).name == "small_training.py", "the line that calls train"


def test_more_steps_under_a_constant_schedule_need_no_warning(tmp_path: Path, recwarn: pytest.WarningsRecorder) -> None:
    first = trained(steps=1, lr_schedule=ScheduleSpec(warmup=1), folder=tmp_path / "run")
    trained(steps=2, lr_schedule=ScheduleSpec(warmup=1), resume=first.checkpoint)
    assert not [one for one in recwarn if "schedule" in str(one.message)]


def test_the_folder_is_a_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "run"
    result = trained(steps=6, folder=folder, checkpoint=CheckpointSpec(every=2, keep=2))
    reader = CheckpointReader.from_folder(folder / "checkpoints")
    assert reader.manifest.step == 6
    states = reader.read(reader.manifest.states)
    assert all(np.array_equal(value, result.state_dict()[name]) for name, value in states.items())
    assert result.checkpoint == str(folder / "checkpoints" / "step-0000000006")
    assert [record.loss for record in RunFolder(folder).records()] == list(result.losses)
    finished = RunFolder(folder).read_result()
    assert finished is not None
    assert (finished.status, finished.steps, finished.checkpoint) == ("finished", 6, result.checkpoint)
    with pytest.raises(SystemExit) as over:
        main(["checkpoint", "list", str(folder), "--json"])
    assert over.value.code == 0
    assert [row["step"] for row in json.loads(capsys.readouterr().out)] == [4, 6]
    with pytest.raises(SystemExit) as over:
        main(["checkpoint", "verify", str(folder)])
    assert over.value.code == 0
    with pytest.raises(SystemExit) as over:
        main(["report", str(folder), "--out", str(tmp_path / "report.html")])
    assert over.value.code == 0


def test_the_same_folder_goes_on(tmp_path: Path) -> None:
    folder = tmp_path / "run"
    first = trained(steps=4, folder=folder)
    with pytest.raises(
        InputError, match=r"^folder='.*/run' holds a run already: pass resume='.*/run' to continue it, or choose an"
    ):
        trained(steps=8, folder=folder)
    trained(steps=8, folder=folder, resume=folder)
    assert [record.step for record in RunFolder(folder).records()] == list(range(8))
    with pytest.raises(InputError, match="is step 4 of a run whose newest checkpoint is step 8: choose another folder"):
        trained(steps=9, folder=folder, resume=first.checkpoint)
    assert trained(steps=6, resume=first.checkpoint).steps == 6


def test_replicas_with_state_of_their_own_go_on(tmp_path: Path) -> None:
    settings: dict[str, Any] = {
        "module": plain_net,
        "replicas": 2,
        "sync": SyncSpec(strategy="local_sgd", settings={"sync_every": 4}),
    }
    trained(steps=6, folder=tmp_path / "run", **settings)
    second = trained(steps=12, resume=tmp_path / "run", **settings)
    assert second.steps == 12
    assert np.isfinite(second.losses[-1])


def test_other_workers_resume(tmp_path: Path) -> None:
    trained(steps=3, folder=tmp_path / "run", workers=3)
    assert same(trained(steps=6, resume=tmp_path / "run", workers=1), trained(steps=6))


def test_rolling_back_goes_to_the_newest_checkpoint(tmp_path: Path) -> None:
    def wild(step: int, micro_batch: int) -> Any:
        x, y = batch(step, micro_batch)
        return (x * float("nan") if step == 3 else x), y

    settings: dict[str, Any] = {"job": JobSpec(on_nan="rollback"), "checkpoint": CheckpointSpec(every=2)}
    found = trained(steps=5, batch_fn=wild, folder=tmp_path / "run", **settings)
    assert [record.skipped for record in found.records] == [False, False, False, True, False]
    text = r"on_nan=\"rollback\"|on_nan='rollback'"
    with pytest.raises(InputError, match=rf"({text}).*checkpoint=CheckpointSpec\(every=0\) writes none"):
        trained(job=JobSpec(on_nan="rollback"))


@pytest.mark.parametrize(
    ("settings", "error", "text"),
    [
        ({"resume": "nowhere"}, CheckpointError, r"^resume='nowhere': there is no such folder: check the path$"),
        (
            {"resume": "{run}", "steps": 3},
            InputError,
            r"^resume='.*': the checkpoint at .* stands at step 4, and steps=3 counts the steps before it, too: set .* 4$",
        ),
        (
            {"resume": "{run}", "steps": None, "epochs": 2, "batch_fn": [batch(0, 0), batch(0, 1)]},
            InputError,
            r"^resume='.*': the checkpoint at .* stands at step 4, and steps=.* set epochs that give more steps$",
        ),
        ({"resume": "{run}", "seed": 4, "steps": 8}, CheckpointError, "^resume=.*seed"),
    ],
)
def test_what_can_not_be_resumed(settings: dict[str, Any], error: type[Exception], text: str, tmp_path: Path) -> None:
    trained(folder=tmp_path / "run")
    given = settings | {"resume": settings["resume"].format(run=tmp_path / "run")}
    with pytest.raises(error, match=text):
        trained(**given)


def test_a_failure_names_the_newest_checkpoint(tmp_path: Path) -> None:
    def broken(step: int, micro_batch: int) -> Any:
        if step == 3:
            raise LookupError("no more data")
        return batch(step, micro_batch)

    with pytest.raises(LookupError) as caught:
        trained(batch_fn=broken, folder=tmp_path / "run", checkpoint=CheckpointSpec(every=2))
    (note,) = caught.value.__notes__
    assert "step-0000000002; train(..., resume=" in note
    result = RunFolder(tmp_path / "run").read_result()
    assert result is not None
    assert (result.status, result.cause) == ("failed", "no more data")
