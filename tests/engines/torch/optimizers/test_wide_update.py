"""Parameters in bfloat16 that are updated in float32: the bits of a plain loop, on any number of workers and after a resume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farflung.engines.torch.optimizers.wide_update import WideOptimizer, rounded
from farflung.errors import CheckpointError, InputError
from farflung.job import JobSpec
from farflung.job.spec import OptimizerSpec
from farflung.optim import state_bytes
from tests.support.steps.executor_threads import (
    EVERY_STEP,
    Case,
    assert_goes_on,
    calm_tangle,
    differing,
    job_of,
    plainly,
    run_threads,
)

WAYS = ["master", "stochastic"]


def narrow() -> nn.Module:
    """Its parameters are bfloat16, and its norm computes in float32."""
    module = calm_tangle().bfloat16()
    return Narrow(module.up, module.mix, module.last)


class Narrow(nn.Module):
    def __init__(self, up: nn.Linear, mix: nn.Linear, last: nn.Linear) -> None:
        super().__init__()
        self.up, self.mix, self.last = up, mix, last
        self.layer = nn.LayerNorm(8)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        z = self.mix(self.up(x.bfloat16()).tanh())
        z = self.layer((z + self.mix(z)).float()).bfloat16()
        return nn.functional.cross_entropy(self.last(z).float(), y)


def case(update: str, **changes: Any) -> Case:
    optimizer = {"name": "adamw", "lr": 1e-2, "update": update}
    return Case(job=job_of(optimizer=optimizer, steps=6, **changes), devices=("a", "b", "a"), make=narrow, cut_seed=3)


@pytest.mark.parametrize("update", WAYS)
def test_stages_equal_a_plain_loop(update: str) -> None:
    given = case(update)
    truth, ran = plainly(given), run_threads(given)
    assert differing(truth.states, ran.states) == []
    assert differing(plainly(case("plain")).states, ran.states), "the parameters' own type gives other weights"


@pytest.mark.parametrize("update", WAYS)
def test_a_run_resumes(update: str, tmp_path: Path) -> None:
    assert_goes_on(case(update, checkpoint=EVERY_STEP), 3, tmp_path)


def test_masters_are_those_of_a_loop_in_plain_pytorch() -> None:
    narrow, loop = (nn.Parameter(torch.linspace(-1, 1, 50).bfloat16()) for _ in range(2))
    spec = OptimizerSpec(name="adamw", lr=1e-4)
    ours = WideOptimizer(spec.model_copy(update={"update": "master"}), {"w": narrow}, 0)
    master = nn.Parameter(loop.detach().float())
    theirs = torch.optim.AdamW([master], lr=1e-4)
    for step in range(30):
        gradient = torch.randn(50, generator=torch.Generator().manual_seed(step)).bfloat16()
        narrow.grad, master.grad = gradient, gradient.float()
        ours.step([1e-4])
        theirs.step()
        loop.data.copy_(master)
    assert torch.equal(narrow, loop)
    assert ours.export()["master/w"].tobytes() == master.detach().numpy().tobytes()


def test_rounding_is_to_a_neighbor_and_exact_on_average() -> None:
    wide = torch.full((40_000,), 1.0 + 1 / 512)  # a quarter of the way between two numbers
    found = rounded(wide, 7).float()
    assert set(found.tolist()) == {1.0, 1.0 + 1 / 128}
    assert float(found.mean()) == pytest.approx(1.0 + 1 / 512, abs=1e-4)
    assert torch.equal(found, rounded(wide, 7).float())
    assert not torch.equal(found, rounded(wide, 8).float())


def test_what_bfloat16_has_stays() -> None:
    exact = torch.tensor([0.0, -0.0, 1.5, -3.0, float("inf"), -float("inf"), 3.3895e38]).bfloat16()
    assert torch.equal(rounded(exact.float(), 1), exact)
    assert rounded(torch.tensor([float("nan")]), 1).isnan().all()


def test_float16_is_not_rounded_at_random() -> None:
    spec = OptimizerSpec(name="sgd", update="stochastic")
    with pytest.raises(InputError, match="rounds to bfloat16 only, and 'w' is float16: use 'master', or bfloat16"):
        WideOptimizer(spec, {"w": nn.Parameter(torch.ones(3).half())}, 0)


def test_a_copy_of_another_shape_is_refused() -> None:
    optimizer = WideOptimizer(OptimizerSpec(name="sgd", update="master"), {"w": nn.Parameter(torch.ones(3).bfloat16())}, 0)
    with pytest.raises(CheckpointError, match=r"optimizer state 'master/w' has shape \(2,\), its parameter \(3,\)"):
        optimizer.load({"master/w": np.ones(2, np.float32)})


def test_plans_count_the_copies() -> None:
    given = case("master")
    graph = next(iter(given.graphs().values()))
    narrow = sum(graph.state[name].spec.numel for name in graph.trained if graph.state[name].spec.dtype == "bfloat16")
    rest = sum(graph.state[name].spec.numel for name in graph.trained) - narrow
    largest = max(graph.state[name].spec.numel for name in graph.trained if graph.state[name].spec.dtype == "bfloat16")
    found = {update: state_bytes(OptimizerSpec(name="adamw", update=update), graph, graph.trained) for update in WAYS}
    assert found == {
        "master": 12 * narrow + 8 * rest + 8 * largest,
        "stochastic": 8 * narrow + 8 * rest + 16 * largest,
    }


def test_replicas_that_train_alone_are_refused() -> None:
    with pytest.raises(InputError, match=r"optimizer.update = 'master' with sync.strategy = 'diloco': only the optimizer may"):
        job_of(optimizer={"update": "master"}, sync={"strategy": "diloco"}, plan={"replicas": 2})
    assert JobSpec().optimizer.update == "plain"
