"""``train`` with any optimizer gives the weights of the caller's own loop, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

import farflung
from farflung.api.optimizers import with_named_optimizer
from farflung.errors import CaptureError, InputError
from farflung.job.spec import GroupSpec, JobSpec, OptimizerSpec, SyncSpec
from farflung.optim import packed_states, state_bytes, unpacked_states
from tests.support.engines.optimizers import OPTIMIZERS, Net, batch, plain_loop, table

STEPS = 20


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def different(result: farflung.TrainResult, truth: dict[str, torch.Tensor]) -> list[str]:
    states = result.state_dict()
    assert states.keys() == truth.keys()
    return [name for name, value in truth.items() if states[name].tobytes() != value.numpy().tobytes()]


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_equals_the_loop(name: str) -> None:
    truth = plain_loop(OPTIMIZERS[name], STEPS)
    for workers in (1, 3):
        result = farflung.train(Net(), batch, steps=STEPS, optimizer=OPTIMIZERS[name], workers=workers)
        assert different(result, truth) == []
        assert len(result.plan.devices) == workers


def test_the_table_of_the_page() -> None:
    page = Path(__file__).parents[3] / "docs" / "optimizers.md"
    lines = page.read_text(encoding="utf-8").splitlines()
    begin = next(index for index, line in enumerate(lines) if line.startswith("| optimizer | name in a job |")) + 2
    rows = table()
    assert lines[begin : begin + len(rows)] == rows
    assert not lines[begin + len(rows)].startswith("|")


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("adam", torch.optim.Adam),
        ("adadelta", torch.optim.Adadelta),
        ("radam", torch.optim.RAdam),
        ("adafactor", torch.optim.Adafactor),
        ("rprop", torch.optim.Rprop),
    ],
)
def test_by_name(name: str, kind: type[torch.optim.Optimizer]) -> None:
    truth = plain_loop(lambda params: kind(params, lr=1e-2), 8)  # type: ignore[call-arg]
    assert different(farflung.train(Net(), batch, steps=8, optimizer=name, lr=1e-2, workers=2), truth) == []


def test_by_name_with_settings_and_groups() -> None:
    def loop(params: list[torch.nn.Parameter]) -> list[torch.optim.Optimizer]:
        matrices = [p for p in params if p.ndim == 2]
        rest = [p for p in params if p.ndim != 2]
        return [
            torch.optim.Muon(matrices, lr=2e-2, ns_steps=3),
            torch.optim.RMSprop(rest, lr=1e-3, alpha=0.9, eps=1e-6, momentum=0.5),
        ]

    spec = OptimizerSpec(
        name="rmsprop",
        lr=1e-3,
        eps=1e-6,
        momentum=0.5,
        settings={"alpha": 0.9},
        groups=(GroupSpec(match=r"(up|mix|out)\.weight", name="muon", lr=2e-2, settings={"ns_steps": 3}),),
    )
    assert different(farflung.train(Net(), batch, steps=8, optimizer=spec, workers=3), plain_loop(loop, 8)) == []


def test_an_optimizer_itself() -> None:
    module = Net()
    optimizer = torch.optim.NAdam([{"params": module.mix.parameters()}, {"params": module.up.parameters(), "lr": 0.05}], lr=1e-2)

    def loop(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
        return torch.optim.NAdam([{"params": params[2:4]}, {"params": params[:2], "lr": 0.05}], lr=1e-2)

    assert different(farflung.train(module, batch, steps=6, optimizer=optimizer, workers=2), plain_loop(loop, 6)) == []
    assert not optimizer.state, "the caller's optimizer is not changed"
    assert [group["lr"] for group in optimizer.param_groups] == [1e-2, 0.05]


def test_half_precision_of_states() -> None:
    def rounded(optimizer: torch.optim.Optimizer) -> None:
        for slots in optimizer.state.values():
            for key, value in slots.items():
                if isinstance(value, torch.Tensor) and value.numel() > 1:
                    slots[key] = value.bfloat16().float()

    truth = plain_loop(lambda params: torch.optim.AdamW(params, lr=1e-2), 8, after=rounded)
    spec = OptimizerSpec(name="adamw", lr=1e-2, state="bf16")
    result = farflung.train(Net(), batch, steps=8, optimizer=spec, workers=2)
    assert different(result, truth) == []
    graph = result.graph
    job = with_named_optimizer(JobSpec(optimizer=spec), graph)
    whole = state_bytes(OptimizerSpec(name="adamw"), graph, graph.trained)
    assert state_bytes(job.optimizer, graph, graph.trained) == pytest.approx(whole / 2, rel=0.05)


class Wide(nn.Module):
    """Its first matrix is large enough for states in 8 bits."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(70, 64), nn.Linear(64, 1)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (self.second(self.first(x).tanh()) - y).square().mean()


