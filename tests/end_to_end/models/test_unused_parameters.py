"""A parameter without a gradient behaves as in PyTorch: nothing updates it, and checkpoints and exports contain it."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung import train
from farflung.api import capture
from farflung.api.submission import freeze
from farflung.engines.base import Array
from farflung.errors import InputError
from farflung.job.spec import OptimizerSpec
from farflung.sync import STRATEGIES, get_strategy
from tests.support.steps.executor_threads import (
    Case,
    assert_goes_on,
    differing,
    job_of,
    newest,
    other,
    plainly,
    random_batches,
    run_threads,
)

#: Nothing may change these; the first part of the name tells why.
STILL = ("unused", "unread", "free", "spare", "watched", "detached", "fixed", "judge")


class Idle(nn.Module):
    """Every kind of state that gets no gradient, next to three layers that do."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.mid, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 8)
        self.unused = nn.Linear(4, 4)
        self.unread = nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.Linear(3, 5))
        self.free = nn.Parameter(torch.randn(5))
        self.register_buffer("spare", torch.randn(2, 3))
        self.watched = nn.Linear(8, 8)
        self.detached = nn.Parameter(torch.randn(8))
        self.fixed = nn.Linear(8, 8).requires_grad_(False)
        self.judge = nn.Parameter(torch.full((8,), 2.0))

    def forward(self, x: Tensor, y: Tensor) -> Tensor:
        x = self.up(x).tanh()
        with torch.no_grad():
            shift = self.watched(x)
        x = self.mid(x + self.fixed(x)) + shift + self.watched(x).detach()
        x = self.out(x) * self.detached.detach()
        return functional.cross_entropy(x if self.training else x * self.judge, y)


def idle() -> nn.Module:
    torch.manual_seed(0)
    return Idle().train()


def still(states: dict[str, Array] | Any) -> None:
    """The states without a gradient are there, bit for bit as they were at the beginning."""
    begin = {name: value.numpy() for name, value in idle().state_dict().items() if name.startswith(STILL)}
    assert len(begin) == 16
    assert differing(begin, {name: value for name, value in states.items() if name.startswith(STILL)}) == []


SGD = {"name": "sgd", "lr": 0.1, "momentum": 0.9, "weight_decay": 0.1}
ADAMW = {"name": "adamw", "lr": 1e-2, "weight_decay": 0.5}


def case_of(**changes: Any) -> Case:
    job = job_of(**{"micro_batch_sizes": [4, 2, 3, 4], "optimizer": ADAMW} | changes)
    return Case(job=job, devices=("a", "b", "c"), make=idle, cut_seed=1)


def equals_plain(case: Case) -> None:
    truth, ran = plainly(case), run_threads(case)
    assert [tuple(losses) for losses in ran.micro_losses] == list(truth.micro_losses)
    assert differing(truth.gradients, ran.gradients) == []
    assert differing(truth.states, ran.states) == []
    still(ran.states)
    assert not any(name.startswith(STILL) for name in ran.gradients)


OPTIMIZERS = {"adamw": ADAMW, "sgd": SGD, "clipped": ADAMW | {"clip_norm": 0.05}}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
@pytest.mark.parametrize("devices", ["a", "ab", "abc"])
def test_stages_equal_a_plain_loop(optimizer: dict[str, Any], devices: str) -> None:
    equals_plain(other(case_of(optimizer=optimizer), devices=tuple(devices)))


REPLICAS = {0: [("a", range(2)), ("d", range(2, 4))], 1: [("b", range(1)), ("c", range(1, 4))]}


@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS)
def test_replicas_equal_a_plain_loop(optimizer: dict[str, Any]) -> None:
    equals_plain(other(case_of(optimizer=optimizer), devices=("a", "b"), replicas=REPLICAS))


def test_recomputing_equals_a_plain_loop() -> None:
    equals_plain(other(case_of(), recompute=True))


def plain_pytorch(steps: int, micro_batches: int, clip: float | None) -> nn.Module:
    """The loop that a user writes, without anything of farflung."""
    module, batch = idle(), random_batches([4] * micro_batches)
    optimizer = torch.optim.AdamW(module.parameters(), lr=1e-2)
    for step in range(steps):
        optimizer.zero_grad()
        for index in range(micro_batches):
            (module(*batch(step, index)) / micro_batches).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(module.parameters(), clip)
        optimizer.step()
    return module


