"""``farflung.train`` equals a plain PyTorch loop bit for bit, here and on the workers of a ticket."""

from __future__ import annotations

import copy
import sys
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

import farflung
from farflung.engines.base import Array
from farflung.errors import DataError, InputError, TrainingError
from farflung.job.spec import OptimizerSpec
from farflung.telemetry.records import StepRecord
from farflung.testing.reference import PlainResult, PlainSettings, plain_loop
from tests.support.runs.small_training import batch, net


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


SPEC = OptimizerSpec(name="adamw", lr=1e-2, clip_norm=0.5)


@pytest.fixture(scope="module")
def truth() -> PlainResult:
    torch.set_num_threads(1)
    return plain_loop(net(), batch, steps=4, micro_batches=2, settings=PlainSettings(optimizer=SPEC, seed=3))


def assert_same(result: farflung.TrainResult, truth: PlainResult) -> None:
    assert result.losses == truth.losses
    states = result.state_dict()
    assert [name for name, value in truth.states.items() if states[name].tobytes() != np.ascontiguousarray(value).tobytes()] == []


@pytest.mark.parametrize("workers", [1, 3])
def test_here(workers: int, truth: PlainResult) -> None:
    module = net()
    before: dict[str, Array] = {name: value.numpy().copy() for name, value in module.state_dict().items()}
    result = farflung.train(module, batch, steps=4, micro_batches=2, optimizer=SPEC, workers=workers, seed=3)
    assert_same(result, truth)
    assert len(result.plan.devices) == workers
    assert all(np.array_equal(before[name], value.numpy()) for name, value in module.state_dict().items()), (
        "the module is untouched"
    )
    copy.deepcopy(module).load_state_dict({name: torch.from_numpy(value.copy()) for name, value in result.state_dict().items()})


class Formats(torch.nn.Module):
    """A layer whose result is cast with ``memory_format``, multiplied by itself, and cast back."""

    def __init__(self, dtype: torch.dtype, memory_format: torch.memory_format) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(16, 4 * 8)
        self.dtype, self.memory_format = dtype, memory_format

    def forward(self, x: Tensor) -> Tensor:
        heads = self.layer(x).view(2, 12, 4, 8).transpose(1, 2).to(self.dtype, memory_format=self.memory_format)
        return torch.as_tensor((heads @ heads.transpose(-1, -2)).view(2, -1).float().square().mean())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("memory_format", [torch.contiguous_format, torch.channels_last, torch.preserve_format])
def test_casts_keep_or_change_the_layout_as_in_pytorch(dtype: torch.dtype, memory_format: torch.memory_format) -> None:
    def batches(step: int, micro_batch: int) -> tuple[Tensor]:
        return (torch.randn(2, 12, 16, generator=torch.Generator().manual_seed(2 * step + micro_batch)),)

    plain = PlainSettings(optimizer=SPEC, seed=3)
    truth = plain_loop(Formats(dtype, memory_format), batches, steps=2, micro_batches=2, settings=plain)
    module = Formats(dtype, memory_format)
    assert_same(farflung.train(module, batches, steps=2, micro_batches=2, optimizer=SPEC, workers=2, seed=3), truth)


class Spectra(torch.nn.Module):
    """The gradient of what ``rfft`` reads is the real part of a complex array: twice its memory, which no value has."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = torch.nn.ModuleList([torch.nn.Linear(4, 4, bias=False) for _ in range(3)])

    def forward(self, x: Tensor) -> Tensor:
        for layer in self.layers:
            x = torch.fft.rfft(layer(x)).abs().square().mean(-1, keepdim=True) - x.tanh()
        return torch.as_tensor(x.square().mean())


def test_gradients_with_gaps_cross_stages() -> None:
    def batches(step: int, micro_batch: int) -> tuple[Tensor]:
        return (torch.randn(9, 5, 4, generator=torch.Generator().manual_seed(2 * step + micro_batch)),)

    truth = plain_loop(Spectra(), batches, steps=2, micro_batches=2, settings=PlainSettings(optimizer=SPEC, seed=3))
    for workers in (3, 7):
        result = farflung.train(Spectra(), batches, steps=2, micro_batches=2, optimizer=SPEC, workers=workers, seed=3)
        assert_same(result, truth)


def test_on_the_workers_of_a_ticket(ticket: str, truth: PlainResult) -> None:
    seen: list[int] = []

    def tell(record: StepRecord) -> None:
        seen.append(record.step)

    result = farflung.train(net(), batch, steps=4, micro_batches=2, optimizer=SPEC, ticket=ticket, seed=3, on_step=tell)
    assert_same(result, truth)
    assert seen == [0, 1, 2, 3]
    assert set(result.plan.devices) <= {"a", "b"}


def test_the_callers_own_error_comes_back_and_the_workers_go_on(ticket: str, truth: PlainResult) -> None:
    def broken(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        if step == 2:
            raise LookupError("my own mistake")
        return batch(step, micro_batch)

    with pytest.raises(LookupError, match="my own mistake"):
        farflung.train(net(), broken, steps=4, micro_batches=2, optimizer=SPEC, ticket=ticket, seed=3)
    result = farflung.train(net(), batch, steps=4, micro_batches=2, optimizer=SPEC, ticket=ticket, seed=3)
    assert_same(result, truth)


@pytest.mark.parametrize("there", [False, True])
def test_a_loss_that_is_no_number(there: bool, ticket: str) -> None:
    def wild(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        x, y = batch(step, micro_batch)
        return (x * float("nan") if step == 1 else x), y

    with pytest.raises(TrainingError, match=r"step 1: the loss of micro-batches .* is not a finite number"):
        farflung.train(net(), wild, steps=3, micro_batches=2, workers=2, ticket=ticket if there else None)


def test_batches_that_change_their_shape() -> None:
    def growing(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
        x, y = batch(step, micro_batch)
        return (x, y) if step == 0 else (x[:2], y[:2])

    with pytest.raises(DataError, match=r"batch_fn\(1, 0\) returned 'x' as float32 \[2, 6\], batch_fn\(0, 0\) as float32"):
        farflung.train(net(), growing, steps=2, workers=2)


@pytest.mark.parametrize("wrong", ["steps", "micro_batches", "workers"])
def test_numbers_below_one(wrong: str) -> None:
    with pytest.raises(InputError, match=f"{wrong} must be at least 1, got 0"):
        farflung.train(net(), batch, **({"steps": 1} | {wrong: 0}))  # type: ignore[arg-type]


def test_an_unknown_optimizer() -> None:
    with pytest.raises(InputError, match=r"^unknown optimizer 'adan': did you mean 'adam'\? known are adadelta, adafactor"):
        farflung.train(net(), batch, steps=1, optimizer="adan")


def test_importing_the_package_loads_no_tensor_library() -> None:
    import subprocess

    code = "import farflung, sys; farflung.__version__; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
