"""Initializer programs: what they hold, that they give what the factory gives, and what is refused."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from farflung.errors import CaptureError
from farflung.frontends.recipes import load_recipe
from farflung.frontends.torch.capture import capture
from farflung.frontends.torch.programs import Programs
from farflung.frontends.torch.recorder import record, record_initializers
from tests.support.engines.keyed import build
from tests.support.engines.replay import born
from tests.support.models.zoo import TINY


class Sum(nn.Module):
    """Reads all its states, so that a graph holds them."""

    def __init__(self, **parts):
        super().__init__()
        for name, part in parts.items():
            if isinstance(part, (nn.Module, nn.Parameter)):
                setattr(self, name, part)
            else:
                self.register_buffer(name, part)

    def forward(self, x):
        return sum((x.sum() * value.float().sum() for value in [*self.parameters(), *self.buffers()]), x.sum())


def check(factory, seed=11):
    graph = capture(factory, (torch.zeros(2),))
    real = build(factory, seed)
    values = dict(real.named_parameters()) | dict(real.named_buffers())
    assert {state.name for state in graph.states} == set(values)
    for state in graph.states:
        made = born(state, seed)
        assert made.dtype == values[state.name].dtype
        assert torch.equal(made, values[state.name]), state.name
    return graph


def filled(make):
    def factory():
        weight = nn.Parameter(torch.empty(6, 4))
        with torch.no_grad():
            make(weight)
        return Sum(weight=weight)

    return factory


INITIALIZERS = {
    "normal": lambda w: nn.init.normal_(w, 1.0, 0.1),
    "uniform": lambda w: nn.init.uniform_(w, -1, 1),
    "trunc_normal": lambda w: nn.init.trunc_normal_(w, std=0.02),
    "kaiming_uniform": lambda w: nn.init.kaiming_uniform_(w, a=5**0.5),
    "kaiming_normal": nn.init.kaiming_normal_,
    "xavier_uniform": nn.init.xavier_uniform_,
    "xavier_normal": nn.init.xavier_normal_,
    "orthogonal": nn.init.orthogonal_,
    "eye": nn.init.eye_,
    "constant": lambda w: nn.init.constant_(w, 0.25),
    "data": lambda w: w.data.normal_().mul_(0.5),
    "rows": lambda w: (w.normal_(), w[2].zero_(), w[:, 1:3].fill_(7.0)),
    "from another": lambda w: w.copy_(torch.randn(6, 4) @ torch.eye(4)),
    "with a table": lambda w: w.normal_().mul_(torch.tensor([1.0, 2.0, 3.0, 4.5])),
    "chunks": lambda w: [part.fill_(i) for i, part in enumerate(w.zero_().chunk(3))],
}


@pytest.mark.parametrize("name", INITIALIZERS)
def test_programs_give_what_the_factory_gives(name):
    check(filled(INITIALIZERS[name]))


@pytest.mark.parametrize(
    "make",
    [
        lambda: nn.Linear(4, 3),
        lambda: nn.Embedding(5, 4, padding_idx=1),
        lambda: nn.Conv2d(3, 4, 3),
        lambda: nn.BatchNorm2d(4),
        lambda: nn.MultiheadAttention(8, 2),
        lambda: nn.LSTM(4, 3),
        lambda: nn.Linear(4, 3).to(torch.bfloat16),
    ],
    ids=["linear", "padding", "conv", "batch norm", "attention", "lstm", "bfloat16"],
)
def test_modules_of_torch(make):
    check(lambda: Sum(part=make()))


def test_a_copy_has_the_numbers_of_what_it_copies():
    def factory():
        first = nn.Linear(4, 4)
        return Sum(first=first, second=copy.deepcopy(first))

    graph = check(factory)
    copied = graph.state["second.weight"].init
    assert [step.like for step in copied if step.rng is not None] == [("first.weight", 0)]


def test_buffers_from_arithmetic_and_tables():
    def factory():
        frequencies = 1.0 / (10000.0 ** (torch.arange(0, 8, 2).float() / 8))
        return Sum(frequencies=frequencies, table=torch.tensor([[1, 2], [3, 4]]), places=torch.arange(6).expand(1, -1))

    graph = check(factory)
    assert graph.state["table"].data is not None
    assert graph.state["frequencies"].init


def test_overwritten_steps_are_left_out():
    graph = check(filled(lambda w: (nn.init.kaiming_uniform_(w), nn.init.normal_(w))))
    assert [step.target for step in graph.state["weight"].init] == ["aten.empty.memory_format", "aten.normal_.default"]


def test_no_memory_is_taken():
    recording = record(lambda: nn.Linear(1 << 20, 1 << 20))
    program = Programs(recording).all()["weight"]
    assert [step.target for step in program][-1] == "aten.uniform_.default"


@pytest.mark.parametrize(
    ("factory", "text"),
    [
        (filled(lambda w: None), "weight is never initialised"),
        (filled(lambda w: w.normal_(generator=torch.Generator())), "from a generator of its own: use the default one"),
        (filled(lambda w: w.copy_(torch.from_numpy(__import__("numpy").ones((6, 4, 30)))[..., 0] * 1)), "table of 720 numbers"),
        (filled(lambda w: w.normal_().sum().item()), "initialise with torch.nn.init, without looking at values"),
        (filled(lambda w: w.cauchy_()), r"aten.cauchy_.default, which can't be recorded: initialise with torch.nn.init"),
        (lambda: 3, "the factory gives 3: return a torch.nn.Module"),
    ],
)
def test_refusals(factory, text):
    with pytest.raises(CaptureError, match=text):
        capture(factory, (torch.zeros(2),))


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert"])
def test_initializers_of_a_meta_module_of_transformers(name):
    recipe = load_recipe(*TINY[name])
    with torch.device("meta"):
        module = recipe.train.factory()
    graph = capture(record_initializers(module), recipe.train.example_inputs(2))
    wanted = recipe.graph("train", 2)
    assert [state.name for state in graph.states] == [state.name for state in wanted.states]
    assert all(parameter.is_meta for parameter in module.parameters())
    for state in graph.states:
        assert born(state, 3).shape == born(wanted.state[state.name], 3).shape


def test_initializers_of_a_meta_module_of_torch():
    with torch.device("meta"):
        module = Sum(a=nn.Linear(3, 3), b=nn.BatchNorm1d(3), c=nn.Sequential(nn.Conv1d(2, 2, 1)))
    graph = capture(record_initializers(module), (torch.zeros(2),))
    assert torch.equal(born(graph.state["b.weight"], 0), torch.ones(3))
    assert all(state.init or state.data is not None for state in graph.states)


def test_a_meta_parameter_without_initializer_is_refused():
    with torch.device("meta"):
        module = Sum(free=nn.Parameter(torch.ones(3)))
    with pytest.raises(
        CaptureError,
        match=r"free is never initialised .*: pass the class or a function that makes the module in place of the meta module",
    ):
        capture(record_initializers(module), (torch.zeros(2),))
    assert capture(lambda: Sum(free=nn.Parameter(torch.ones(3))), (torch.zeros(2),)).state["free"].init


def test_a_meta_module_has_no_programs_and_the_same_operators():
    recipe = load_recipe(*TINY["gpt2"])
    with torch.device("meta"):
        module = recipe.train.factory()
    example = recipe.train.example_inputs(2)
    graph = capture(module, example)
    assert all(parameter.is_meta for parameter in module.parameters())
    assert not any(state.init for state in graph.states)
    assert graph.ops == capture(recipe.train.factory(), example).ops == recipe.graph("train", 2).ops