@pytest.mark.parametrize("clip", [None, 0.05], ids=["free", "clipped"])
@pytest.mark.parametrize("workers", [1, 3])
def test_train_equals_the_loop_that_a_user_writes(workers: int, clip: float | None) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        expected = {name: value.numpy() for name, value in plain_pytorch(4, 2, clip).state_dict().items()}
        spec = OptimizerSpec(name="adamw", lr=1e-2, clip_norm=clip)
        result = train(idle(), random_batches([4, 4]), steps=4, micro_batches=2, optimizer=spec, workers=workers)
    finally:
        torch.set_num_threads(before)
    assert differing(expected, result.state_dict()) == []
    copy.deepcopy(idle()).load_state_dict({name: torch.from_numpy(value.copy()) for name, value in result.state_dict().items()})


def test_checkpoints_hold_what_has_no_gradient_and_a_resume_goes_on(tmp_path: Path) -> None:
    case = case_of(steps=4, checkpoint={"every": 1, "at_end": False, "keep": 99})
    assert_goes_on(case, 2, tmp_path)
    ran = run_threads(other(case, root=tmp_path / "again"))
    reader = newest(ran)
    still(reader.read(reader.manifest.states))
    slots = {name.rpartition("/")[2] for name in reader.manifest.home if "/" in name}
    assert slots == {f"{layer}.{kind}" for layer in ("up", "mid", "out") for kind in ("weight", "bias")}


def test_a_parameter_that_only_evaluation_reads_keeps_its_value() -> None:
    job = case_of().job
    job = job.model_copy(update={"evaluate": job.evaluate.model_copy(update={"batches": 1})})
    case = other(case_of(), job=job, evaluation=True, batch=random_batches([4, 2, 3, 4]))
    ran = run_threads(case)
    module = idle()
    module.load_state_dict({name: torch.from_numpy(np.array(value)) for name, value in ran.states.items()})
    with torch.no_grad():
        expected = float(module.eval()(*case.batches(-2, 0)))
    assert ran.evaluations[job.steps]["loss"] == expected
    still(ran.states)


#: Settings without which a strategy asks for more layers, replicas or steps than this run has.
SMALL: dict[str, dict[str, int | str]] = {
    "fedkseed": {"sync_every": 2},
    "fedamd": {"sync_every": 2},
    "dimat": {"units": "mid.bias:0"},
    "streaming_diloco": {"fragments": 1},
    **{name: {"sync_every": 2} for name in ("fedbuff", "fedcompass", "fedfix")},
    **{name: {"sync_every": 1} for name in ("contiguous", "dreamddp", "free_sets", "partial")},
}


PARTS = (range(2), range(2, 3), range(3, 4))


@pytest.mark.parametrize("strategy", list(STRATEGIES))
def test_sync_strategies_leave_it_alone(strategy: str, tmp_path: Path) -> None:
    case = other(
        case_of(
            steps=4,
            sync={"strategy": strategy, "settings": SMALL.get(strategy, {})},
            plan={"replicas": 3},
            optimizer={"name": "sgd", "lr": SGD["lr"]} if get_strategy(strategy).traits.plain_sgd else SGD,
            checkpoint={"every": 2, "keep": 9},
        ),
        devices=("a", "b"),
        replicas={stage: list(zip(names, PARTS, strict=True)) for stage, names in enumerate(("acf", "bdg"))},
        root=tmp_path,
    )
    ran = run_threads(case)
    reader = newest(ran)
    still(reader.read(reader.manifest.states))
    begin = {name: value.numpy() for name, value in idle().state_dict().items()}
    for held in ran.held.values():
        assert [name for name in held if name.startswith(STILL) and differing({name: begin[name]}, {name: held[name]})] == []
    trained = reader.read(["mid.weight"])["mid.weight"]
    assert not np.array_equal(trained, begin["mid.weight"])


def test_the_graph_names_what_is_trained() -> None:
    graph = capture(idle(), random_batches([4])(0, 0))
    assert {name.partition(".")[0] for name in graph.trained} == {"up", "mid", "out"}
    assert graph.gradient_uses["unused.weight"] == ()
    assert graph.state["unused.weight"].trainable


def test_a_job_that_freezes_all_that_gets_a_gradient_is_refused() -> None:
    job = job_of(optimizer={"name": "sgd", "lr": 0.1, "groups": [{"match": "^(up|mid|out)", "frozen": True}]})
    graph = capture(idle(), random_batches([4])(0, 0))
    with pytest.raises(
        InputError, match=r"no gradient reaches a parameter that is not frozen: there is nothing to train; loosen"
    ):
        freeze(graph, job)
