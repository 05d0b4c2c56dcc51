"""Contributions without a barrier: when they arrive, what they count, and that all members have the same common model."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.plan.synchronization import check_length
from farflung.sync import World, get_strategy
from farflung.sync.commands import Axpy, Exchange, Mean
from farflung.sync.local_step_counts import begun, ended, step_of, takes
from farflung.testing.replicas import Group
from tests.support.models.small_nets import flat, group, task, world
from tests.support.steps.executor_threads import EVERY_STEP, differing, other, run_threads
from tests.support.steps.small_runs import small_job
from tests.support.steps.strategy_cases import case_of, straight

NAMES = ["fedbuff", "fedfix", "fedcompass"]
#: The second member is half as fast as the first one, the third a sixth.
SPEEDS = (6, 3, 1)


def among(*steps: int, shares: tuple[float, ...] = ()) -> World:
    return replace(world(len(steps), shares=shares), local_steps=steps)


def of(name: str, here: World, **settings: Any) -> Group:
    return Group(get_strategy(name, **settings), here, task())


def arrivals(name: str, here: World, steps: int, **settings: Any) -> list[tuple[int, int]]:
    """(step, member) of what arrives."""
    strategy = get_strategy(name, **settings)
    programs = [(step, strategy.step(step, here)) for step in range(steps)]
    return [(step, command.group[0]) for step, program in programs for command in program.after if isinstance(command, Mean)]


def moves(name: str, here: World, steps: int, **settings: Any) -> list[int]:
    """The steps in which the common model moves."""
    strategy = get_strategy(name, **settings)
    return [
        step
        for step in range(steps)
        for command in strategy.step(step, here).after
        if isinstance(command, Axpy) and (command.into, command.x) == ("anchor", "buffer")
    ]


@pytest.mark.parametrize("steps", range(1, 7))
def test_local_steps_are_counted_as_they_are_taken(steps: int) -> None:
    taken = [step for step in range(40) if takes(step, steps, 6)]
    assert [step_of(number, steps, 6) for number in range(len(taken))] == taken
    assert [begun(step, steps, 6) for step in range(40)] == [sum(at <= step for at in taken) for step in range(40)]
    for step in range(39):
        assert ended(step, steps, 6) == (max(at for at in taken if at <= step) if step + 1 in taken or step == 41 else None)


@pytest.mark.parametrize("name", NAMES)
def test_of_equal_members_that_wait_for_each_other_it_is_local_sgd(name: str) -> None:
    settings: dict[str, Any] = {"buffer": 3} if name == "fedbuff" else {}
    found, local = group(name, sync_every=4, overlap=0, **settings), group("local_sgd", sync_every=4)
    found.run(12)
    local.run(12)
    np.testing.assert_allclose(flat(found), flat(local), rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("overlap", [0, 1, 3])
def test_all_members_have_the_same_model_in_every_step(name: str, overlap: int) -> None:
    found = of(name, among(*SPEEDS), sync_every=6, overlap=overlap)
    losses = []
    for _ in range(50):
        losses += found.run(1)
        models = [flat(found, rank, "anchor") for rank in range(3)]
        assert np.array_equal(models[0], models[1])
        assert np.array_equal(models[0], models[2])
    assert np.mean(losses[-5:]) < 0.75 * losses[0]
    assert {len(replica.queue) for replica in found.replicas} == {0}


def test_a_contribution_arrives_when_the_planned_speed_says() -> None:
    """Six local steps of the slow member are six periods."""
    found = arrivals("fedbuff", among(*SPEEDS), 40, sync_every=6, overlap=2)
    assert [step for step, member in found if member == 0] == [7, 13, 19, 25, 31, 37]
    assert [step for step, member in found if member == 1] == [13, 25, 37]
    assert [step for step, member in found if member == 2] == [37]
    assert found == sorted(found), "in the order of ranks"


def test_who_sends_is_the_only_one_who_sends() -> None:
    strategy, here = get_strategy("fedbuff", sync_every=6, overlap=1), among(*SPEEDS)
    for rank in range(3):
        (send,) = strategy.step(5, replace(here, rank=rank)).exchanges
        assert (send.senders, send.group, send.tag) == ((0,), (0, 1, 2), "5/0")
        assert [command.tag for command in strategy.step(6, replace(here, rank=rank)).after if isinstance(command, Mean)] == [
            "5/0"
        ]
        assert not any(isinstance(command, Exchange) for command in strategy.step(4, replace(here, rank=rank)).commands)


def test_the_model_moves_with_every_full_buffer() -> None:
    here = among(6, 6, 3)
    assert moves("fedbuff", here, 26, sync_every=6, overlap=0, buffer=2) == [5, 11, 17, 23, 23]
    assert moves("fedbuff", here, 26, sync_every=6, overlap=0) == [5, 11, 17, 23, 23], "half of three, rounded up"
    assert moves("fedbuff", here, 26, sync_every=6, overlap=0, buffer=5) == [11, 23]


def weights(name: str, here: World, step: int, **settings: Any) -> list[float]:
    commands = get_strategy(name, **settings).step(step, here).after
    return [command.a for command in commands if isinstance(command, Axpy) and command.x == "arrived"]


def test_stale_contributions_count_less() -> None:
    """The slow member began with the first model; until it arrives, the fast one has moved the model six times."""
    here = among(6, 1)
    assert weights("fedbuff", here, 5, sync_every=6, overlap=0, buffer=1) == [1.0]
    assert weights("fedbuff", here, 35, sync_every=6, overlap=0, buffer=1) == [1.0, pytest.approx(7**-0.5)]
    assert weights("fedbuff", here, 35, sync_every=6, overlap=0, buffer=1, decay=0.0) == [1.0, 1.0]
    late = weights("fedbuff", here, 71, sync_every=6, overlap=0, buffer=1)
    assert late == [1.0, pytest.approx(7**-0.5)], "it went on from the model that has its own contribution"


def test_a_fresh_contribution_is_not_stale_with_an_overlap() -> None:
    assert weights("fedbuff", among(6, 6), 6, sync_every=6, overlap=1, buffer=2) == [0.5, 0.5]
    assert weights("fedbuff", among(6, 6), 12, sync_every=6, overlap=1, buffer=2) == [pytest.approx(0.5 * 2**-0.5)] * 2


@given(data=st.data())
def test_staleness_is_how_often_the_model_moved_since_the_member_took_it(data: st.DataObject) -> None:
    """Against a model that is moved step by step, for any speeds."""
    period = data.draw(st.integers(2, 7))
    overlap, buffer = data.draw(st.integers(0, period - 1)), data.draw(st.integers(1, 4))
    speeds = (period, *data.draw(st.lists(st.integers(1, period), min_size=1, max_size=3)))
    here, settings = among(*speeds), {"sync_every": period, "overlap": overlap, "buffer": buffer}
    version, waiting, taken = 0, 0, [0] * len(speeds)
    began: dict[tuple[int, int], int] = {}
    done = [0] * len(speeds)
    for step in range(5 * period):
        finished = []
        for member, rate in enumerate(speeds):
            if ended(step, rate, period) is not None:
                done[member] += 1
                if done[member] % period == 0:
                    finished.append(member)
                    began[step, member] = taken[member]
        wanted, moved = [], []
        for member in (one for one in range(len(speeds)) if (step - overlap, one) in began):
            wanted.append((1 + version - began[step - overlap, member]) ** -0.5 / buffer)
            waiting += 1
            if waiting % buffer == 0:
                version += 1
                moved.append(step)
        for member in finished:
            taken[member] = version
        assert get_strategy("fedbuff", **settings).finished(step, here) == tuple(finished)  # type: ignore[attr-defined]
        assert weights("fedbuff", here, step, **settings) == pytest.approx(wanted)
        assert [at for at in moves("fedbuff", here, step + 1, **settings) if at == step] == moved


def test_members_count_by_their_samples() -> None:
    here = among(6, 6, shares=(0.75, 0.25))
    for name in ("fedfix", "fedcompass"):
        assert weights(name, here, 5, sync_every=6, overlap=0) == [0.75, 0.25]
    assert weights("fedbuff", here, 5, sync_every=6, overlap=0, buffer=2) == [0.75, 0.25]


def test_in_fedfix_members_that_come_seldom_count_as_much() -> None:
    here, total = among(*SPEEDS), np.zeros(3)
    assert moves("fedfix", here, 20, sync_every=6, window=4) == [3, 7, 11, 15, 19]
    assert moves("fedfix", here, 20, sync_every=6, window=4, overlap=2) == [1, 5, 9, 13, 17]
    for step in range(36):
        came = [member for at, member in arrivals("fedfix", here, 36, sync_every=6, overlap=0, window=4) if at == step]
        total[came] += weights("fedfix", here, step, sync_every=6, overlap=0, window=4)
    np.testing.assert_allclose(total, total[0])
    assert total.sum() == pytest.approx(36 / 4), "one model's worth for each window"


def test_in_fedcompass_arrivals_come_in_groups() -> None:
    """Three local steps are enough for a contribution; who takes one in a period arrives with the others of every third."""
    here = among(6, 4, 1)
    found = arrivals("fedcompass", here, 37, sync_every=6)
    assert found == [
        (5, 0),
        (5, 1),
        (11, 0),
        (11, 1),
        (17, 0),
        (17, 1),
        (17, 2),
        (23, 0),
        (23, 1),
        (29, 0),
        (29, 1),
        *[(35, member) for member in range(3)],
    ]
    assert moves("fedcompass", here, 37, sync_every=6) == [5, 11, 17, 23, 29, 35]
    assert weights("fedcompass", here, 17, sync_every=6, decay=0.0) == pytest.approx([6 / 11, 4 / 11, 3 / 11])
    assert weights("fedcompass", here, 17, sync_every=6)[2] == pytest.approx(3 / 11 * 3**-0.5)
    assert (17, 2) not in arrivals("fedcompass", here, 37, sync_every=6, least=6)


@pytest.mark.parametrize(
    ("name", "settings", "text"),
    [
        ("fedbuff", {"overlap": 10}, "overlap = 10 with sync_every = 10: a contribution must arrive before the next one leaves"),
        ("fedbuff", {"buffer": -1}, "buffer = -1: must be a whole number, 0 or more"),
        ("fedbuff", {"decay": -0.5}, "decay = -0.5: must be a number, at least 0"),
        ("fedfix", {"window": 1.5}, "window = 1.5: must be a whole number"),
        ("fedcompass", {"least": 11}, "least = 11 with sync_every = 10: the fastest member finishes as many in a period"),
        ("fedcompass", {"outer_lr": 0}, "outer_lr = 0: must be a number, above 0"),
    ],
)
def test_settings(name: str, settings: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        get_strategy(name, **settings)


@pytest.mark.parametrize(
    ("name", "settings", "least"),
    [
        ("fedbuff", {"sync_every": 4}, 4),
        ("fedbuff", {"sync_every": 4, "overlap": 1, "buffer": 2}, 5),
        ("fedfix", {"sync_every": 4, "window": 3}, 6),
        ("fedfix", {"sync_every": 4, "window": 9, "overlap": 2}, 11),
        ("fedcompass", {"sync_every": 4, "overlap": 2}, 6),
    ],
)
def test_a_run_that_ends_before_the_common_model_moves_is_refused(name: str, settings: dict[str, Any], least: int) -> None:
    found = of(name, among(settings["sync_every"], 1, 1), **settings | ({"buffer": 1} if name == "fedbuff" else {}))
    first = flat(found, 0, "anchor")
    found.run(least - 1)
    assert np.array_equal(flat(found, 0, "anchor"), first)
    found.run(1)
    assert not np.array_equal(flat(found, 0, "anchor"), first)

    check_length(get_strategy(name, **settings), small_job(steps=least))
    with pytest.raises(InputError, match=f"steps = {least - 1}: .* before step {least}, so the run would end with the weights"):
        check_length(get_strategy(name, **settings), small_job(steps=least - 1))


@pytest.mark.parametrize("name", NAMES)
def test_under_other_local_steps_a_run_continues_from_the_common_model(name: str, tmp_path: Path) -> None:
    """At step 4, the contribution of the first member is under way. By the new plan, one of the second member would be, too."""
    case = case_of(name, {"sync_every": 4, "overlap": 2}, grid=False, steps=9, checkpoint=EVERY_STEP)
    whole = run_threads(other(case, make=straight, root=tmp_path / "one", local_steps=(4, 2)))
    assert whole.store is not None
    resume = whole.store.checkpoints.path(4)
    again = run_threads(other(case, make=straight, root=tmp_path / "two", local_steps=(4, 4), resume=resume))
    assert [text for text in again.notes if "planned" in text] == [
        f"step 4: other local steps are planned: {name} continues from the common model"
    ]
    assert len(again.losses) == 5
    assert differing(again.held["a"], again.held["c"]) == []
