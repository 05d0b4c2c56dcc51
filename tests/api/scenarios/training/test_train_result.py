"""``load_into``, ``model`` and ``tensors`` of a result."""

from __future__ import annotations

import copy
import pickle

import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung import TrainResult, train
from farflung.errors import InputError
from tests.support.runs.small_training import Net, batch, held_out, net, trained


@pytest.fixture(scope="module")
def result() -> TrainResult:
    return trained()


def loss(module: nn.Module) -> float:
    with torch.no_grad():
        return float(copy.deepcopy(module).eval()(*held_out(0)))


def test_tensors_are_the_arrays_and_share_what_is_tied(result: TrainResult) -> None:
    arrays, tensors = result.state_dict(), result.tensors()
    assert isinstance(arrays["mix.weight"], np.ndarray)
    assert arrays.keys() == tensors.keys() == net().state_dict().keys()
    assert all(np.array_equal(arrays[name], tensor.numpy()) for name, tensor in tensors.items())
    assert tensors["mix.weight"] is tensors["out.weight"]
    tensors["up.weight"].zero_()
    assert not np.array_equal(result.state_dict()["up.weight"], tensors["up.weight"].numpy()), "they are copies"
    net().load_state_dict(result.tensors())


def test_load_into_fills_a_module(result: TrainResult) -> None:
    module = net()
    before = loss(module)
    result.load_into(module)
    assert loss(module) == loss(result.model()) != before
    assert module.out.weight is module.mix.weight
    assert int(module.norm.num_batches_tracked) == 8


def test_model_is_a_new_module_of_the_class() -> None:
    module = net()
    result = trained(module=module)
    one, two = result.model(), result.model()
    assert type(one) is Net
    assert one is not two
    assert one is not module
    assert one.out.weight is one.mix.weight
    assert not torch.equal(one.up.weight, module.up.weight)
    assert one.up.weight.requires_grad
    assert loss(one) == loss(two)


def test_model_of_a_factory_and_of_a_meta_module() -> None:
    state = torch.random.get_rng_state()
    made = trained(module=Net).model()
    assert torch.equal(torch.random.get_rng_state(), state), "the caller's random numbers are left alone"
    with torch.device("meta"):
        meta = Net()
        meta.out.weight = meta.mix.weight
    built = trained(module=meta).model()
    for module in (made, built):
        assert module.out.weight is module.mix.weight
        assert not any(tensor.is_meta for tensor in (*module.parameters(), *module.buffers()))
        assert np.isfinite(loss(module))
    assert all(parameter.is_meta for parameter in meta.parameters())


class Rotary(nn.Module):
    """A buffer that checkpoints leave out, and weights in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.line = nn.Linear(4, 4, dtype=torch.bfloat16)
        self.register_buffer("angles", torch.arange(4, dtype=torch.bfloat16), persistent=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.line(x * self.angles).float().pow(2).mean()


@pytest.mark.parametrize("kind", ["module", "factory", "meta"])
def test_bfloat16_stays_and_temporary_buffers_have_values(kind: str) -> None:
    with torch.device("meta" if kind == "meta" else "cpu"):
        source = Rotary if kind == "factory" else Rotary()
    if kind == "meta":
        with pytest.raises(Exception, match="angles"):  # nothing says what the buffer of a meta module holds
            train(source, lambda step, micro: (torch.ones(2, 4, dtype=torch.bfloat16),), steps=1, workers=1)
        return
    result = train(source, lambda step, micro: (torch.ones(2, 4, dtype=torch.bfloat16),), steps=1, workers=1, lr=0.1)
    assert result.tensors()["line.weight"].dtype is torch.bfloat16
    assert result.state_dict()["line.weight"].dtype == ml_dtypes.bfloat16
    assert "angles" not in result.tensors()
    module = result.model()
    assert torch.equal(module.angles, torch.arange(4, dtype=torch.bfloat16))
    wide = Rotary().float()
    result.load_into(wide)
    assert wide.line.weight.dtype is torch.float32
    assert torch.equal(wide.line.weight.bfloat16(), module.line.weight)


def test_modules_that_do_not_fit(result: TrainResult) -> None:
    class Wider(Net):
        def __init__(self) -> None:
            super().__init__()
            self.up, self.norm = nn.Linear(6, 9), nn.BatchNorm1d(9)

    class More(Net):
        def __init__(self) -> None:
            super().__init__()
            self.more = nn.Linear(2, 2)

    wider = Wider()
    before = copy.deepcopy(wider.state_dict())
    with pytest.raises(InputError, match=r"does not fit this module: 'norm.bias' is \[9\] in the module and \[8\] in the result"):
        result.load_into(wider)
    with pytest.raises(InputError, match=r"Shapes must agree, also with strict=False: .* copy what fits"):
        result.load_into(wider, strict=False)
    assert all(torch.equal(before[name], value) for name, value in wider.state_dict().items()), "nothing was changed"
    with pytest.raises(
        InputError, match=r"the module lacks 'mix.bias', 'mix.weight', 'norm.bias' and \d+ more; the result lacks"
    ):
        result.load_into(nn.Linear(2, 2))
    with pytest.raises(
        InputError, match=r"the result lacks 'more.bias', 'more.weight'. Pass a module of the trained class, or str"
    ):
        result.load_into(More())
    more = More()
    result.load_into(more, strict=False)
    assert torch.equal(more.up.weight, result.tensors()["up.weight"])
    with torch.device("meta"):
        meta = Net()
    with pytest.raises(InputError, match=r"no memory for .* \(meta device\): call module.to_empty\(device='cpu'\) first"):
        result.load_into(meta)


def test_what_is_no_module(result: TrainResult) -> None:
    with pytest.raises(InputError, match=r"^load_into takes a torch\.nn\.Module, got a dict: pass a module"):
        result.load_into({})  # type: ignore[arg-type]


def test_a_module_that_can_not_be_copied() -> None:
    class Guarded(Net):
        def __deepcopy__(self, memo: object) -> Net:
            raise RuntimeError("no copies\nplease")

    with pytest.raises(
        InputError, match=r"^Guarded can't be copied \(RuntimeError: no copies\): make a module yourself and call"
    ):
        trained(module=Guarded()).model()


def test_a_result_can_be_pickled() -> None:
    found = pickle.loads(pickle.dumps(trained(module=net(), steps=1)))
    assert functional.mse_loss(found.tensors()["up.weight"], found.model().up.weight) == 0
    assert batch(0, 0)[0].shape == (4, 6)


@pytest.mark.parametrize("frozen", ["module", "norm"])
def test_layers_train_in_the_mode_that_they_have(frozen: str) -> None:
    """As docs/python.md says: in evaluation mode dropout passes all values, and the running statistics stay."""
    module = net()
    (module if frozen == "module" else module.norm).eval()
    before = module.norm.running_mean.clone()
    found = train(module, batch, steps=2, workers=2)
    assert torch.equal(found.tensors()["norm.running_mean"], before)
    assert not np.array_equal(found.state_dict()["up.weight"], module.up.weight.detach().numpy()), "and it is trained"
    assert found.model().training == (frozen == "norm")
    other = train(module, batch, steps=2, workers=2, seed=1)
    assert (other.losses == found.losses) == (frozen == "module"), "dropout depends on the seed"
    assert type(found.losses) is type(found.records) is type(found.evaluations) is tuple
