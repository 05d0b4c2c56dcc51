"""The task pool by hand: who gets what, when others may have it, and what is discarded."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import InputError
from farflung.protocol.pool.pool_events import (
    Accept,
    Answered,
    Discard,
    Do,
    Give,
    GradientCame,
    HelperCame,
    HelperWent,
    InputCame,
    PeerFree,
    PoolCommand,
    SendStates,
    ServerFree,
    StepBegan,
    Task,
    TaskKind,
    TimePassed,
)
from farflung.protocol.pool.pool_state import soonest_shares
from farflung.protocol.pool.task_pool import InOrder, Patience, TaskPool, shares_of

PATIENCE = Patience(least=1.0, factor=2.0, first=5.0)


def forward(index: int, step: int = 0) -> Task:
    return Task(step=step, kind=TaskKind.FORWARD, index=index)


def backward(index: int, step: int = 0) -> Task:
    return Task(step=step, kind=TaskKind.BACKWARD, index=index)


def begun(helpers: str, slices: int, speed: float = 1.0) -> tuple[TaskPool, list[PoolCommand]]:
    """A pool with all inputs of its first step."""
    pool = TaskPool("s", room=slices, helper_room=slices, patience=PATIENCE)
    for helper in helpers:
        assert pool.handle(HelperCame(helper=helper, speed=speed, now=0.0)) == []
    told = pool.handle(StepBegan(step=0, slices=tuple(range(slices)), now=0.0))
    told += pool.handle(InputCame(indices=tuple(range(slices)), now=0.0))
    return pool, told


def answer(pool: TaskPool, device: str, task: Task, now: float = 1.0, seconds: float = 1.0) -> list[PoolCommand]:
    return pool.handle(Answered(device=device, task=task, seconds=seconds, now=now))


def test_shares_go_by_power():
    assert shares_of([1.0, 1.0, 2.0], 8) == [2, 2, 4]
    assert shares_of([1.0, 1.0, 1.0], 4) == [2, 1, 1]
    assert shares_of([5.0], 0) == [0]
    with pytest.raises(InputError, match="shares need powers above 0, got \\[\\]"):
        shares_of([], 3)


@given(st.lists(st.floats(1e-3, 1e6), min_size=1, max_size=8), st.integers(0, 50))
def test_shares_are_whole_and_near(power: list[float], count: int):
    found = shares_of(power, count)
    assert sum(found) == count
    for one, share in zip(power, found, strict=True):
        assert abs(share - count * one / sum(power)) <= 1 + 1e-6


def test_a_helper_gets_states_then_its_run_of_slices():
    pool, told = begun("ab", 6)
    assert told[0:2] == [SendStates(helper="a", step=0), SendStates(helper="b", step=0)]
    # the server's run is 0 and 1, then a's, then b's; each holds two at a time
    assert [c for c in told if isinstance(c, Give)] == [
        Give(helper="a", task=forward(2)),
        Give(helper="a", task=forward(3)),
        Give(helper="b", task=forward(4)),
        Give(helper="b", task=forward(5)),
    ]
    assert pool.handle(ServerFree(now=0.0)) == [Do(task=forward(0))]


def test_the_list_of_owners_says_who_makes_the_backward():
    pool, _ = begun("a", 2)
    assert pool.handle(ServerFree(now=0.0)) == [Do(task=forward(0))]
    assert answer(pool, "s", forward(0)) == [Accept(device="s", task=forward(0))]
    assert answer(pool, "a", forward(1)) == [Accept(device="a", task=forward(1))]
    assert pool.owners() == [("s", 0, 0), ("a", 1, 1)]
    assert pool.handle(GradientCame(indices=(1,), now=1.0)) == [Give(helper="a", task=backward(1))]
    assert pool.handle(GradientCame(indices=(0,), now=1.0)) == []
    assert pool.handle(ServerFree(now=1.0)) == [Do(task=backward(0))]
    assert answer(pool, "s", backward(0)) == [Accept(device="s", task=backward(0))]
    assert not pool.done
    assert answer(pool, "a", backward(1)) == [Accept(device="a", task=backward(1))]
    assert pool.done


def test_a_backward_whose_helper_is_gone_begins_with_the_forward_again():
    pool, _ = begun("ab", 3)
    answer(pool, "a", forward(1))
    answer(pool, "b", forward(2))
    pool.handle(HelperWent(helper="a", now=1.0))
    assert pool.handle(GradientCame(indices=(1,), now=1.0)) == [Give(helper="b", task=backward(1), recompute=True)]
    pool.handle(HelperWent(helper="b", now=1.0))
    assert pool.handle(ServerFree(now=1.0)) == [Do(task=backward(1), recompute=True)]


def test_who_comes_back_has_kept_nothing():
    pool, _ = begun("a", 2)
    answer(pool, "a", forward(1))
    pool.handle(HelperWent(helper="a", now=1.0))
    assert pool.handle(HelperCame(helper="a", speed=1.0, now=1.0))[0] == SendStates(helper="a", step=0)
    assert pool.handle(GradientCame(indices=(1,), now=1.0)) == [Give(helper="a", task=backward(1), recompute=True)]


def test_a_silent_helper_loses_its_tasks_and_the_first_answer_counts():
    pool, _ = begun("a", 2)
    assert pool.handle(ServerFree(now=0.0)) == [Do(task=forward(0))]
    answer(pool, "s", forward(0), now=4.0)
    assert pool.deadline() == 5.0
    assert pool.handle(ServerFree(now=4.9)) == []
    assert pool.handle(TimePassed(now=5.0)) == []
    assert pool.handle(ServerFree(now=5.0)) == [Do(task=forward(1))]
    assert answer(pool, "s", forward(1), now=6.0) == [Accept(device="s", task=forward(1))]
    assert answer(pool, "a", forward(1), now=7.0) == [Discard(device="a", task=forward(1))]
    assert pool.owners() == [("s", 0, 1)]


def test_patience_follows_the_answers():
    pool, _ = begun("a", 3)
    answer(pool, "a", forward(2), now=4.0)
    assert pool.deadline() == 4.0 + 2.0 * 4.0
    pool, _ = begun("a", 3)
    answer(pool, "a", forward(2), now=0.1)
    assert pool.deadline() == 0.1 + 1.0


def test_answers_of_a_step_that_is_over_are_discarded():
    pool, _ = begun("a", 1)
    pool.handle(HelperWent(helper="a", now=0.0))
    assert pool.handle(ServerFree(now=0.0)) == [Do(task=forward(0))]
    answer(pool, "s", forward(0))
    pool.handle(GradientCame(indices=(0,), now=1.0))
    pool.handle(ServerFree(now=1.0))
    answer(pool, "s", backward(0))
    pool.handle(StepBegan(step=1, slices=(0,), now=2.0))
    assert answer(pool, "a", forward(0)) == [Discard(device="a", task=forward(0))]
    assert answer(pool, "a", backward(0, step=1)) == [Discard(device="a", task=backward(0, step=1))], "nobody was asked for it"


def test_shares_follow_the_measured_power():
    pool, _ = begun("a", 4)
    for index in (0, 1):
        pool.handle(ServerFree(now=0.0))
        answer(pool, "s", forward(index), seconds=3.0)
    for index in (2, 3):
        answer(pool, "a", forward(index), seconds=1.0)
    assert pool.power("a") == pytest.approx(3 * pool.power("s"))
    for index in range(4):
        pool.handle(GradientCame(indices=(index,), now=1.0))
    for index in (0, 1):
        pool.handle(ServerFree(now=1.0))
        answer(pool, "s", backward(index), seconds=3.0)
    for index in (2, 3):
        answer(pool, "a", backward(index))
    pool.handle(StepBegan(step=1, slices=(0, 1, 2, 3), now=2.0))
    told = pool.handle(InputCame(indices=(0, 1, 2, 3), now=2.0))
    assert told == [Give(helper="a", task=forward(1, 1)), Give(helper="a", task=forward(2, 1))]
    assert pool.handle(ServerFree(now=2.0)) == [Do(task=forward(0, 1))]
    answer(pool, "s", forward(0, 1), now=2.1, seconds=4.0)
    assert pool.handle(ServerFree(now=2.1)) == [], "a would end its last one before the server does"


def test_a_device_that_is_slower_at_one_slice_than_others_at_all_gets_none():
    assert soonest_shares([6.0, 0.5], 4) == [4, 0]
    assert soonest_shares([6.0, 0.5], 24) == [23, 1]
    assert soonest_shares([1.0, 1.0, 1.0], 7) == [3, 2, 2]
    assert soonest_shares([], 0) == []


def test_room_bounds_what_a_device_holds():
    pool = TaskPool("s", room=1, helper_room=2)
    pool.handle(HelperCame(helper="a", speed=9.0, now=0.0))
    pool.handle(StepBegan(step=0, slices=(0, 1, 2, 3), now=0.0))
    told = pool.handle(InputCame(indices=(0, 1, 2, 3), now=0.0))
    assert [c.task.index for c in told if isinstance(c, Give)] == [0, 1]
    answer(pool, "a", forward(0))
    assert answer(pool, "a", forward(1)) == [Accept(device="a", task=forward(1))], "it holds two already"
    assert pool.handle(ServerFree(now=1.0)) == [Do(task=forward(3))]
    answer(pool, "s", forward(3))
    assert pool.handle(ServerFree(now=1.0)) == []
    told = pool.handle(GradientCame(indices=(0,), now=1.0))
    assert told == [Give(helper="a", task=backward(0))]
    assert Give(helper="a", task=forward(2)) in answer(pool, "a", backward(0))


HEDGING = Patience(least=100.0, factor=100.0, first=100.0, hedge=1.5)


def hedging(helpers: str, slices: int) -> TaskPool:
    pool = TaskPool("s", room=slices, helper_room=slices, patience=HEDGING)
    for helper in helpers:
        pool.handle(HelperCame(helper=helper, speed=1.0, now=0.0))
    pool.handle(StepBegan(step=0, slices=tuple(range(slices)), now=0.0))
    pool.handle(InputCame(indices=tuple(range(slices)), now=0.0))
    return pool


def test_who_is_idle_also_does_what_takes_another_one_long():
    pool = hedging("a", 4)
    for index in (0, 1):
        assert pool.handle(ServerFree(now=0.0)) == [Do(task=forward(index))]
        answer(pool, "s", forward(index), now=1.0)
    assert pool.deadline() == 100.0, "nothing is known yet"
    answer(pool, "a", forward(2), now=2.0)
    assert pool.deadline() == 2.0 + 1.5 * 2.0
    assert pool.handle(ServerFree(now=4.9)) == []
    assert pool.handle(TimePassed(now=5.0)) == []
    assert pool.handle(ServerFree(now=5.0)) == [Do(task=forward(3))]
    assert pool.deadline() == 2.0 + 100 * 2.0, "it has two takers already"
    assert answer(pool, "s", forward(3), now=6.0) == [Accept(device="s", task=forward(3))]
    assert pool.deadline() == 2.0 + 100 * 2.0, "it is done, and the slow one is not late"
    assert answer(pool, "a", forward(3), now=7.0) == [Discard(device="a", task=forward(3))]
    assert pool.owners() == [("s", 0, 1), ("a", 2, 2), ("s", 3, 3)]


def test_an_idle_helper_also_does_a_slow_backward_from_the_stages_input():
    pool = hedging("ab", 3)
    assert pool.handle(ServerFree(now=0.0)) == [Do(task=forward(0))]
    for name, index, now in (("s", 0, 1.0), ("a", 1, 1.0), ("b", 2, 1.0)):
        answer(pool, name, forward(index), now=now)
    told = pool.handle(GradientCame(indices=(1, 2), now=1.0))
    assert told == [Give(helper="a", task=backward(1)), Give(helper="b", task=backward(2))]
    answer(pool, "b", backward(2), now=3.0)
    assert pool.handle(TimePassed(now=3.9)) == []
    assert pool.handle(TimePassed(now=4.0)) == [Give(helper="b", task=backward(1), recompute=True)]
    assert answer(pool, "b", backward(1), now=5.0) == [Accept(device="b", task=backward(1))]
    assert answer(pool, "a", backward(1), now=6.0) == [Discard(device="a", task=backward(1))]


def test_without_being_asked_nobody_does_anything_twice():
    pool, _ = begun("ab", 3)
    pool.handle(ServerFree(now=0.0))
    answer(pool, "s", forward(0), now=1.0)
    answer(pool, "a", forward(1), now=1.0)
    assert pool.handle(ServerFree(now=2.9)) == []


@given(st.permutations(range(7)))
def test_sums_are_made_in_order(order: list[int]):
    given_back: list[tuple[int, str]] = []
    buffer: InOrder[str] = InOrder(range(7))
    for index in order:
        assert not buffer.done
        given_back += buffer.put(index, str(index))
    assert given_back == [(index, str(index)) for index in range(7)]
    assert buffer.done
    with pytest.raises(AssertionError, match="slice 3 counts once"):
        list(buffer.put(3, "again"))


def test_a_fellow_has_no_share_and_is_given_one_task_when_it_is_free():
    pool = TaskPool("s", room=6, helper_room=6, patience=PATIENCE, peers={"t": 1.0})
    told = pool.handle(StepBegan(step=0, slices=tuple(range(4)), now=0.0))
    assert told + pool.handle(InputCame(indices=tuple(range(4)), now=0.0)) == []
    assert pool.helpers == ()
    assert pool.handle(PeerFree(peer="t", step=1, now=0.0)) == [], "of another step"
    assert pool.handle(PeerFree(peer="u", step=0, now=0.0)) == [], "of another stage"
    assert pool.handle(PeerFree(peer="t", step=0, now=0.0)) == [Give(helper="t", task=forward(3))]
    assert answer(pool, "t", forward(3)) == [Accept(device="t", task=forward(3))], "it has to say again that it is free"
    assert pool.handle(GradientCame(indices=(3,), now=1.0)) == [Give(helper="t", task=backward(3))], "its own it makes at once"
    assert answer(pool, "t", backward(3)) == [Accept(device="t", task=backward(3))]
    assert [(name, first, last) for name, first, last in pool.owners()] == [("t", 3, 3)]


def test_a_silent_fellow_is_not_waited_for():
    pool = TaskPool("s", room=6, patience=PATIENCE, peers={"t": 1.0})
    pool.handle(StepBegan(step=0, slices=(0, 1), now=0.0))
    pool.handle(InputCame(indices=(0, 1), now=0.0))
    assert pool.handle(PeerFree(peer="t", step=0, now=0.0)) == [Give(helper="t", task=forward(1))]
    assert pool.deadline() == PATIENCE.first
    assert pool.handle(ServerFree(now=0.0)) == [Do(task=forward(0))]
    answer(pool, "s", forward(0))
    assert pool.handle(ServerFree(now=4.0)) == []
    pool.handle(TimePassed(now=5.0))
    assert pool.handle(ServerFree(now=5.0)) == [Do(task=forward(1))]


def test_a_server_has_room_for_fellows_once_its_own_slices_had_their_forward():
    pool = TaskPool("s", room=3, patience=PATIENCE, peers={"t": 1.0})
    pool.handle(StepBegan(step=0, slices=(0, 1), now=0.0))
    pool.handle(InputCame(indices=(0,), now=0.0))
    pool.handle(ServerFree(now=0.0))
    answer(pool, "s", forward(0))
    assert pool.spare == 0, "the input of slice 1 has yet to come"
    pool.handle(InputCame(indices=(1,), now=1.0))
    pool.handle(ServerFree(now=1.0))
    answer(pool, "s", forward(1))
    assert pool.spare == 1


def test_a_helper_that_comes_when_all_is_done_may_be_needed_by_a_fellow():
    pool = TaskPool("s", patience=PATIENCE, peers={"t": 1.0})
    pool.handle(StepBegan(step=0, slices=(0,), now=0.0))
    pool.handle(InputCame(indices=(0,), now=0.0))
    for task in (forward(0), backward(0)):
        assert pool.handle(ServerFree(now=0.0)) == [Do(task=task)]
        answer(pool, "s", task)
        pool.handle(GradientCame(indices=(0,), now=1.0))
    assert pool.done
    assert pool.handle(HelperCame(helper="c", speed=1.0, now=1.0)) == [SendStates(helper="c", step=0)]