def wide_batch(step: int, micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    x = torch.randn(4, 70, generator=torch.Generator().manual_seed(2 * step + micro_batch))
    return x, x.sum(dim=1, keepdim=True)


def eight_bit_loop(steps: int) -> tuple[dict[str, torch.Tensor], torch.optim.Optimizer]:
    """AdamW whose large states are rounded to 8 bits after each step."""
    torch.manual_seed(0)
    model = Wide()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        model(*wide_batch(step, 0)).backward()
        optimizer.step()
        for slots in optimizer.state.values():
            for key in ("exp_avg", "exp_avg_sq"):
                if slots[key].numel() >= 4096:
                    slots[key] = torch.from_numpy(unpacked_states(*packed_states(slots[key].numpy())))
    return dict(model.state_dict()), optimizer


def test_states_in_eight_bits(tmp_path: Path) -> None:
    truth, _ = eight_bit_loop(8)
    spec = OptimizerSpec(name="adamw", lr=1e-2, state="8bit")

    def train(steps: int, workers: int, **more: Any) -> Any:
        torch.manual_seed(0)
        return farflung.train(Wide(), wide_batch, steps=steps, optimizer=spec, workers=workers, **more)

    result = train(8, 2)
    assert all(torch.equal(truth[name], value) for name, value in result.tensors().items())
    first = train(3, 2, folder=tmp_path / "first")
    rest = train(8, 1, resume=first.checkpoint)
    assert all(torch.equal(truth[name], value) for name, value in rest.tensors().items())
    graph = result.graph
    job = with_named_optimizer(JobSpec(optimizer=spec), graph)
    large = graph.state["first.weight"].spec.nbytes
    between, update = 2 * large * 0.254, 2 * large
    assert state_bytes(job.optimizer, graph, ["first.weight"]) == pytest.approx(between + update, rel=0.02)


@pytest.mark.parametrize("name", ["NAdam", "Adafactor", "own: a branch on the step", "Muon and AdamW"])
def test_resumes(name: str, tmp_path: Path) -> None:
    truth = plain_loop(OPTIMIZERS[name], STEPS)
    first = farflung.train(Net(), batch, steps=7, optimizer=OPTIMIZERS[name], workers=3, folder=tmp_path / "first")
    rest = farflung.train(Net(), batch, steps=STEPS, optimizer=OPTIMIZERS[name], workers=2, resume=first.checkpoint)
    assert different(rest, truth) == []


class Global(torch.optim.SGD):
    """Divides by the norm of all parameters."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        params = [p for group in self.param_groups for p in group["params"] if p.grad is not None]
        norm = sum(p.square().sum() for p in params) ** 0.5
        for p in params:
            p.sub_(self.param_groups[0]["lr"] * p.grad / norm)


class Counting(torch.optim.SGD):
    """Counts its steps in an attribute."""

    count = 0

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        self.count += 1
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] / self.count * p.grad)


class Mean(torch.optim.SGD):
    """Divides by the number of parameters of its group."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * group["lr"] / len(group["params"]))


class Favoring(torch.optim.SGD):
    """Treats the first parameter of its group in another way."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * group["lr"] * (0.1 if p is group["params"][0] else 1))


class FirstGroup(torch.optim.SGD):
    """Reads the learning rate of the first group for all groups."""

    def __init__(self, params: list[torch.nn.Parameter], lr: float) -> None:
        super().__init__([{"params": params[:2]}, {"params": params[2:]}], lr=lr)

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * self.param_groups[0]["lr"])


class Attribute(torch.optim.SGD):
    """Reads an attribute."""

    def __init__(self, params: list[torch.nn.Parameter], lr: float) -> None:
        super().__init__(params, lr=lr)
        self.eps = 1e-3

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(p.grad * group["lr"] * self.eps)


class Peeking(torch.optim.SGD):
    """Decides by values of the gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad.abs().max() > 1.0:
                    p.sub_(group["lr"] * p.grad)


class Noisy(torch.optim.SGD):
    """Adds noise."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.sub_(group["lr"] * (p.grad + torch.randn_like(p)))


class Losing(torch.optim.SGD):
    """Takes the learning rate out of sight."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                rate = float(group["lr"])
                p.sub_(rate * p.grad)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Global, "optimizer Global can't be captured: its rules and its own code give different weights"),
        (Counting, "optimizer Counting can't be captured: its rules and its own code give different weights"),
        (Mean, "optimizer Mean can't be captured: its rules and its own code give different weights"),
        (Favoring, "optimizer Favoring can't be captured: its rules and its own code give different weights"),
        (FirstGroup, "optimizer FirstGroup can't be captured: its rules and its own code give different weights"),
        (Attribute, r"no attribute 'eps'; put 'eps' into the group \(defaults of __init__\), because attributes are not"),
        (
            Peeking,
            r"optimizer Peeking can't be captured: test_optimizers.py:\d+: if p.grad.abs\(\).max\(\) > 1.0: decides by the ",
        ),
        (Noisy, r"optimizer Noisy can't be captured: test_optimizers.py:\d+: p.sub_\(.*randn_like\(p\)\)\) draws random numbers"),
        (
            Losing,
            r"optimizer Losing can't be captured: .*: p.sub_\(rate \* p.grad\): the learning rate or the step",
        ),
        (
            torch.optim.LBFGS,
            "optimizer LBFGS can't be captured: its step needs a closure, which calls the model again; choose an",
        ),
        (torch.optim.SparseAdam, r"optimizer SparseAdam can't be captured: .*does not support dense gradients"),
    ],
)
def test_what_cannot_be_captured_is_named(kind: Any, text: str) -> None:
    with pytest.raises(CaptureError, match=text):
        farflung.train(Net(), batch, steps=2, optimizer=lambda params: kind(params, lr=0.1))


