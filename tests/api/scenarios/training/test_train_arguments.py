"""The settings of a job file as arguments of ``train``: the same numbers as a plain loop, here and there, and clear refusals."""

from __future__ import annotations

import copy
from typing import Any

import numpy as np
import pytest
import torch

import farflung
from farflung import Evaluation, JobSpec, LimitSpec, OptimizerSpec, PlanSpec, ScheduleSpec
from farflung.errors import CaptureError, FarflungError, InputError, TrainingError
from farflung.job.rates import rates
from farflung.testing.reference import PlainSettings, plain_loop
from tests.support.runs.small_training import PLACES, batch, held_out, net, trained


@PLACES
def test_schedule_clipping_and_accumulation_equal_a_plain_loop(place: str | None) -> None:
    schedule = ScheduleSpec(name="cosine", warmup=2, final=0.1)
    spec = OptimizerSpec(name="adamw", lr=1e-2, clip_norm=0.5)
    job = JobSpec(steps=5, optimizer=spec, schedule=schedule)
    settings = PlainSettings(optimizer=spec, seed=3, rates=lambda step: rates(job, step))
    truth = plain_loop(net(), batch, steps=5, micro_batches=3, settings=settings)
    found = trained(place, steps=5, micro_batches=3, clip_norm=0.5, lr_schedule=schedule)
    assert found.losses == tuple(sum(losses) / 3 for losses in truth.micro_losses)
    states = found.state_dict()
    assert [name for name, value in truth.states.items() if states[name].tobytes() != np.ascontiguousarray(value).tobytes()] == []
    assert [record.learning_rate for record in found.records] == [rates(job, step)[-1] for step in range(5)]
    assert {record.samples for record in found.records} == {3 * 4}


@PLACES
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_lower_precision_is_autocast(place: str | None, precision: str) -> None:
    settings = PlainSettings(optimizer=OptimizerSpec(name="adamw", lr=1e-2), seed=3, precision=precision)
    truth = plain_loop(net(), batch, steps=3, micro_batches=2, settings=settings)
    found = trained(place, steps=3, precision=precision)
    assert found.losses == truth.losses
    assert found.losses != trained(None, steps=3).losses


@PLACES
def test_evaluations_are_those_of_the_module_in_evaluation_mode(place: str | None) -> None:
    seen: list[int] = []
    evaluation = Evaluation(batch_fn=held_out, batches=7, every=2, on_result=lambda record: seen.append(record.step))
    found = trained(place, steps=5, evaluation=evaluation)
    assert [record.step for record in found.evaluations] == [2, 4, 5]
    assert seen == [2, 4, 5]
    assert found.losses == trained(None, steps=5).losses, "evaluation changes nothing"
    module = found.model().eval()
    with torch.no_grad():
        losses = [float(module(*held_out(index))) for index in range(7)]
    assert found.evaluations[-1].loss == pytest.approx(sum(losses) / 7, rel=1e-6)


def test_evaluation_of_a_factory_and_of_batches_of_another_size() -> None:
    def larger(index: int) -> Any:
        return tuple(torch.cat([one, one]) for one in held_out(index))

    found = trained(module=net, steps=2, evaluation=Evaluation(batch_fn=larger))
    module = found.model().eval()
    with torch.no_grad():
        assert found.evaluations[0].loss == pytest.approx(float(module(*larger(0))), rel=1e-6)


def test_workers_with_a_ticket_are_as_many_as_asked_for(ticket: str) -> None:
    assert len(trained(ticket, workers=1, steps=1).plan.devices) == 1


def test_a_planner_with_settings() -> None:
    found = trained(planner=PlanSpec(schedule="gpipe", recompute="always"), steps=2)
    assert found.plan.schedule == "gpipe"
    assert all(stage.recompute for stage in found.plan.stages)
    assert trained(planner=PlanSpec(planner="equal_number"), steps=2).plan.planner == "equal_number"


