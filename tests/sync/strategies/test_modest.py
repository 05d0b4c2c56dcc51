"""Samples of the replicas: who trains, who averages, and what travels."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.errors import InputError
from farflung.sync import get_strategy
from farflung.sync.commands import Exchange, Mean, Update
from farflung.sync.strategies.modest import Modest
from tests.support.models.small_nets import flat, group, world
from tests.support.steps.executor_threads import EVERY_STEP, assert_goes_on, differing, other, run_threads
from tests.support.steps.strategy_cases import assert_agreed, case_of, straight


def of(**settings: Any) -> Modest:
    found = get_strategy("modest", **{"sync_every": 4, "sample": 2} | settings)
    assert isinstance(found, Modest)
    return found


def test_a_sample_of_all_is_local_sgd() -> None:
    found, local = group("modest", sync_every=4, sample=3, aggregators=2), group("local_sgd", sync_every=4)
    found.run(12)
    local.run(12)
    for rank in range(3):
        assert np.array_equal(flat(found, rank), flat(local, rank))


def test_samples_change_with_the_period_and_all_take_their_turn() -> None:
    strategy = of()
    samples = [strategy.sampled(period, 5) for period in range(40)]
    assert {len(set(sample)) for sample in samples} == {2}
    assert {member for sample in samples for member in sample} == set(range(5))
    assert samples != [of(seed=1).sampled(period, 5) for period in range(40)]
    for step in range(12):
        resting = {rank for rank in range(5) if strategy.step(step, replace(world(5), rank=rank)).rests}
        assert resting == strategy.resting(step, 5) == set(range(5)) - set(samples[step // 4])


def test_who_rests_does_nothing_and_the_next_sample_has_the_mean() -> None:
    found = group("modest", members=5, sync_every=4, sample=2, aggregators=2)
    strategy = of(aggregators=2)
    now, following = strategy.sampled(0, 5), strategy.sampled(1, 5)
    before = [flat(found, rank) for rank in range(5)]
    found.run(3)
    for rank in set(range(5)) - set(now):
        assert np.array_equal(flat(found, rank), before[rank])
    local = group("local_sgd", sync_every=9, members=5)
    local.run(4)
    found.run(1)
    mean = np.mean([flat(local, rank) for rank in now], axis=0)
    for rank in {0, *following}:
        np.testing.assert_allclose(flat(found, rank), mean, rtol=1e-12)
    for rank in set(range(1, 5)) - set(now) - set(following):
        assert np.array_equal(flat(found, rank), before[rank])


def test_the_first_member_has_the_newest_mean_also_while_it_rests() -> None:
    """Its parameters are those of checkpoints and evaluations."""
    found, strategy = group("modest", members=5, sync_every=4, sample=2), of()
    rested = [period for period in range(1, 12) if 0 not in strategy.sampled(period, 5)]
    assert rested
    for period in range(1, 12):
        found.run(4)
        assert np.array_equal(flat(found), flat(found, strategy.sampled(period, 5)[0])), period


def test_only_the_sample_sends_and_only_aggregators_and_the_next_sample_take() -> None:
    strategy, here = of(sample=3, aggregators=2), world(6)
    now, following = strategy.sampled(0, 6), strategy.sampled(1, 6)
    for rank in range(6):
        program = strategy.step(3, replace(here, rank=rank))
        own = [command for command in program.after if isinstance(command, Exchange) and rank in command.senders]
        up = [command for command in own if "/up/" in command.tag]
        assert sorted(layer for command in up for layer in command.layers) == ([0, 1, 2] if rank in now else [])
        down = [command for command in own if "/down/" in command.tag]
        assert bool(down) == (rank in following[:2])
        taken = [command for command in program.after if isinstance(command, Mean) and "/down/" in command.tag]
        assert sorted(layer for command in taken for layer in command.layers) == ([0, 1, 2] if rank in {0, *following} else [])
        assert any(isinstance(command, Update) for command in program.after) == (rank in now)


def test_a_link_is_counted_with_what_it_carries_on_average() -> None:
    """Three copies to the aggregators, three back, and in half of the periods one to the first member, over thirty links."""
    assert of(sample=3).traits.link_share(6) == pytest.approx(6.5 / 30)


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"aggregators": 3}, "aggregators = 3 with sample = 2: they are taken from the next sample"),
        ({"sample": 0}, "sample = 0: must be a whole number, 1 or more"),
        ({"sample": 4}, "sample = 4 in a group of 3: set it to at most 3"),
    ],
)
def test_settings(settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        of(**settings).init(world(3))


#: Three pipelines of one stage.
THREE = {0: [("a", range(1)), ("b", range(1, 2)), ("c", range(2, 4))]}


@pytest.mark.parametrize("settings", [{"sample": 1}, {"sample": 2, "aggregators": 2, "codec": "int8"}], ids=["one", "two"])
@pytest.mark.parametrize("at", [2, 3])
def test_workers_resume_in_the_middle_of_a_period(settings: dict[str, Any], at: int, tmp_path: Path) -> None:
    case = case_of("modest", {"sync_every": 2} | settings, grid=False, steps=7, checkpoint=EVERY_STEP)
    assert_goes_on(other(case, replicas=THREE, make=straight), at, tmp_path)


def test_workers_rest_and_end_with_the_same_model() -> None:
    case = other(case_of("modest", {"sync_every": 2, "sample": 1}, grid=False, steps=6), replicas=THREE, make=straight)
    ran = run_threads(case)
    strategy = of(sync_every=2, sample=1)
    batches = {rank: len(held[1]) for rank, held in enumerate(THREE[0])}
    assert [len(report.losses) for report in ran.reports] == [batches[strategy.sampled(step // 2, 3)[0]] for step in range(6)]
    assert differing(ran.held["a"], ran.held["b"]) == []
    assert differing(ran.held["a"], ran.held["c"]) == []
    plain = run_threads(other(case_of("local_sgd", {"sync_every": 2}, grid=False, steps=6), replicas=THREE, make=straight))
    full = run_threads(
        other(case_of("modest", {"sync_every": 2, "sample": 3}, grid=False, steps=6), replicas=THREE, make=straight)
    )
    assert_agreed("modest", plain.held["a"], full.held["a"])
