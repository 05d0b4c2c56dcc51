"""``train`` on a DataLoader, a dataset or an iterable: the order and the weights are those of the plain loop over it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, TensorDataset, WeightedRandomSampler

from farflung import CheckpointSpec, EarlyStop, Evaluation, StopTraining, train
from farflung.errors import CaptureError, DataError, InputError
from farflung.telemetry.records import EvaluationRecord, StepRecord
from tests.support.runs.small_training import PLACES

INPUTS = torch.randn(40, 8, generator=torch.Generator().manual_seed(0))
LABELS = torch.randint(0, 3, (40,), generator=torch.Generator().manual_seed(1))
SAMPLES = TensorDataset(INPUTS, LABELS)
LOSS = nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0]))
STEPS = 9


def net() -> nn.Module:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))


def loader(**changed: Any) -> DataLoader[Any]:
    settings: dict[str, Any] = {
        "batch_size": 6,
        "shuffle": True,
        "drop_last": True,
        "generator": torch.Generator().manual_seed(7),
    }
    return DataLoader(SAMPLES, **(settings | changed))


def weighted() -> DataLoader[Any]:
    return loader(shuffle=False, generator=None, sampler=WeightedRandomSampler([1.0, 3.0] * 20, 40))


def plain(batches: Iterable[Any], accumulate: int = 1, module: nn.Module | None = None) -> dict[str, Tensor]:
    """The loop that users write."""

    def endless() -> Iterator[Any]:
        while True:
            yield from batches

    module = module or net()
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    torch.manual_seed(5)
    reading = endless()
    for _ in range(STEPS):
        optimizer.zero_grad()
        for _ in range(accumulate):
            inputs, labels = next(reading)
            (LOSS(module(inputs), labels) / accumulate).backward()
        optimizer.step()
    return module.state_dict()


def trained(data: Any, **changed: Any) -> Any:
    module = changed.pop("model", None) or net()
    torch.manual_seed(5)
    return train(module, data, **({"steps": STEPS, "loss": LOSS, "optimizer": "adamw", "lr": 1e-2} | changed))


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize(
    "make",
    [loader, weighted, lambda: loader(generator=None), lambda: loader(num_workers=2), lambda: list(loader())],
    ids=["shuffled", "sampler", "no-generator", "processes", "list"],
)
def test_the_weights_are_those_of_the_loop_over_the_same_loader(make: Callable[[], Iterable[Any]], accumulate: int) -> None:
    assert same(trained(make(), accumulate=accumulate).tensors(), plain(make(), accumulate))


@PLACES
def test_a_run_that_resumes_reads_the_next_sample(place: str | None, there: bool, tmp_path: Any) -> None:
    data, folder = loader(), {} if there else {"folder": tmp_path / "run"}
    first = trained(data, steps=4, ticket=place, **folder)
    second = trained(data, ticket=place, resume=first.checkpoint, **({} if there else {"workers": 2}))
    assert same(second.tensors(), plain(loader()))


def test_the_callers_generators_stay() -> None:
    data, module = loader(), net()
    before = data.generator.get_state(), torch.get_rng_state()
    train(module, data, steps=8, loss=LOSS)
    assert torch.equal(before[0], data.generator.get_state())
    assert torch.equal(before[1], torch.get_rng_state())


def test_a_dataset_is_shuffled_by_the_seed() -> None:
    generator = torch.Generator().manual_seed(3)
    same_order = DataLoader(SAMPLES, batch_size=6, shuffle=True, drop_last=True, generator=generator)
    assert same(trained(SAMPLES, batch_size=6, seed=3).tensors(), plain(same_order))
    assert not same(trained(SAMPLES, batch_size=6, seed=4).tensors(), plain(same_order))


class Stream(IterableDataset[Any]):
    def __iter__(self) -> Iterator[Any]:
        return iter(SAMPLES)


def test_a_dataset_without_an_index_keeps_its_order() -> None:
    assert same(trained(Stream(), batch_size=6).tensors(), plain(DataLoader(SAMPLES, batch_size=6, drop_last=True)))


class Noisy(Dataset[Any]):
    """Samples with random noise, as of image augmentation."""

    def __len__(self) -> int:
        return 40

    def __getitem__(self, index: int) -> Any:
        return INPUTS[index] + torch.randn(8), LABELS[index]


def test_random_samples_are_keyed_by_the_seed() -> None:
    once, again = (trained(DataLoader(Noisy(), batch_size=4), seed=1) for _ in range(2))
    assert same(once.tensors(), again.tensors())
    assert same(once.tensors(), trained(DataLoader(Noisy(), batch_size=4, num_workers=1), seed=1).tensors())
    assert not same(once.tensors(), trained(DataLoader(Noisy(), batch_size=4), seed=2).tensors())


class Named(nn.Module):
    """Takes arguments by name, and computes its own loss if it gets labels."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = net()

    def forward(self, x: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.inner(x)
        return {"logits": logits} if labels is None else {"loss": LOSS(logits, labels), "logits": logits}


@pytest.mark.parametrize("own", [False, True], ids=["function", "own-loss"])
def test_batches_by_name(own: bool) -> None:
    batches = [{"x": x, "labels": y} for x, y in loader()]
    loss = None if own else lambda outputs, labels: LOSS(outputs["logits"], labels)
    result = trained(batches, model=Named(), loss=loss, metrics="accuracy", evaluate=batches[:2])
    assert {name.removeprefix("inner."): value for name, value in result.tensors().items()}.keys() == net().state_dict().keys()
    assert same({name.removeprefix("inner."): value for name, value in result.tensors().items()}, plain(list(loader())))
    module = result.model().eval()
    with torch.no_grad():
        right = [float((module(one["x"])["logits"].argmax(-1) == one["labels"]).float().mean()) for one in batches[:2]]
    assert result.evaluations[-1].metrics["accuracy"] == pytest.approx(sum(right) / 2)
    assert result.evaluations[-1].accuracy == pytest.approx(sum(right) / 2)


@PLACES
def test_metrics_epochs_and_a_module_from_a_function(place: str | None) -> None:
    def distance(outputs: Tensor, labels: Tensor) -> Tensor:
        return (outputs.softmax(-1).gather(1, labels[:, None]) - 1).abs().mean()

    held_out = DataLoader(SAMPLES, batch_size=10)
    result = trained(
        loader(), model=net, steps=None, epochs=2, evaluate=held_out, metrics={"distance": distance}, ticket=place, seed=2
    )
    assert result.steps == 2 * len(loader())
    assert [record.step for record in result.evaluations] == [6, 12], "after each epoch"
    module = result.model().eval()
    with torch.no_grad():
        expected = sum(float(distance(module(x), y)) for x, y in held_out) / 4
    assert result.evaluations[-1].metrics == {"distance": pytest.approx(expected, rel=1e-5)}


def test_callbacks_see_steps_and_evaluations_and_stop_the_run() -> None:
    seen: list[tuple[str, int]] = []

    class Watch:
        def on_step(self, record: StepRecord) -> None:
            seen.append(("step", record.step))

        def on_evaluation(self, record: EvaluationRecord) -> None:
            seen.append(("evaluation", record.step))

    def stop(record: StepRecord) -> None:
        if record.step == 3:
            raise StopTraining

    result = trained(loader(), callbacks=[Watch(), stop], evaluate=Evaluation(batch_fn=loader(), every=2))
    assert (result.steps, result.stopped) == (4, True)
    assert seen[:5] == [("step", 0), ("step", 1), ("evaluation", 2), ("step", 2), ("step", 3)]


@PLACES
def test_callbacks_get_the_weights_of_checkpoints(place: str | None, tmp_path: Path) -> None:
    seen: dict[int, dict[str, Any]] = {}

    class Watch:
        def on_checkpoint(self, checkpoint: Any) -> None:
            seen[checkpoint.step] = checkpoint.state_dict()
            if checkpoint.step == STEPS:
                raise StopTraining

    folder = {} if place else {"folder": tmp_path / "run"}
    result = trained(loader(), callbacks=[Watch()], checkpoint=CheckpointSpec(every=3), ticket=place, **folder)
    assert list(seen) == [3, 6, 9]
    assert (result.steps, result.stopped) == (STEPS, False)
    final = result.state_dict()
    assert seen[9].keys() == seen[3].keys() == final.keys()
    assert all(seen[9][name].tobytes() == value.tobytes() for name, value in final.items())
    if place is None:  # a broker sends the newest checkpoint
        assert all(seen[3][name].tobytes() != value.tobytes() for name, value in final.items())


def test_a_checkpoint_that_is_read_later_has_the_weights_of_its_own_step(tmp_path: Path) -> None:
    kept: list[tuple[Any, dict[str, Any]]] = []

    class Watch:
        def on_checkpoint(self, checkpoint: Any) -> None:
            kept.append((checkpoint, checkpoint.state_dict()))

    trained(loader(), callbacks=[Watch()], checkpoint=CheckpointSpec(every=3, keep=9), folder=tmp_path / "run")
    assert len(kept) > 1
    for checkpoint, before in kept:
        late = checkpoint.state_dict()
        assert all(late[name].tobytes() == value.tobytes() for name, value in before.items())


def test_a_callback_of_a_checkpoint_ends_the_run(tmp_path: Path) -> None:
    class Watch:
        def on_checkpoint(self, checkpoint: Any) -> None:
            raise StopTraining

    result = trained(loader(), callbacks=[Watch()], checkpoint=CheckpointSpec(every=2), folder=tmp_path / "run")
    assert result.stopped
    assert 2 <= result.steps < STEPS


@PLACES
def test_the_last_checkpoint_of_a_stopped_run_is_passed_on(place: str | None, tmp_path: Path) -> None:
    seen: list[int] = []

    class Watch:
        def on_step(self, record: StepRecord) -> None:
            if record.step == 2:
                raise StopTraining

        def on_checkpoint(self, checkpoint: Any) -> None:
            seen.append(checkpoint.step)

    folder = {} if place else {"folder": tmp_path / "run"}
    result = trained(loader(), callbacks=[Watch()], checkpoint=CheckpointSpec(every=2), ticket=place, **folder)
    assert (result.stopped, seen[0], seen[-1]) == (True, 2, result.steps)


def test_what_a_callback_of_the_last_checkpoint_raises(tmp_path: Path) -> None:
    class Watch:
        def on_step(self, record: StepRecord) -> None:
            raise StopTraining

        def on_checkpoint(self, checkpoint: Any) -> None:
            raise ValueError("the disk is full")

    with pytest.raises(ValueError, match="the disk is full"):
        trained(loader(), callbacks=[Watch()], folder=tmp_path / "run")


@pytest.mark.parametrize(("early_stop", "steps"), [(2, 6), (EarlyStop(patience=1, metric="mean", largest=True), 4)])
def test_early_stopping(early_stop: Any, steps: int) -> None:
    result = trained(
        [(torch.zeros(4, 8), torch.zeros(4))],
        model=Still(),
        loss=None,
        evaluate=Evaluation(batch_fn=[(torch.zeros(4, 8), torch.zeros(4))], every=2),
        metrics={"mean": lambda outputs, target: target.mean()},
        early_stop=early_stop,
    )
    assert (result.steps, result.stopped) == (steps, True)


class Still(nn.Linear):
    """A loss that does not change: inputs are zero, and so is each gradient of the weight."""

    def __init__(self) -> None:
        super().__init__(8, 1, bias=False)

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        return super().forward(x).mean() + y.mean()


def test_a_topology_in_place_of_workers() -> None:
    result = trained(loader(), topology="homogeneous-2")
    assert len(result.plan.devices) == 2
    assert same(result.tensors(), plain(loader()))


def test_both_names_of_an_argument_mean_the_same() -> None:
    def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
        return INPUTS[:4] + step + index, LABELS[:4]

    class WithLoss(nn.Sequential):
        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            return LOSS(super().forward(x), y)

    module = WithLoss(*net())
    new = train(
        model=module, data=batch, steps=3, accumulate=2, schedule="cosine", evaluate=Evaluation(batch_fn=lambda i: batch(i, 0))
    )
    old = train(
        module=module,
        batch_fn=batch,
        steps=3,
        micro_batches=2,
        lr_schedule="cosine",
        evaluation=Evaluation(batch_fn=lambda i: batch(i, 0)),
    )
    assert same(new.tensors(), old.tensors())
    assert new.evaluations[0].loss == old.evaluations[0].loss


@pytest.mark.parametrize(
    ("data", "changed", "text"),
    [
        (SAMPLES, {}, r"^data is a TensorDataset, which gives single samples: pass batch_size, or a DataLoader$"),
        (
            loader(),
            {"batch_size": 4},
            r"^batch_size=4 is for a dataset, and data is a DataLoader, which gives batches: remove batch",
        ),
        (
            lambda step, index: None,
            {"batch_size": 4},
            r"^batch_size=4 is for a dataset, and a function returns batches: remove batch",
        ),
        (3, {}, r"^data is a int: pass a DataLoader, a Dataset with batch_size, an iterable of batches, or a function$"),
        (
            loader(drop_last=False),
            {},
            r"^the last batch of data has only 4 samples, and all batches of a run need the same shapes: pass drop_last=True",
        ),
        (loader(), {"steps": None}, r"^neither steps nor epochs is given: pass steps=100, for example$"),
        (loader(), {"epochs": 2}, r"^steps=9 beside epochs=2: remove one of them$"),
        (loader(), {"steps": None, "epochs": 0}, r"^epochs must be a number above 0, got 0$"),
        (
            loader(),
            {"steps": None, "epochs": 1, "accumulate": 20},
            r"^epochs=1 of data gives \d batches, and a step takes 20: pass more epochs, or a smaller accumulate$",
        ),
        (
            loader(),
            {"steps": None, "epochs": 0.01},
            r"^epochs=0.01 of data gives 0 batches, and a step takes 1: pass more epochs",
        ),
        (SAMPLES, {"batch_size": 0}, r"^batch_size=0: must be a whole number, at least 1$"),
        (SAMPLES, {"batch_size": True}, r"^batch_size=True: must be a whole number, at least 1$"),
        (loader(), {"metrics": 3}, r"^metrics=3 is of the type int: pass names, or functions by name$"),
        (loader(), {"metrics": "accuracy"}, r"^metrics are computed by evaluations, and there is none: pass evaluate, too$"),
        (
            loader(),
            {"callbacks": print},
            r"^callbacks=<built-in function print> is of the type builtin_function_or_method: pass a l",
        ),
        (
            loader(),
            {"early_stop": EarlyStop(metric="accuracy"), "evaluate": loader()},
            r"^EarlyStop\(metric='accuracy'\): the evaluation has loss; add the metric to metrics$",
        ),
        (loader(), {"loss": nn.CrossEntropyLoss}, r"^loss=CrossEntropyLoss is a class: pass an instance, CrossEntropyLoss\(\)$"),
        (loader(), {"metrics": {"own": nn.MSELoss}}, r"^metrics\['own'\]=MSELoss is a class: pass an instance, MSELoss\(\)$"),
        (
            Stream(),
            {"batch_size": 6, "steps": None, "epochs": 1},
            r"^epochs=1, but the number of batches in an epoch of data is unk",
        ),
        (loader(), {"loss": 3}, r"^loss=3 can't be called: pass a function of the model's outputs and the target$"),
        (loader(), {"loss": nn.Linear(3, 1)}, r"^loss has parameters, which would not be trained: make it a part of the model$"),
        (loader(), {"metrics": "acuracy"}, r"^unknown metric 'acuracy': did you mean 'accuracy'\? known are accuracy"),
        (
            loader(),
            {"early_stop": EarlyStop(metric="los"), "evaluate": loader()},
            r"^EarlyStop\(metric='los'\): did you mean 'loss'\? the evaluation has loss",
        ),
        (loader(), {"metrics": "f1"}, r"^unknown metric 'f1': known are accuracy, mse, mae; or pass functions by name$"),
        (loader(), {"metrics": {"loss": max}}, r"^metrics=\{'loss': .*: pass functions of outputs and target by plain names"),
        (
            loader(),
            {"callbacks": [3]},
            r"^callbacks has 3: pass functions of a StepRecord, or objects with a method on_step, on_evaluation or on_",
        ),
        (loader(), {"early_stop": 2}, r"^early_stop compares evaluations, and there is none: pass evaluate, too$"),
        (
            loader(),
            {"early_stop": EarlyStop(metric="f1"), "evaluate": loader()},
            r"^EarlyStop\(metric='f1'\): the evaluation has loss; add the metric to metrics$",
        ),
        (loader(), {"early_stop": "x", "evaluate": loader()}, r"^early_stop='x': pass a number of evaluations, or an EarlyStop$"),
        (
            loader(),
            {"evaluate": iter([])},
            r"^evaluate is an iterator, which can be read only once, and this run reads batches again",
        ),
        (
            loader(),
            {"evaluate": Stream()},
            r"^evaluate is a Stream, which gives single samples: pass batch_size, or a DataLoader$",
        ),
        (
            loader(),
            {"evaluate": DataLoader(Stream(), batch_size=4)},
            r"^evaluate does not say how many batches it has: pass evaluate=Evaluation\(batch_fn=..., batches=8\)$",
        ),
        (
            loader(),
            {"topology": "homogeneous-2", "workers": 2},
            r"^workers=2 beside topology, which has its own machines: remove work",
        ),
        (
            loader(),
            {"topology": 3},
            r"^topology=3 is of the type int: pass a Topology, the name of a preset, or the path of a file$",
        ),
        (
            loader(),
            {"accumulate": 1, "micro_batches": 1},
            r"^micro_batches is another name of accumulate, and both are given: remove",
        ),
        (loader(), {"accumulate": 0}, r"^accumulate must be at least 1, got 0$"),
        (
            loader(),
            {"schedule": "cosin"},
            r"^schedule='cosin': must be .* or 'inverse_sqrt'; did you mean 'cosine'\?$",
        ),
        (
            loader(),
            {"schedule": 0.5},
            r"^schedule=0.5 is of the type float: pass a name, a ScheduleSpec, a function of the step, o",
        ),
        (loader(), {"lr_schedule": 0.5}, r"^lr_schedule=0.5 is of the type float: pass a name"),
        ([(INPUTS,)], {}, r"^the first batch has 1 element, and with loss or metrics the last element of a batch is the target"),
        ([{"x": INPUTS}], {}, r"^the first batch has x, and loss and metrics need a target: name one of them labels$"),
        ([], {}, r"^the data have no batch: pass at least one, or check the code that collects them$"),
        (
            iter([(INPUTS, LABELS)]),
            {},
            r"^the data ended after 1 batches: pass fewer steps, or an iterable that can be read again",
        ),
        (
            DataLoader(SAMPLES, batch_size=50, drop_last=True),
            {},
            r"^the data have no batch: the dataset is empty, or smaller than one",
        ),
        (
            [(INPUTS, LABELS), (INPUTS[:3], LABELS[:3])],
            {},
            r"^batch 1 of data returned 'input' as float32 \[3, 8\], batch 0 of data as",
        ),
    ],
)
def test_what_is_refused(data: Any, changed: dict[str, Any], text: str) -> None:
    with pytest.raises((InputError, DataError), match=text) as caught:
        trained(data, **changed)
    assert "\n" not in str(caught.value)


def test_an_evaluation_follows_the_step_that_ends_an_epoch() -> None:
    found = trained(loader(), steps=None, epochs=5, accumulate=4, evaluate=loader())
    assert found.steps == 7, "30 batches make 7 steps, and the remaining 2 are not read"
    assert [record.step for record in found.evaluations] == [2, 3, 5, 6, 7], "an epoch is 1.5 steps"


@pytest.mark.parametrize(("number", "text"), [({"patience": 0}, "patience"), ({"min_delta": -1}, "min_delta")])
def test_numbers_of_early_stopping(number: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=rf"^EarlyStop\({text}=.*\): {text} must be a "):
        EarlyStop(**number)


def test_an_iterator_is_refused_with_a_ticket(ticket: str) -> None:
    with pytest.raises(
        InputError, match=r"^data is an iterator, which can be read only once, and this run reads batches again: pass"
    ):
        trained(iter([(INPUTS, LABELS)]), ticket=ticket)
    with pytest.raises(
        InputError, match=r"^topology with a ticket: the broker measures the links of its workers; remove topology$"
    ):
        trained(loader(), ticket=ticket, topology="homogeneous-2")


def test_hooks_of_the_model_beside_a_loss() -> None:
    module = net()
    module.register_forward_hook(lambda *args: None)
    with pytest.raises(
        InputError, match=r"^Sequential has hooks, which cannot be used together with loss or metrics: remove them$"
    ):
        trained(loader(), model=module)


def test_a_first_batch_of_other_shapes_names_the_data() -> None:
    with pytest.raises(CaptureError, match=r"returned input float32 \[4, 5\], labels int64 \[4\]: change the batch"):
        trained([(torch.zeros(4, 5), LABELS[:4])])
