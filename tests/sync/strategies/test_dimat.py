"""Merges of replicas whose hidden units are first brought into one order."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from farflung.errors import InputError, PlanError
from farflung.sync import get_strategy
from farflung.sync.unit_matching import in_one_order, read_units
from tests.support.models.small_nets import flat, group, start, task, world
from tests.support.steps.executor_threads import EVERY_STEP, assert_goes_on, differing, other, run_threads
from tests.support.steps.strategy_cases import Scored, case_of, straight

UNITS = "0:1 1:0; 1:1 2:0"
#: The units of the first layer of ``straight``.
SHARED = "body.0.weight:0 body.0.bias:0 body.2.weight:1"


def test_models_in_other_orders_merge_without_loss() -> None:
    """The mean of a model and of the same model in another order is that model; local SGD's mean is another one."""
    found, plain = group("dimat", on=task(lr=0.0), sync_every=1, units=UNITS), group("local_sgd", on=task(lr=0.0), sync_every=1)
    for each in (found, plain):
        for replica in each.replicas[1:]:
            order = np.random.default_rng(replica.world.rank).permutation(8)
            first, second, third = start()
            replica.registers["parameters"] = [first[:, order], second[order], third]
    before = [flat(found, rank) for rank in range(3)]
    found.run(1)
    plain.run(1)
    for rank in range(3):
        np.testing.assert_allclose(flat(found, rank), before[rank], rtol=1e-12, err_msg="each in its own order")
    assert np.linalg.norm(flat(plain) - before[0]) > 0.5 * np.linalg.norm(before[0])
    found.end()
    for rank in range(3):
        np.testing.assert_allclose(flat(found, rank), before[0], rtol=1e-12)


def test_replicas_train_alone_between_merges() -> None:
    found, alone = group("dimat", sync_every=4, units=UNITS), group("local_sgd", sync_every=100)
    found.run(3)
    alone.run(3)
    for rank in range(3):
        assert np.array_equal(flat(found, rank), flat(alone, rank))
    found.run(1)
    alone.run(1)
    nets = [{str(layer): value for layer, value in enumerate(replica.parameters)} for replica in alone.replicas]
    for rank in range(3):
        rows = in_one_order(nets, read_units(UNITS), rank)
        mean = np.concatenate([np.mean([row[str(layer)] for row in rows], axis=0).reshape(-1) for layer in range(3)])
        np.testing.assert_allclose(flat(found, rank), mean, rtol=1e-10, atol=1e-12)


def test_workers_end_with_one_model_and_resume_between_merges(tmp_path: Path) -> None:
    settings = {"sync_every": 2, "units": SHARED}
    case = other(case_of("dimat", settings, grid=False, steps=5, checkpoint=EVERY_STEP), make=straight)
    ran = run_threads(case)
    assert differing(ran.held["a"], ran.held["c"]) == []
    assert [report.divergence is None for report in ran.reports] == [True, False] * 2 + [True]
    assert_goes_on(case, 3, tmp_path)


def test_workers_average_as_local_sgd_does_where_no_unit_changes_its_place() -> None:
    settings = {"sync_every": 2, "units": SHARED}
    ran = run_threads(other(case_of("dimat", settings, grid=False, steps=4), make=straight))
    local = run_threads(other(case_of("local_sgd", {"sync_every": 2}, grid=False, steps=4), make=straight))
    for name, value in local.states.items():
        np.testing.assert_allclose(ran.states[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


REFUSED = {
    "unknown": ("body.0.weigth:0", "units: unknown parameter 'body.0.weigth': did you mean 'body.0.weight'"),
    "axis": ("body.0.weight:2", "units: body.0.weight:2, and its shape is [8, 6]; take an axis below 2"),
    "sizes": ("body.0.weight:0 body.0.weight:1", "units: the axes of a group have one length, not"),
}


@pytest.mark.parametrize(("units", "text"), REFUSED.values(), ids=REFUSED)
def test_units_that_do_not_fit_the_model(units: str, text: str) -> None:
    with pytest.raises(PlanError) as caught:
        run_threads(other(case_of("dimat", {"units": units}, grid=False), make=straight))
    assert text in str(caught.value)


def chain() -> nn.Module:
    torch.manual_seed(1)
    return Scored(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 8)))


def test_units_of_two_stages_are_refused() -> None:
    units = "body.0.weight:0 body.0.bias:0 body.2.weight:1"
    with pytest.raises(PlanError) as caught:
        run_threads(other(case_of("dimat", {"units": units}), make=chain))
    text = "a group must be in one stage, not body.0.weight in stage 0, body.0.bias in stage 0, body.2.weight in stage 1"
    assert text in str(caught.value)


def wide() -> nn.Module:
    torch.manual_seed(1)
    return Scored(nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 7), nn.Tanh(), nn.Linear(7, 8)))


def test_each_stage_matches_the_units_that_it_has() -> None:
    """The second stage has the units between its two layers; the first one averages its own layer as it is."""
    settings = {"sync_every": 2, "units": "body.2.weight:0 body.2.bias:0 body.4.weight:1"}
    cut, whole = (run_threads(other(case_of("dimat", settings, grid=grid, steps=4), make=wide)) for grid in (True, False))
    for name, value in whole.states.items():
        np.testing.assert_allclose(cut.states[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


def test_units_are_needed_and_have_a_form() -> None:
    with pytest.raises(InputError, match="units = '': dimat matches hidden units before it averages"):
        get_strategy("dimat").init(world(3))
    with pytest.raises(InputError, match="units = 'up': write parameters with the axis of the units"):
        get_strategy("dimat", units="up")