class Unused(Net):
    """Has a parameter that its forward leaves out."""

    def __init__(self) -> None:
        super().__init__()
        self.spare = torch.nn.Parameter(torch.ones(3))


class Decaying(torch.optim.SGD):
    """Decays before it looks for a gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(0.99)
                if p.grad is not None:
                    p.sub_(p.grad * group["lr"])


class CountingAll(Mean):
    """Divides by a number that includes parameters without a gradient."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * group["lr"] / len(group["params"]))


@pytest.mark.parametrize(
    ("kind", "held", "text"),
    [
        (Decaying, 11, "it changes a parameter without a gradient, .* Skip parameters whose grad is None"),
        (CountingAll, 2, "its rules and its own code give different weights"),
    ],
)
def test_parameters_without_a_gradient_take_part_in_the_check(kind: Any, held: int, text: str) -> None:
    with pytest.raises(CaptureError, match=f"optimizer {kind.__name__} can't be captured: {text}"):
        farflung.train(Unused(), batch, steps=2, optimizer=lambda params: kind(params[:held], lr=0.1))


def test_an_unused_parameter_stays_under_an_optimizer_that_skips_it() -> None:
    result = farflung.train(Unused(), batch, steps=2, optimizer=lambda params: torch.optim.NAdam(params, lr=0.1))
    assert result.state_dict()["spare"].tolist() == [1.0, 1.0, 1.0]


