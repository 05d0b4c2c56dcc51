"""Anchors and miners: against the algorithm written out, and on workers."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.errors import InputError
from farflung.sync import get_strategy
from farflung.sync.commands import Exchange, Update
from farflung.sync.strategies.fedamd import FedAmd
from tests.support.models.small_nets import flat, gradient, group, start, world
from tests.support.steps.executor_threads import EVERY_STEP, assert_goes_on, differing, other, run_threads
from tests.support.steps.strategy_cases import assert_agreed, case_of, straight
from tests.support.steps.strategy_specification import as_specified


def of(**settings: Any) -> FedAmd:
    found = get_strategy("fedamd", **{"sync_every": 3} | settings)
    assert isinstance(found, FedAmd)
    return found


def by_hand(rounds: int, strategy: FedAmd, members: int = 5, lr: float = 0.1) -> Any:
    """Rounds of three steps, written out."""
    model, layers = start(), range(len(start()))
    own = [[np.zeros_like(w) for w in model] for _ in range(members)]
    for number in range(rounds):
        anchors, miners = strategy.roles(3 * number, members)
        common = [np.mean([one[i] for one in own], axis=0) for i in layers]
        steps, ends = range(3 * number, 3 * number + 3), []
        measured = {a: [gradient(model, step, a)[1] for step in steps] for a in anchors}
        for miner in miners:
            w = model
            for step in steps:
                found = gradient(w, step, miner)[1]
                w = [w[i] - lr * (found[i] - own[miner][i] + common[i]) for i in layers]
            ends.append(w)
        model = [np.mean([end[i] for end in ends], axis=0) for i in layers]
        for anchor, found in measured.items():
            own[anchor] = [np.mean([one[i] for one in found], axis=0) for i in layers]
    return np.concatenate([w.reshape(-1) for w in model])


@pytest.mark.parametrize("settings", [{}, {"anchors": 2}, {"anchors": 2, "sample": 4}, {"sample": 2, "seed": 3}])
def test_rounds_are_those_written_out(settings: dict[str, Any]) -> None:
    strategy = of(**settings)
    found = group(strategy, members=5)
    found.run(21)
    assert {member for step in range(0, 21, 3) for member in strategy.roles(step, 5)[0]} > {0, 1}, "several have been anchors"
    for rank in range(5):
        np.testing.assert_allclose(flat(found, rank), by_hand(7, strategy), rtol=1e-9, atol=1e-12)


def test_the_common_gradient_is_the_mean_of_all_anchor_gradients() -> None:
    found = group(of(anchors=2), members=4)
    found.run(30)
    mean = np.mean([flat(found, rank, "own_anchor") for rank in range(4)], axis=0)
    assert np.abs(mean).max() > 0
    for rank in range(4):
        np.testing.assert_allclose(flat(found, rank, "anchor_mean"), mean, rtol=1e-9, atol=1e-12)


def test_anchors_keep_their_parameters_and_who_is_not_drawn_rests() -> None:
    strategy, here = of(anchors=1, sample=3), world(5)
    anchors, miners = strategy.roles(0, 5)
    assert (len(anchors), len(miners)) == (1, 2)
    for rank in range(5):
        program = strategy.step(1, replace(here, rank=rank))
        assert any(isinstance(command, Update) for command in program.after) == (rank in miners)
        assert program.rests == (rank in strategy.resting(1, 5)) == (rank not in (*anchors, *miners))
        sent = [c for c in strategy.step(2, replace(here, rank=rank)).after if isinstance(c, Exchange) and rank in c.senders]
        assert [command.source for command in sent] == ["fresh_anchor"] * (rank in anchors) + ["parameters"] * (rank in miners)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"anchors": 0}, "anchors = 0: must be a whole number, 1 or more"),
        ({"sample": 4}, "sample = 4 in a group of 3: set it to at most 3"),
        ({"anchors": 3}, "anchors = 3 of 3 replicas that take part: at least one must train; set anchors to at most 2"),
        ({"anchors": 2, "sample": 2}, "at least one must train; set anchors to at most 1, or raise sample"),
        ({"anchor": 1}, "strategy 'fedamd' has no setting 'anchor': did you mean 'anchors'?"),
    ],
)
def test_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError) as caught:
        of(**settings).init(world(3))
    assert text in str(caught.value)


def test_workers_do_what_the_specification_in_numpy_does() -> None:
    as_specified(other(case_of("fedamd", {"sync_every": 2}, grid=False, steps=7), make=straight))


#: Three pipelines of one stage.
THREE = {0: [("a", range(1)), ("b", range(1, 2)), ("c", range(2, 4))]}


@pytest.mark.parametrize("at", [3, 4])
def test_workers_resume_in_the_middle_of_a_round(at: int, tmp_path: Path) -> None:
    case = case_of("fedamd", {"sync_every": 3, "sample": 2, "codec": "int8"}, grid=False, steps=7, checkpoint=EVERY_STEP)
    assert_goes_on(other(case, replicas=THREE, make=straight), at, tmp_path)


def test_two_stages_and_tied_parameters_train_as_one_stage_does() -> None:
    cut, whole = (run_threads(case_of("fedamd", {"sync_every": 2}, steps=6, grid=grid)) for grid in (True, False))
    for name, value in whole.states.items():
        np.testing.assert_allclose(cut.states[name], value, rtol=2e-5, atol=1e-6, err_msg=name)
    assert_agreed("fedamd", cut.held["a"], cut.held["c"])
    assert differing(whole.held["a"], whole.held["c"]) == []
