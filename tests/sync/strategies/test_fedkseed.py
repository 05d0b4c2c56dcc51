"""Local zeroth-order steps along a pool of directions: against the paper's algorithm, and on workers."""

from __future__ import annotations

import hashlib
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from farflung.codecs.keys import derive, signs
from farflung.errors import InputError, PlanError
from farflung.sync import get_strategy
from farflung.sync.commands import Replay
from farflung.sync.strategies.fedkseed import FedKSeed
from tests.support.models.small_nets import flat, gradient, group, start, task, world
from tests.support.steps.executor_threads import EVERY_STEP, assert_goes_on, differing, hand_plan, other, run_threads
from tests.support.steps.strategy_cases import SGD, Scored, case_of, straight
from tests.support.steps.strategy_specification import as_specified

REMEDY = "set optimizer.name = 'sgd', and remove momentum, weight_decay and groups"
SETTINGS: dict[str, Any] = {"sync_every": 3, "candidates": 5, "scale": 0.01, "bits": 32}


def of(**settings: Any) -> FedKSeed:
    found = get_strategy("fedkseed", **SETTINGS | settings)
    assert isinstance(found, FedKSeed)
    return found


def hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


def by_the_paper(rounds: int, members: int = 3, lr: float = 0.02) -> Any:
    """FedKSeed with sums for each of K seeds, from which every round builds the model anew, from the first parameters."""
    first, scale = start(), SETTINGS["scale"]
    pool = [hashed(f"0/candidate/{place}") for place in range(SETTINGS["candidates"])]
    sums = [0.0] * len(pool)

    def along(place: int) -> list[Any]:
        return [signs(derive(pool[place], str(layer)), w.size).reshape(w.shape).astype(float) for layer, w in enumerate(first)]

    def model() -> list[Any]:
        found = [w.copy() for w in first]
        for place, total in enumerate(sums):
            found = [w - lr * total * z for w, z in zip(found, along(place), strict=True)]
        return found

    for number in range(rounds):
        history = []
        for member in range(members):
            local = model()
            for step in range(number * SETTINGS["sync_every"], (number + 1) * SETTINGS["sync_every"]):
                place = hashed(f"0/{step}/{member}") % len(pool)
                there = gradient([w + scale * z for w, z in zip(local, along(place), strict=True)], step, member)[0]
                back = gradient([w - scale * z for w, z in zip(local, along(place), strict=True)], step, member)[0]
                slope = float(np.float32((there - back) / (2 * scale)))
                local = [w - lr * slope * z for w, z in zip(local, along(place), strict=True)]
                history.append((place, slope))
        for place, slope in history:
            sums[place] += slope / members
    return np.concatenate([w.reshape(-1) for w in model()])


def test_rounds_are_those_of_the_paper() -> None:
    found = group("fedkseed", on=task(lr=0.02), **SETTINGS)
    found.run(12)
    np.testing.assert_allclose(flat(found), by_the_paper(4), rtol=1e-9, atol=1e-12)
    assert np.array_equal(flat(found, 0), flat(found, 2))
    found.run(1)
    assert not np.array_equal(flat(found, 0), flat(found, 2)), "replicas train alone within a round"


def test_a_direction_is_drawn_once_for_all_who_took_it() -> None:
    strategy, here = of(candidates=2), world()
    seeds = {strategy.seed_of(step, member) for step in range(40) for member in range(3)}
    assert len(seeds) == 2, "all seeds are those of the candidates"
    replays = [command for command in strategy.step(2, here).after if isinstance(command, Replay)]
    assert [command.layers for command in replays] == [(0,), (1,), (2,)]
    assert replays[0].group == (0, 0, 0, 1, 1, 1, 2, 2, 2)
    assert set(replays[0].seeds) <= seeds


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"candidates": 0}, "candidates = 0: must be a whole number, 1 or more"),
        ({"bits": 12}, "bits = 12: a number is sent in 8, 16 or 32 bits"),
        ({"candidate": 8}, "strategy 'fedkseed' has no setting 'candidate': did you mean 'candidates'?"),
    ],
)
def test_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        of(**settings)
    assert str(caught.value).startswith(text)


@pytest.mark.parametrize("optimizer", [{"name": "adamw"}, {"momentum": 0.9}, {"weight_decay": 0.1}])
def test_an_optimizer_whose_steps_numbers_do_not_give_is_refused(optimizer: dict[str, Any]) -> None:
    with pytest.raises(PlanError, match=re.escape(REMEDY)):
        run_threads(case_of("fedkseed", SETTINGS, optimizer=SGD | optimizer))


def test_workers_do_what_the_specification_in_numpy_does() -> None:
    as_specified(other(case_of("fedkseed", SETTINGS, grid=False, steps=6), make=straight))


def test_no_cut_of_the_model_changes_a_run_and_replicas_end_equal() -> None:
    cut = run_threads(case_of("fedkseed", SETTINGS, steps=7))
    whole = run_threads(case_of("fedkseed", SETTINGS, steps=7, grid=False))
    assert differing(cut.states, whole.states) == []
    assert cut.losses == whole.losses
    assert differing(cut.held["a"], cut.held["c"]) == []
    six = run_threads(case_of("fedkseed", SETTINGS, steps=6, grid=False))
    assert differing(six.states, whole.states) == [], "a local step without a round is dropped"


def test_replicas_send_numbers_at_the_end_of_a_round_and_nothing_before() -> None:
    ran = run_threads(case_of("fedkseed", SETTINGS | {"bits": 16}, steps=6, grid=False))
    assert [sum(report.sent.values()) for report in ran.reports] == [0, 0, 6] * 2


@pytest.mark.parametrize("grid", [True, False], ids=["2 x 2", "2 x 1"])
@pytest.mark.parametrize("at", [2, 3])
def test_workers_resume_in_the_middle_of_a_round(at: int, grid: bool, tmp_path: Path) -> None:
    assert_goes_on(case_of("fedkseed", SETTINGS, steps=7, grid=grid, checkpoint=EVERY_STEP), at, tmp_path)


class _Bare(nn.Module):
    """All parameters are in the first stage; the second one only makes the loss."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.last = nn.Linear(6, 8), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = self.last(self.body(x))
        return found


def bare() -> nn.Module:
    torch.manual_seed(2)
    return Scored(_Bare())


def test_a_stage_without_parameters_may_make_the_loss() -> None:
    case = other(case_of("fedkseed", SETTINGS, steps=6), make=bare)
    plan = hand_plan(case, case.graphs()[4])
    assert plan.sync is not None
    assert [bool(layers) for layers in plan.sync.layers] == [True, False]
    ran = run_threads(case)
    whole = run_threads(other(case_of("fedkseed", SETTINGS, steps=6, grid=False), make=bare))
    assert differing(ran.states, whole.states) == []
    assert differing(ran.held["a"], ran.held["c"]) == []