@pytest.mark.parametrize(
    ("optimizer", "more", "text"),
    [
        (lambda params: 3, {}, "optimizer: the function gave a int: return a torch.optim.Optimizer, or a list of them"),
        (lambda params: [], {}, "optimizer: the function gave no optimizer: return a torch.optim.Optimizer"),
        (lambda params: params.nothing, {}, "optimizer: the function failed: AttributeError: 'list' object has no"),
        (
            lambda params: torch.optim.SGD([torch.nn.Parameter(torch.ones(3))]),
            {},
            r"holds a tensor \[3\] that is no parameter of",
        ),
        (
            lambda params: [torch.optim.SGD(params), torch.optim.Adam(params)],
            {},
            r"parameter 'mix.bias' is in two groups of optimizers: leave",
        ),
        (
            lambda params: torch.optim.AdamW(params, lr=torch.tensor(1e-2)),
            {},
            "optimizer AdamW has a tensor as lr, which rounds otherwise: pass a Python number",
        ),
        (torch.optim.NAdam, {"lr": 0.1}, "lr=0.1 beside an optimizer that has its own: set it there, and remove lr"),
        (7, {}, "optimizer=7 can't be used: pass a name, an OptimizerSpec, or a function that makes one"),
        ("nadm", {}, "unknown optimizer 'nadm': did you mean 'nadam'"),
        ("muon", {}, "optimizer 'muon': Muon only supports 2D parameters.*; give other parameters another optimizer"),
        (
            OptimizerSpec(name="lion", eps=1e-3),
            {},
            "optimizer=.*eps.* is no setting of 'lion', which has lr, betas, weight_decay",
        ),
    ],
)
def test_wrong_optimizers(optimizer: Any, more: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        farflung.train(Net(), batch, steps=2, optimizer=optimizer, **more)


def test_an_optimizer_that_has_stepped() -> None:
    module = Net()
    optimizer = torch.optim.Adam(module.parameters())
    module(*batch(0, 0)).backward()
    optimizer.step()
    with pytest.raises(InputError, match="optimizer=Adam has made steps already: pass a function that makes a new one"):
        farflung.train(module, batch, steps=2, optimizer=optimizer)


def adamw(params: list[torch.nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(params, lr=1e-2)


@pytest.mark.parametrize(
    "settings",
    [
        {"replicas": 2, "workers": 4},
        {"replicas": 2, "workers": 2, "sync": SyncSpec(strategy="local_sgd", settings={"sync_every": 3})},
        {"replicas": 2, "workers": 2, "sync": SyncSpec(strategy="partial", settings={"sync_every": 2})},
        {"replicas": 2, "workers": 2, "sync": "diloco"},
        {"workers": 2, "clip_norm": 0.1},
    ],
)
def test_rules_and_the_built_in_code_agree_under_strategies(settings: dict[str, Any]) -> None:
    shared = {"steps": 7, "micro_batches": 4, **settings}
    named = farflung.train(Net(), batch, optimizer="adamw", lr=1e-2, **shared)
    ruled = farflung.train(Net(), batch, optimizer=adamw, **shared)
    assert ruled.losses == named.losses
    assert different(ruled, {name: torch.from_numpy(value.copy()) for name, value in named.state_dict().items()}) == []


@pytest.mark.parametrize("name", ["Adafactor", "Muon and AdamW"])
def test_on_the_workers_of_a_ticket(name: str, ticket: str) -> None:
    """The rules pass a broker, and run in the isolated processes of its workers."""
    result = farflung.train(Net(), batch, steps=6, optimizer=OPTIMIZERS[name], ticket=ticket)
    assert different(result, plain_loop(OPTIMIZERS[name], 6)) == []
