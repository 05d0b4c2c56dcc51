"""Parameters that a stage trains and another only reads, and frozen ones that several stages read: no hang, equal copies."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import farflung
from farflung.api import capture
from farflung.errors import InputError
from farflung.graph.cut import cut
from farflung.job.spec import GroupSpec, OptimizerSpec
from farflung.plan.traffic import tied_exchanges
from farflung.testing.reference import PlainSettings, plain_loop
from tests.support.steps.executor_threads import Case, differing, job_of, plainly, run_threads

SIZES = [4, 2, 3]
SGD: dict[str, Any] = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "clip_norm": 0.2}


class Tied(nn.Module):
    """A table that the front trains (``reads`` times) and the head reads, with a gradient or without: ``forward(x, y)``,
    floats ``(n, 6)`` and int64 ``(n,)`` -> loss."""

    def __init__(self, reads: int, head: str) -> None:
        super().__init__()
        self.e = nn.Linear(6, 6)
        self.mid = nn.Linear(6, 6)
        self.body = nn.Linear(6, 6)
        self.reads, self.head = reads, head

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        for _ in range(self.reads):
            x = self.e(x).tanh()
        x = self.body(self.mid(x).tanh())
        if self.head == "no_grad":
            with torch.no_grad():
                scale = self.e.weight.square().sum()
            return functional.cross_entropy(x * scale, y % 6)
        weight = self.e.weight.detach() if self.head == "detach" else self.e.weight
        return functional.cross_entropy(functional.linear(x, weight), y % 6)


def tied(reads: int, head: str) -> Callable[[], nn.Module]:
    def make() -> nn.Module:
        torch.manual_seed(0)
        return Tied(reads, head).train()

    return make


def batch(step: int, micro_batch: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(10 * step + micro_batch)
    return torch.randn(4, 6, generator=random), torch.randint(0, 6, (4,), generator=random)


@pytest.mark.parametrize("head", ["detach", "no_grad"])
@pytest.mark.parametrize("reads", [1, 2])
def test_a_read_without_gradient_in_another_stage(reads: int, head: str) -> None:
    job = job_of(steps=3, micro_batch_sizes=SIZES, optimizer=SGD)
    case = Case(job=job, make=tied(reads, head))
    truth = plainly(case)
    for devices in (("a", "b"), ("a", "b", "a")):
        ran = run_threads(replace(case, devices=devices, cut_seed=1))
        pieces = cut(case.graphs()[max(SIZES)], ran.plan.bounds)
        assert sum("e.weight" in piece.states for piece in pieces) > 1
        assert differing(truth.states, ran.states) == []
        assert ran.micro_losses == list(truth.micro_losses)


@pytest.mark.parametrize("reads", [1, 2])
def test_train_with_a_detached_head(reads: int) -> None:
    spec = OptimizerSpec.model_validate(SGD)
    truth = plain_loop(tied(reads, "detach")(), batch, steps=3, micro_batches=2, settings=PlainSettings(optimizer=spec))
    result = farflung.train(tied(reads, "detach")(), batch, steps=3, micro_batches=2, optimizer=spec, workers=2)
    assert result.losses == truth.losses
    assert differing(truth.states, result.states) == []


FROZEN = OptimizerSpec(name="adamw", lr=1e-2, groups=(GroupSpec(match=r"^e\.", frozen=True),))


def test_train_with_a_frozen_group_that_two_stages_read() -> None:
    module = tied(1, "grad")()
    before = {name: value.clone() for name, value in module.state_dict().items()}
    truth = plain_loop(tied(1, "grad")(), batch, steps=3, micro_batches=2, settings=PlainSettings(optimizer=FROZEN))
    result = farflung.train(module, batch, steps=3, micro_batches=2, optimizer=FROZEN, workers=2)
    assert result.losses == truth.losses
    assert differing(truth.states, result.states) == []
    assert torch.equal(torch.from_numpy(result.states["e.weight"]), before["e.weight"])
    assert not result.graph.state["e.weight"].trainable
    assert result.graph.state["mid.weight"].trainable


def test_train_with_everything_frozen() -> None:
    spec = OptimizerSpec(name="sgd", lr=0.1, groups=(GroupSpec(match=".", frozen=True),))
    with pytest.raises(
        InputError, match=r"every parameter is frozen: there is nothing to train; loosen optimizer=OptimizerSpec\(groups"
    ):
        farflung.train(tied(1, "grad")(), batch, steps=1, optimizer=spec, workers=1)


class Unfrozen(Case):
    """A bundle of a client that does not say in the graph what the job freezes."""

    def graphs(self) -> dict[int, Any]:
        sizes = self.job.micro_batch_sizes
        return {size: self.captured(sizes.index(size)) for size in sorted(set(sizes), reverse=True)}


def test_a_graph_that_does_not_say_what_is_frozen() -> None:
    job = job_of(steps=3, micro_batch_sizes=SIZES).model_copy(update={"optimizer": FROZEN})
    case = Unfrozen(job=job, make=tied(1, "grad"), devices=("a", "b"), cut_seed=1)
    ran = run_threads(case)
    truth = plainly(case)
    assert differing(truth.states, ran.states) == []


@pytest.mark.parametrize(("reads", "head", "sent"), [(1, "detach", 1), (2, "no_grad", 2), (1, "grad", 1)])
def test_the_plan_counts_what_is_exchanged(reads: int, head: str, sent: int) -> None:
    graph = capture(tied(reads, head)(), batch(0, 0))
    place = graph.position[next(op.name for op in graph.ops if "mid.weight" in tuple(op.states()))]
    pieces = cut(graph, [(0, place), (place, len(graph.ops))])
    size = 6 * 6 * 4.0
    back = [(1, 0, size)] if head == "grad" else []
    assert list(tied_exchanges(graph, pieces)) == [(0, 1, sent * size), *back]
