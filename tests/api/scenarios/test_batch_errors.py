"""When ``batch_fn`` is at fault, the text names it, says what it gave and what the module takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farflung import CheckpointSpec, Evaluation, train
from farflung.errors import CaptureError, DataError, FarflungError, GraphError, InputError


class Model(nn.Sequential):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.mse_loss(super().forward(x), y)


X, Y = torch.ones(4, 8), torch.ones(4, 1)
RULE = r"must return a tuple of tensors or arrays in the order of the module's forward, or a dict by name"


@pytest.mark.parametrize("factory", [False, True])
@pytest.mark.parametrize(
    ("first", "kind", "text"),
    [
        (None, InputError, r"batch_fn\(0, 0\) returned a NoneType: it " + RULE),
        (3, InputError, r"batch_fn\(0, 0\) returned a int: it " + RULE),
        (([1.0], Y), InputError, r"batch_fn\(0, 0\) returned a list as value 0: it " + RULE),
        (
            (X,),
            InputError,
            r"batch_fn\(0, 0\) returned 1 value \(value 0\), and Model\.forward takes x, y: missing a required argument: 'y'",
        ),
        ((X, Y, Y), InputError, r"returned 3 values \(value 0, value 1, value 2\), and Model\.forward takes x, y: too many"),
        ({"x": X, "z": Y}, InputError, r"returned 2 values \(x, z\), and Model\.forward takes x, y: missing a required .*'y'"),
        (
            (np.ones((4, 8)), np.ones((4, 1))),
            GraphError,
            (
                r"batch_fn\(0, 0\) returned x float64 \[4, 8\], y float64 \[4, 1\]: the weights are float32, so let batch_fn "
                r"return \.astype\('float32'\) \(NumPy\) or \.to\(torch\.float32\)$"
            ),
        ),
        (
            (torch.ones(4, 7), Y),
            CaptureError,
            r"[^.]; batch_fn\(0, 0\) returned x float32 \[4, 7\], y float32 .*: change the batch, or the sizes of the ",
        ),
        (
            (X.long(), Y),
            GraphError,
            r"x int64 \[4, 8\], y float32 .*: the weights .* return inputs that are no indices as \.to\(torch\.float32\)$",
        ),
    ],
)
def test_the_first_batch(first: Any, kind: type[FarflungError], text: str, factory: bool) -> None:
    def make() -> Model:
        return Model(nn.Linear(8, 1))

    with pytest.raises(kind, match=text):
        train(make if factory else make(), lambda step, micro_batch: first, steps=1, workers=1)


@pytest.mark.parametrize(
    ("later", "text"),
    [
        (
            lambda: (X[:3], Y[:3]),
            (
                r"batch_fn\(0, 1\) returned 'x' as float32 \[3, 8\], batch_fn\(0, 0\) as float32 \[4, 8\]: all "
                r"batches must be alike \(drop a smaller last one, or fill it up\)"
            ),
        ),
        (
            lambda: (X.double(), Y),
            (
                r"batch_fn\(0, 1\) returned 'x' as float64 \[4, 8\], batch_fn\(0, 0\) as float32 \[4, 8\]: all batches must "
                r"be alike \(convert them to float32\)"
            ),
        ),
        (lambda: (X[:, :5], Y), r"returned 'x' as float32 \[4, 5\], .* must be alike \(pad all samples to one length\)"),
        (lambda: (X,), r"batch_fn\(0, 1\) returned no 'y'; it returned x"),
        (lambda: (X, Y, Y), r"batch_fn\(0, 1\) did not return what batch_fn\(0, 0\) did: 3 values, but .* takes 2 \(x, y\)"),
        (lambda: None, r"batch_fn\(0, 1\) did not return what batch_fn\(0, 0\) did: 'NoneType' object is not iterable"),
    ],
)
def test_a_later_batch(later: Callable[[], Any], text: str) -> None:
    with pytest.raises(DataError, match=text):
        train(
            Model(nn.Linear(8, 1)),
            lambda step, micro_batch: later() if micro_batch else (X, Y),
            steps=2,
            micro_batches=2,
            workers=1,
        )


def test_weights_of_another_type() -> None:
    text = (
        r"y float32 \[4, 1\]: the weights are float64, so call model\.float\(\), or let data return \.astype\('float64'\) "
        r"\(NumPy\) or \.to\(torch\.float64\)$"
    )
    with pytest.raises(FarflungError, match=text):
        train(Model(nn.Linear(8, 1)).double(), [(X, Y)], steps=1, workers=1)


@pytest.mark.parametrize(
    ("target", "text"),
    [
        (torch.ones(4), r"so let data return the target as \.long\(\)$"),
        (
            torch.ones(3).long(),
            r"[^.]; batch 0 of data .*: outputs and target must have the same number of samples, so change the",
        ),
    ],
    ids=["float", "short"],
)
def test_a_target_that_does_not_fit(target: torch.Tensor, text: str) -> None:
    with pytest.raises(CaptureError, match=text):
        train(nn.Linear(8, 3), [(X, target)], loss=nn.functional.cross_entropy, steps=1, workers=1)


@pytest.mark.parametrize(
    ("model", "inputs", "loss", "place"),
    [
        (nn.Linear(8, 3), X, nn.functional.cross_entropy, r"cross_entropy of PyTorch"),
        (nn.Linear(8, 3), X, nn.CrossEntropyLoss(), r"CrossEntropyLoss"),
        (nn.Sequential(nn.ReLU(), nn.Linear(7, 3)), X, nn.functional.mse_loss, r"layer 1 \(Linear\)"),
    ],
    ids=["function", "module", "layer"],
)
def test_a_failure_inside_of_pytorch_names_its_part_and_the_callers_line(
    model: nn.Module, inputs: torch.Tensor, loss: Any, place: str
) -> None:
    text = rf"^torch.export can't trace the module in {place} \(called from test_batch_errors.py:\d+\): RuntimeError: "
    with pytest.raises(CaptureError, match=text):
        train(model, [(inputs, torch.ones(4))], loss=loss, steps=1, workers=1)


@pytest.mark.parametrize(
    ("batch", "target"), [((X, Y), "the last value"), ({"input": X, "labels": Y}, "labels")], ids=["tuple", "dict"]
)
def test_a_forgotten_loss(batch: Any, target: str) -> None:
    remedy = rf"forward takes input: .*; if {target} is the target, pass loss=\.\.\., such as .*\.cross_entropy$"
    with pytest.raises(InputError, match=remedy):
        train(nn.Linear(8, 1), [batch], steps=1, workers=1)


def test_no_word_of_a_loss_where_the_loss_is_given() -> None:
    held_out = Evaluation(batch_fn=lambda index: (X, Y, Y), batches=1)
    with pytest.raises(InputError, match=r"forward takes input, labels: too many.*; it " + RULE):
        train(nn.Linear(8, 1), [(X, Y)], loss=nn.functional.mse_loss, evaluate=held_out, steps=1, workers=1)


def test_a_class_without_its_arguments_in_place_of_a_model() -> None:
    kind: Any = nn.Linear
    text = r"lacks arguments: Linear.__init__\(\) missing 2 .*; pass a module, or a function without .* lambda: Linear\("
    with pytest.raises(CaptureError, match=text):
        train(kind, [(X, Y)], loss=nn.functional.mse_loss, steps=1, workers=1)


def test_an_optimizer_of_another_model() -> None:
    optimizer = torch.optim.SGD(nn.Linear(8, 1).parameters(), lr=0.1)
    text = r"no parameter of the module: make it from the parameters of the module that train gets, or pass a function of the "
    with pytest.raises(InputError, match=text):
        train(nn.Linear(8, 1), [(X, Y)], loss=nn.functional.mse_loss, optimizer=optimizer, steps=1, workers=1)


def _classes(step: int, micro_batch: int) -> Any:
    return torch.ones(4, 8), torch.full((4,), 7 if (step, micro_batch) == (2, 1) else 0)


class Classes(nn.Linear):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(super().forward(x), y)


REFUSED = r"step 2, micro-batch 1: labels must be 0 to 2 \(or -100, which is ignored\), got 7: correct the batch, or give "
OPERATOR = r"operator '.*' \(aten\.cross_entropy_loss\.default\)"


@pytest.mark.parametrize("there", [False, True], ids=["workers", "ticket"])
def test_a_label_out_of_range_in_a_later_step(place: str | None) -> None:
    batch = r"; batch_fn\(2, 1\) returned x float32 \[4, 8\], y int64 \[4\]$"
    with pytest.raises(DataError, match=rf"{REFUSED}the model more classes; {OPERATOR}.*{batch}"):
        train(Classes(8, 3), _classes, steps=4, micro_batches=2, workers=1, ticket=place)


def test_a_batch_that_fails_leaves_the_note_of_the_newest_checkpoint(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=rf"^{REFUSED}") as caught:
        train(
            Classes(8, 3),
            _classes,
            steps=4,
            micro_batches=2,
            workers=1,
            folder=tmp_path / "run",
            checkpoint=CheckpointSpec(every=1),
        )
    newest = str(tmp_path / "run" / "checkpoints" / "step-0000000002")
    assert caught.value.__notes__ == [f"the newest checkpoint is {newest}; train(..., resume={newest!r}) continues from it"]


def test_a_label_out_of_range_in_an_evaluation() -> None:
    held_out = Evaluation(batch_fn=lambda index: (X[:2], torch.tensor([0, 7 * (index == 1)])), batches=2, every=1)
    text = (
        r"^evaluation after step 1, batch 1: labels must be 0 to 2 .*, got 7: .*; Evaluation\.batch_fn\(1\) returned x float32 "
    )
    with pytest.raises(DataError, match=text):
        train(Classes(8, 3), lambda step, micro_batch: (X, Y[:, 0].long()), steps=2, workers=1, evaluation=held_out)


def test_a_batch_of_an_evaluation_that_is_refused_is_described_once() -> None:
    held_out = Evaluation(batch_fn=lambda index: (X[: 2 + index], Y[: 2 + index, 0].long()), batches=2, every=1)
    with pytest.raises(DataError, match=r"Evaluation\.batch_fn\(1\) returned 'x' as float32 \[3, 8\]") as caught:
        train(Classes(8, 3), lambda step, micro_batch: (X, Y[:, 0].long()), steps=2, workers=1, evaluation=held_out)
    assert str(caught.value).count("returned") == 1
