"""What a stage may do next, in order and freely."""

import heapq

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.schedules import (
    Action,
    PipelineTimes,
    Progress,
    TimedEdge,
    Transfer,
    as_ready,
    get_schedule,
    in_flight,
    time_schedule,
)
from farflung.schedules.base import ActionKind

F, B = ActionKind.FORWARD, ActionKind.BACKWARD


def order_of(text):
    return [Action.parse(word) for word in text.split()]


def test_in_order_there_is_one_head():
    progress = Progress(order_of("0F0 0F1 0B0 0B1"))
    seen = []
    while not progress.done:
        (head,) = progress.heads()
        seen.append(str(head))
        progress.take(head)
    assert seen == ["0F0", "0F1", "0B0", "0B1"]
    assert progress.heads() == ()
    assert progress.left() == []


def test_freely_a_backward_goes_first_and_forwards_stop_at_the_bound():
    progress = Progress(order_of("0F0 0F1 0B0 0F2 0B1 0B2"), free=True)
    assert progress.heads() == (Action(0, F, 0),)
    progress.take(Action(0, F, 0))
    assert progress.heads() == (Action(0, B, 0), Action(0, F, 1))
    progress.take(Action(0, F, 1))
    assert progress.heads() == (Action(0, B, 0),)  # two in flight, as in the order
    progress.take(Action(0, B, 0))
    assert progress.heads() == (Action(0, B, 1), Action(0, F, 2))
    assert progress.left() == order_of("0B1 0B2 0F2")


def test_what_is_not_next_is_refused():
    with pytest.raises(ValueError, match="0F1 is not next"):
        Progress(order_of("0F0 0F1"), free=True).take(Action(0, F, 1))


def test_which_schedules_are_free():
    assert [
        name for name in ("1f1b", "eager-2", "eager-4", "gpipe", "interleaved-2", "zb-h1") if as_ready(get_schedule(name))
    ] == [
        "eager-2",
        "eager-4",
    ]


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(["1f1b", "eager-2", "eager-4"]),
    stages=st.integers(1, 6),
    micro_batches=st.integers(1, 9),
    random=st.randoms(use_true_random=False),
)
def test_freely_every_stage_ends_within_its_bound_whatever_the_links_do(name, stages, micro_batches, random):
    """A chain whose every message takes a time of its own: nothing stands still, nothing is out of its own kind's order."""
    orders = get_schedule(name).actions(stages, micro_batches)
    progress = [Progress(order, free=True) for order in orders]
    arrived = {Action(0, F, m) for m in range(micro_batches)}
    flying, done = [0] * stages, [[] for _ in range(stages)]
    events = [(0.0, s, Action(s, F, 0)) for s in range(stages)]
    while events:
        now, stage, came = heapq.heappop(events)
        if came.stage or came.kind is B:
            arrived.add(came)
        while ready := [a for a in progress[stage].heads() if a in arrived or (a.kind is B and stage == stages - 1)]:
            action = ready[0]
            progress[stage].take(action)
            done[stage].append(action)
            flying[stage] += 1 if action.kind is F else -1
            assert 0 <= flying[stage] <= in_flight(orders[stage])
            other = stage + (1 if action.kind is F else -1)
            if 0 <= other < stages:
                heapq.heappush(events, (now + random.random(), other, Action(other, action.kind, action.micro_batch)))
    assert all(one.done for one in progress)
    for row in done:
        for kind in (F, B):
            assert [a.micro_batch for a in row if a.kind is kind] == list(range(micro_batches))


def test_on_slow_links_a_stage_waits_for_no_order():
    """Eight stages whose links take four times as long as computing. No schedule can take less than 16 x 0.16 s of a link and
    what stands before its first and after its last message, 2.55 s."""
    edges = [TimedEdge(source=i, target=i + 1, forward=Transfer(0.01, 0.16), backward=Transfer(0.01, 0.16)) for i in range(7)]
    times = PipelineTimes(forward=[0.0133] * 8, backward=[0.0267] * 8, device=range(8), edges=edges)
    orders = get_schedule("eager-3").actions(8, 16)
    free = time_schedule(orders, times, free=True).seconds
    assert free < 1.02 * (16 * 0.16 + 2.55)
    assert free < 0.95 * time_schedule(orders, times).seconds
