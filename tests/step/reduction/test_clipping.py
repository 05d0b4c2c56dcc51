"""Clipping by the norm of the step before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farflung.engines.base import Array
from farflung.errors import InputError, PlanError, WireError
from farflung.job.load import make_job
from farflung.messages.data import PreviousNorms
from farflung.step.inbox import Inbox
from farflung.step.reduction.clipping import PreviousNorm
from farflung.step.run_setup import RunSetup
from farflung.step.transfer.outbox import Outbox
from tests.support.steps.executor_threads import EVERY_STEP, Case, assert_goes_on, differing, hand_plan, other, run_threads
from tests.support.steps.strategy_cases import SETTINGS, SGD, assert_agreed, case_of, close, straight

CLIPPED = SGD | {"clip_norm": 0.3, "clip_by": "previous"}


def clipped(strategy: str, grid: bool = True, **changes: Any) -> Case:
    return case_of(strategy, SETTINGS.get(strategy), grid=grid, **({"optimizer": CLIPPED, "steps": 4} | changes))


def by_hand(case: Case) -> tuple[dict[str, Array], list[float]]:
    """A plain loop over all micro-batches; and the factors."""
    module, before, factors = straight(), None, []
    for step in range(case.job.steps):
        module.zero_grad()
        for index in range(case.job.micro_batches):
            (case.job.weight(index) * module(*case.batches(step, index))).backward()  # type: ignore[no-untyped-call]
        grads = [p.grad for p in module.parameters() if p.grad is not None]
        factors.append(1.0 if before is None else min(1.0, 0.3 / (before + 1e-6)))
        before = float(torch.stack([g.norm() for g in grads]).norm())
        with torch.no_grad():
            for value in module.parameters():
                assert value.grad is not None
                value.sub_(value.grad, alpha=case.job.optimizer.lr * factors[-1])
    return {name: value.detach().numpy() for name, value in module.named_parameters()}, factors


@pytest.mark.parametrize("grid", [True, False], ids=["2 x 2", "2 x 1"])
@pytest.mark.parametrize("strategy", ["ssgd", "wfbp", "asc_wfbp"])
def test_means_are_clipped_as_a_plain_loop_does_it(strategy: str, grid: bool) -> None:
    case = other(clipped(strategy, grid), make=straight)
    found, factors = by_hand(case)
    assert factors[0] == 1.0
    assert max(factors[1:]) < 1.0, "the test clips"
    ran = run_threads(case)
    for name, value in found.items():
        np.testing.assert_allclose(ran.states[name], value, rtol=2e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize("strategy", ["local_sgd", "diloco", "delayed"])
def test_a_cut_into_stages_changes_no_norm(strategy: str) -> None:
    """Strategies whose sets of layers are those of stages have other sets."""
    close(run_threads(clipped(strategy)), run_threads(clipped(strategy, grid=False)))


def test_layers_that_are_updated_early_are_clipped() -> None:
    plain = run_threads(clipped("free_sets", optimizer=SGD))
    ran = run_threads(clipped("free_sets"))
    assert differing(plain.states, ran.states) != []
    assert_agreed("free_sets", ran.held["a"], ran.held["c"])


@pytest.mark.parametrize(("strategy", "grid"), [("free_sets", True), ("free_sets", False)], ids=["2 x 2", "2 x 1"])
def test_a_run_goes_on_with_the_norm_that_it_had(strategy: str, grid: bool, tmp_path: Path) -> None:
    assert_goes_on(clipped(strategy, grid, steps=6, checkpoint=EVERY_STEP), 3, tmp_path)


def test_what_can_not_be_clipped_so_is_refused() -> None:
    for document, strategy, norm in (
        ({"optimizer": CLIPPED}, "exact", "0.3"),
        ({"optimizer": SGD | {"clip_by": "previous"}, "sync": {"strategy": "wfbp"}}, "wfbp", "None"),
    ):
        with pytest.raises(InputError) as caught:
            make_job({"plan": {"replicas": 2}} | document)
        assert str(caught.value).endswith(
            "optimizer.clip_by = 'previous' is for sync strategies that do not know all gradients in time, with a clip_norm; "
            f"here strategy = '{strategy}' and clip_norm = {norm}: remove clip_by"
        )
    with pytest.raises(PlanError, match="seed_and_scalar estimates gradients from one number of each replica"):
        run_threads(clipped("seed_and_scalar"))


class Quiet(Outbox):
    def __init__(self) -> None:
        pass


def test_norms_that_belong_to_nobody_are_refused() -> None:
    def norm_of(case: Case) -> PreviousNorm:
        graphs = case.graphs()
        plan = hand_plan(case, graphs[max(graphs)])
        setup = RunSetup(run="run", device="a", job=case.job, plan=plan, graphs=graphs, eval_graph=None)
        return PreviousNorm(setup, Inbox(), Quiet())

    told = PreviousNorms(run="run", step=1, norms={"x": 1.0})
    norm_of(clipped("free_sets")).receive("b", told)
    with pytest.raises(WireError, match="c does not report norms to this worker in this run"):
        norm_of(clipped("free_sets")).receive("c", told)
    with pytest.raises(WireError, match="b does not report norms to this worker in this run"):
        norm_of(clipped("free_sets", optimizer=SGD)).receive("b", told)
