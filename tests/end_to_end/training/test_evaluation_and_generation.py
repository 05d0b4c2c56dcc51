"""Evaluation and generation through the stages that train, over a broker and workers."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from farflung.data import Loader, open_source
from farflung.frontends.recipes import load_recipe
from farflung.graph.ir import TensorSpec
from farflung.ids import derive_seed
from farflung.job import JobSpec
from tests.support.runs.loopback import Loopback, plainly, same, states_of, text_job

COLOURS = {"blue": (20, 30, 220), "green": (10, 200, 40), "red": (230, 20, 10)}


def images_folder(place: Path, count: int) -> None:
    """Squares of noisy colour, a folder for each."""
    random = np.random.default_rng(count)
    for name, colour in COLOURS.items():
        folder = place / name
        folder.mkdir(parents=True)
        for number in range(count):
            pixels = np.clip(random.normal(colour, 30, (10, 12, 3)), 0, 255).astype(np.uint8)
            Image.fromarray(pixels).save(folder / f"{number}.{'png' if number % 2 else 'jpg'}")


def arrays_folder(place: Path) -> None:
    random = np.random.default_rng(1)
    labels = random.integers(0, 4, 60)
    place.mkdir()
    shift = labels[:, None, None, None].astype(np.float32)
    np.save(place / "inputs.npy", random.normal(size=(60, 1, 8, 8)).astype(np.float32) + shift)
    np.save(place / "labels.npy", labels)


def pictures_job(**changes: Any) -> JobSpec:
    document: dict[str, Any] = {
        "steps": 6,
        "micro_batch_sizes": [6, 4],
        "model": {"recipe": "cnn", "args": {"channels": 3, "size": 8, "classes": 3, "width": 4}},
        "data": {"kind": "images", "path": "train", "eval_path": "test", "size": 8, "sequence": 128},
        "optimizer": {"name": "sgd", "lr": 0.05, "momentum": 0.9},
        "evaluate": {"every": 3, "batches": 3},
    }
    return text_job(**document | changes)


def own_evaluation(job: JobSpec, home: Path, module: torch.nn.Module) -> tuple[float, float]:
    """Loss and accuracy of ``module`` over the job's evaluation, by PyTorch alone."""
    assert job.model is not None
    recipe = load_recipe(job.model.recipe, job.model.args)
    assert recipe.evaluate is not None
    judge = recipe.evaluate.factory()
    judge.load_state_dict(module.state_dict())
    judge.eval()
    rows = max(job.micro_batch_sizes)
    names = (*recipe.inputs, *recipe.labels)
    examples = recipe.evaluate.example_inputs(rows)
    specs = {
        name: TensorSpec(dtype=str(value.dtype).removeprefix("torch."), shape=tuple(value.shape))
        for name, value in zip(names, examples, strict=True)
    }
    source = open_source(job.data, home, split="eval")
    loader = Loader(job.data, source, specs, (rows,), derive_seed("evaluate", job.seed))
    losses, correct = [], 0
    for index in range(job.evaluate.batches):
        arrays = loader.batch(index, 0)
        with torch.no_grad():
            loss, right = judge(*(torch.from_numpy(np.array(arrays[name])) for name in names))
        losses.append(float(loss))
        correct += int(right)
    return sum(losses) / len(losses), correct / (rows * job.evaluate.batches)


def test_image_folders_with_accuracy(three: Loopback) -> None:
    images_folder(three.home / "train", 12)
    images_folder(three.home / "test", 5)
    job = pictures_job()
    finished = three.run(job)
    assert finished.result.status == "finished", finished.result.cause
    module, truth = plainly(job, three.home)
    assert same(truth.states, states_of(finished)) == []
    assert [record.step for record in finished.evaluations] == [3, 6]
    last = finished.evaluations[-1]
    loss, accuracy = own_evaluation(job, three.home, module)
    assert last.loss == pytest.approx(loss, rel=1e-6)
    assert last.accuracy == pytest.approx(accuracy)
    assert last.perplexity is None