@PLACES
def test_a_step_that_is_no_number_can_be_skipped(place: str | None) -> None:
    def wild(step: int, micro_batch: int) -> Any:
        x, y = batch(step, micro_batch)
        return (x * float("nan") if step == 1 else x), y

    found = trained(place, batch_fn=wild, steps=3, job=JobSpec(on_nan="skip"))
    assert [record.skipped for record in found.records] == [False, True, False]
    with pytest.raises(TrainingError, match=r"is not a finite number; .* \(clip_norm\), or set job=JobSpec\(on_nan=\"skip\"\)"):
        trained(place, batch_fn=wild, steps=3)


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (
            {"lr": 10.0, "optimizer": OptimizerSpec(lr=0.01)},
            r"lr=10 beside optimizer=OptimizerSpec\(...\), which has its own lr \(0.01\): set it there, as in Op.* and remove lr",
        ),
        ({"lr": -1.0}, r"^lr=-1.0: must be at least 0$"),
        ({"lr": "fast"}, r"^lr='fast': must be a number$"),
        ({"lr": float("nan")}, r"^lr=nan: must be a finite number$"),
        (
            {"job": JobSpec(limits=LimitSpec(exclude=("pc9",)))},
            r"^job=JobSpec\(limits=LimitSpec\(exclude=...\)\): .* no device and no region 'pc9'",
        ),
        ({"sync": "foo"}, r"^unknown .*'foo': .*known are "),
        ({"seed": -1}, r"^seed=-1: must be at least 0$"),
        ({"clip_norm": 0.0}, r"^clip_norm=0.0: must be more than 0$"),
        (
            {"clip_norm": 1.0, "optimizer": OptimizerSpec(clip_norm=2.0), "lr": None},
            r"clip_norm=1 beside OptimizerSpec\(clip_norm=2",
        ),
        ({"precision": "fp8"}, r"^precision='fp8': must be 'float32', 'bf16' or 'fp16'"),
        ({"lr_schedule": "poly"}, r"^lr_schedule='poly': must be 'constant', 'cosine', 'linear'"),
        ({"lr_schedule": ScheduleSpec(warmup=9)}, r"lr_schedule=ScheduleSpec\(warmup=9\) is longer than steps=4: shorten it"),
        (
            {"optimizer": torch.optim.Adam, "lr": 0.1},
            r"^lr=0.1 beside an optimizer that has its own: set it there, and remove lr$",
        ),
        ({"optimizer": 5}, r"^optimizer=5 can't be used: pass a name, an OptimizerSpec, or a function that makes one$"),
        ({"optimizer": "AdamW"}, r"^unknown optimizer 'AdamW': did you mean 'adamw'\? known are adadelta, adafactor, "),
        ({"optimizer": "poly"}, r"^unknown optimizer 'poly': known are .*; or pass a function that makes one$"),
        (
            {"job": JobSpec(steps=9)},
            r"job=JobSpec\(steps=...\) is not allowed here: .* such as job=JobSpec\(on_nan=...\); pass steps as an argument",
        ),
        ({"replicas": 2, "planner": PlanSpec(replicas=2)}, r"replicas=2 beside PlanSpec\(replicas=2\): remove one of them"),
        ({"workers": 1.5}, "workers must be a whole number, got 1.5"),
        ({"checkpoint": farflung.CheckpointSpec(every=2)}, r"checkpoint=CheckpointSpec\(every=2\) without a folder: add folder="),
        ({"ticket": "x", "folder": "runs"}, "folder='runs' with a ticket: the broker keeps the run's folder"),
        ({"resume": ""}, r"^resume='' names no checkpoint; that run wrote none: pass folder=\.\.\. to it$"),
        ({"resume": "", "ticket": "x"}, r"^resume='' names no checkpoint; pass the name of a run$"),
        ({"resume": "a", "checkpoint": farflung.CheckpointSpec(resume="b")}, "resume='a' beside CheckpointSpec"),
    ],
)
def test_arguments_that_are_refused(options: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        trained(**options)


@pytest.mark.parametrize(
    ("name", "value", "text"),
    [
        ("evaluation", 4, r"^evaluation=4 is of the type int: pass data, or an Evaluation$"),
        ("checkpoint", 5, r"^checkpoint=5 is of the type int: pass a CheckpointSpec, such as CheckpointSpec\(every=100\)"),
        ("job", 3, r"^job=3 is of the type int: pass a JobSpec"),
        ("planner", None, r"^planner=None is of the type NoneType: pass a name or a PlanSpec$"),
        ("folder", 7, r"^folder=7 is of the type int: pass a path$"),
        (
            "batch_fn",
            None,
            r"^batch_fn is a NoneType: pass a DataLoader, a Dataset with batch_size, an iterable of batches, or a function$",
        ),
        ("on_step", 3, r"^on_step=3 can't be called: pass a function of a StepRecord$"),
        ("module", "model", r"^module='model' can't be called: pass a torch.nn.Module, or a function that makes one$"),
        ("lr", "0.1", r"^lr='0.1': must be a number$"),
    ],
)
def test_types_that_are_refused(name: str, value: object, text: str) -> None:
    called = []

    def batch_fn(step: int, micro_batch: int) -> None:
        called.append(step)

    arguments: dict[str, Any] = {"module": net, "batch_fn": batch_fn, "steps": 1} | {name: value}
    with pytest.raises(InputError, match=f"(?s){text}") as caught:
        farflung.train(**arguments)
    assert "\n" not in str(caught.value)
    assert not called


class Plotter:
    """No callback: it has none of the methods."""


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"callbacks": [Plotter()]}, rf"^callbacks has <{__name__}\.Plotter>: pass functions of a StepRecord, or objects"),
        ({"report": Plotter()}, rf"^report=<{__name__}\.Plotter>: pass the name of a tracker"),
        ({"planner": batch}, r"^planner=<function batch> is of the type function: pass a name or a PlanSpec$"),
    ],
)
def test_an_object_is_shown_by_its_type(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        trained(**arguments)


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"batch_fn": lambda step: None}, r"^data is called with step and micro_batch, but the function takes step: pass a func"),
        ({"batch_fn": lambda: None}, r"but the function takes nothing: pass a function of \(step, micro_batch\)$"),
        (
            {"evaluation": Evaluation(batch_fn=batch)},
            r"^Evaluation.batch_fn is called with index, but the function takes step, micro_batch: pass a function of \(index\)$",
        ),
    ],
)
def test_a_batch_function_of_other_arguments_is_refused(arguments: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        trained(**arguments)


def test_workers_without_a_stage_are_reported(caplog: pytest.LogCaptureFixture) -> None:
    found = trained(workers=100, steps=1)
    stages = len(found.plan.stages)
    assert stages < 100
    (line,) = [one for one in caplog.messages if "workers" in one]
    assert line.endswith(f": workers=100, of which {stages} get a stage: the model cannot be cut into more stages")
    caplog.clear()
    trained(workers=stages, steps=1)
    assert not [one for one in caplog.messages if "workers" in one]


@pytest.mark.parametrize(("number", "text"), [({"batches": 0}, "batches"), ({"every": -1}, "every"), ({"every": 0.5}, "every")])
def test_numbers_of_an_evaluation(number: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=rf"^Evaluation\({text}=.*\): {text} must be a whole number, at least"):
        Evaluation(batch_fn=held_out, **number)


@pytest.mark.parametrize(
    ("functions", "text"),
    [
        ({"batch_fn": held_out, "on_result": "x"}, r"^Evaluation\(on_result='x'\) can't be called: pass a function of an Eval"),
        ({"batch_fn": None}, r"^Evaluation\(batch_fn=None\) can't be called: pass a function of the index of a batch, or data$"),
    ],
)
def test_functions_of_an_evaluation(functions: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        Evaluation(**functions)


def test_an_evaluation_that_returns_something_else() -> None:
    with pytest.raises(InputError, match=r"^Evaluation\.batch_fn\(0\) returned 1 value .*forward takes x, y"):
        trained(evaluation=Evaluation(batch_fn=lambda index: batch(0, 0)[:1]))


def test_settings_that_are_refused() -> None:
    with pytest.raises(InputError, match=r"^OptimizerSpec: lr = -1: must be at least 0$"):
        OptimizerSpec(lr=-1)
    with pytest.raises(InputError, match=r"^CheckpointSpec: unknown key evry: did you mean 'every'"):
        farflung.CheckpointSpec(evry=1)  # type: ignore[call-arg]


def test_a_loss_that_can_not_be_trained() -> None:
    with pytest.raises(CaptureError, match=r"return a scalar, such as loss.mean\(\); of several results, the first or"):
        farflung.train(torch.nn.Linear(6, 8), lambda step, micro_batch: batch(step, micro_batch)[:1], steps=1)
    with pytest.raises(InputError, match=r"there is nothing to train; set requires_grad of those to train$"):
        trained(module=net().requires_grad_(False))


class Detached(torch.nn.Linear):
    """No parameter has a gradient."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).detach().sum()


def test_a_loss_without_gradients_is_refused() -> None:
    text = (
        r"^no gradient reaches a parameter that is not frozen: there is nothing to train; compute the loss from trainable "
        r"parameters \(requires_grad\)$"
    )
    with pytest.raises(InputError, match=text):
        farflung.train(Detached(2, 1), lambda step, micro_batch: (torch.ones(1, 2),), steps=1)


def test_the_names_are_importable_without_torch() -> None:
    import subprocess
    import sys

    names = "CheckpointSpec CodecSpec GroupSpec JobSpec LimitSpec OptimizerSpec PlanSpec ScheduleSpec SyncSpec StopTraining"
    code = f"import sys; from farflung import {', '.join(names.split())}, train, TrainResult; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
    assert set(names.split()) <= set(dir(farflung))


def test_the_module_is_untouched() -> None:
    module = net()
    before = copy.deepcopy(module.state_dict())
    trained(module=module, evaluation=Evaluation(batch_fn=held_out))
    assert all(torch.equal(before[name], value) for name, value in module.state_dict().items())
    assert module.training


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            {"folder": "/proc/x"},
            r"^folder='/proc/x' can't be written: No such file or directory; choose a folder that you may write$",
        ),
        ({"folder": __file__}, r"^folder='.*\.py' is a file: choose a folder$"),
        ({"resume": __file__}, r"^resume='.*' is a file: pass the folder of a run, or of a checkpoint$"),
        ({"resume": "nowhere"}, r"^resume='nowhere': there is no such folder: check the path$"),
    ],
)
def test_a_folder_that_cannot_be_used_is_reported_before_the_first_batch(arguments: dict[str, Any], text: str) -> None:
    def batch_fn(step: int, micro_batch: int) -> Any:
        raise AssertionError("the capture needs this batch")

    with pytest.raises(FarflungError, match=text):
        farflung.train(torch.nn.Linear(2, 1), batch_fn, steps=1, **arguments)