def test_arrays_with_a_part_kept_out(two: Loopback) -> None:
    arrays_folder(two.home / "digits")
    data = {"kind": "array", "path": "digits", "eval_fraction": 0.2}
    model = {"recipe": "cnn", "args": {"channels": 1, "size": 8, "classes": 4, "width": 4}}
    job = pictures_job(model=model).model_copy(update={"data": text_job(data=data).data})
    finished = two.run(job)
    assert finished.result.status == "finished", finished.result.cause
    module, truth = plainly(job, two.home)
    assert same(truth.states, states_of(finished)) == []
    loss, accuracy = own_evaluation(job, two.home, module)
    assert finished.evaluations[-1].loss == pytest.approx(loss, rel=1e-6)
    assert finished.evaluations[-1].accuracy == pytest.approx(accuracy)


def test_labels_beyond_the_models_classes(two: Loopback) -> None:
    images_folder(two.home / "train", 8)
    job = pictures_job(
        model={"recipe": "cnn", "args": {"channels": 3, "size": 8, "classes": 2, "width": 4}},
        data={"kind": "images", "path": "train", "size": 8},
        evaluate={"every": 0, "batches": 0},
    )
    result = two.run(job).result
    assert result.status == "failed"
    assert "\n" not in result.cause
    assert "labels must be 0 to 1 (or -100, which is ignored), got 2" in result.cause


def test_text_has_a_perplexity_and_evaluation_changes_nothing(three: Loopback) -> None:
    job = text_job(steps=4)
    looked = text_job(steps=4, evaluate={"every": 1, "batches": 6}, generate={"prompt": "def ", "tokens": 4})
    without, finished = three.run(job), three.run(looked)
    assert without.losses == finished.losses
    assert same(states_of(without), states_of(finished)) == []
    assert [record.step for record in finished.evaluations] == [1, 2, 3, 4]
    for record in finished.evaluations:
        assert record.perplexity == pytest.approx(math.exp(record.loss))
        assert record.accuracy is None


@pytest.mark.parametrize("tied", [True, False])
def test_greedy_text_is_that_of_a_plain_loop(three: Loopback, tied: bool) -> None:
    args = {"vocab": 256, "sequence": 16, "layers": 2, "width": 16, "heads": 2, "tied": tied}
    job = text_job(
        steps=3, model={"recipe": "gpt", "args": args}, generate={"prompt": "def any", "tokens": 20, "temperature": 0.0}
    )
    finished = three.run(job)
    assert finished.result.status == "finished", finished.result.cause
    module, _ = plainly(job, three.home)
    module.eval()
    tokens = list(b"def any")
    with torch.no_grad():
        for _ in range(20):
            window = torch.tensor([tokens[-16:]])
            tokens.append(int(module(window)[0, -1].argmax()))
    assert finished.result.sample == bytes(tokens).decode(errors="replace")


def test_drawn_text_depends_on_the_seed_alone(three: Loopback) -> None:
    hot = {"prompt": "def ", "tokens": 12, "temperature": 2.0}
    first = three.run(text_job(steps=1, generate=hot))
    second = three.run(text_job(steps=1, generate=hot, workers=1, plan={"planner": "equal_number"}))
    assert first.result.sample == second.result.sample
    assert len(first.result.sample) > 4


def test_half_precision_end_to_end(three: Loopback) -> None:
    job = text_job(steps=3, precision="bf16", optimizer={"name": "adamw", "lr": 1e-2, "clip_norm": 0.5})
    finished = three.run(job)
    assert finished.result.status == "finished", finished.result.cause
    _, truth = plainly(job, three.home)
    assert same(truth.states, states_of(finished)) == []
    exact = three.run(text_job(steps=3, optimizer={"name": "adamw", "lr": 1e-2, "clip_norm": 0.5}))
    assert exact.losses != finished.losses
