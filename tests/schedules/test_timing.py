"""The timed dry-run against timelines worked out by hand."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import PlanError
from farflung.schedules import (
    Action,
    Exchange,
    PipelineTimes,
    TimedEdge,
    Transfer,
    as_ready,
    get_schedule,
    prepare_order,
    time_schedule,
)
from farflung.schedules.timing import _Clock

FREE = Transfer(0, 0)


def chain(stages, forward=FREE, backward=FREE):
    return [TimedEdge(source=i, target=i + 1, forward=forward, backward=backward) for i in range(stages - 1)]


def run(name, stages, micro_batches, **fields):
    settled = {"forward": [1.0] * stages, "backward": [2.0] * stages, "device": range(stages), "edges": chain(stages)} | fields
    return time_schedule(get_schedule(name).actions(stages, micro_batches), PipelineTimes(**settled))


@pytest.mark.parametrize("name", ["gpipe", "1f1b"])
def test_equal_stages_take_micro_batches_plus_stages_minus_one_turns(name):
    timeline = run(name, 4, 6)
    assert timeline.seconds == (6 + 4 - 1) * 3
    assert timeline.device_busy == dict.fromkeys(range(4), 18.0)


def test_one_stage_adds_up():
    assert run("1f1b", 1, 5, update=[0.5]).seconds == 5 * 3 + 0.5


def test_latency_delays_and_does_not_occupy():
    # GPipe: F0 1, F1 2 on stage 0; arrivals at 11 and 12; stage 1: F to 13, B to 15 and 17; gradients 25, 27; B to 27, 29
    timeline = run("gpipe", 2, 2, edges=chain(2, Transfer(10, 0), Transfer(10, 0)))
    assert timeline.seconds == 29
    assert timeline.link_busy == {(0, 1): 0.0, (1, 0): 0.0}


def test_a_slow_link_carries_one_message_at_a_time():
    # forwards leave at 1 and 2, arrive at 11 and 21; stage 1: F 22, B 24 and 26; gradients arrive 34, 44; last backward 46
    timeline = run("gpipe", 2, 2, edges=chain(2, Transfer(0, 10), Transfer(0, 10)))
    assert timeline.seconds == 46
    assert timeline.link_busy == {(0, 1): 20.0, (1, 0): 20.0}
    assert timeline.critical_link == (1, 0)


def test_stages_of_one_device_take_turns_and_send_nothing():
    timeline = run("1f1b", 2, 3, device=[0, 0], edges=chain(2, Transfer(9, 9), Transfer(9, 9)))
    assert timeline.seconds == 2 * 3 * 3
    assert timeline.link_busy == {}
    assert timeline.critical_link is None


def test_edges_without_gradients_do_not_hold_up_backwards():
    one_way = [TimedEdge(source=0, target=1, forward=FREE, backward=None)]
    assert run("gpipe", 2, 1, edges=one_way).seconds == 1 + 1 + 2
    assert run("gpipe", 2, 1).seconds == 1 + 1 + 2 + 2


def test_scale_shrinks_compute_and_messages():
    timeline = run("gpipe", 2, 2, scale=[1.0, 0.5], edges=chain(2, Transfer(0, 4), FREE))
    # F0 1, F1 1.5; first arrives 5, second 7; stage 1: F 6, F 7.5, B 9.5, B 10.5; stage 0: B 11.5, B 12.5
    assert timeline.seconds == 12.5


def test_tied_gradients_are_exchanged_before_the_update():
    exchanges = [Exchange(source=a, target=b, transfer=Transfer(1, 10)) for a, b in ((0, 1), (1, 0))]
    # stage 1 ends at 4, stage 0 at 6: their gradients arrive at 15 and 17; the later update ends at 18
    assert run("gpipe", 2, 1, exchanges=exchanges, update=[1, 1]).seconds == 18


def test_critical_device_is_the_busiest():
    assert run("gpipe", 3, 4, forward=[1, 5, 1]).critical_device == 1


def test_a_deadlock_is_named():
    orders = [[Action.parse(word) for word in order.split()] for order in ("0F0 0B0 0F1 0B1", "1F0 1F1 1B0 1B1")]
    times = PipelineTimes(forward=[1, 1], backward=[1, 1], device=[0, 1], edges=chain(2))
    with pytest.raises(PlanError, match="can't finish: 0B0, 1F1 wait for each other"):
        time_schedule(orders, times)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["gpipe", "1f1b"]), st.integers(1, 5), st.integers(1, 6), st.data())
def test_a_step_is_never_shorter_than_its_busiest_part_nor_longer_than_everything_in_turn(name, stages, count, data):
    seconds = st.floats(0.01, 10)
    forward = data.draw(st.lists(seconds, min_size=stages, max_size=stages))
    backward = data.draw(st.lists(seconds, min_size=stages, max_size=stages))
    device = data.draw(st.lists(st.integers(0, 2), min_size=stages, max_size=stages))
    wire, latency = data.draw(seconds), data.draw(seconds)
    edges = chain(stages, Transfer(latency, wire), Transfer(latency, wire))
    timeline = run(name, stages, count, forward=forward, backward=backward, device=device, edges=edges)
    busiest = max([*timeline.device_busy.values(), *timeline.link_busy.values()])
    everything = count * (sum(forward) + sum(backward) + 2 * (stages - 1) * (wire + latency))
    assert busiest <= timeline.seconds * (1 + 1e-9)
    assert timeline.seconds <= everything * (1 + 1e-9)


@settings(deadline=None, max_examples=40)
@given(st.sampled_from(["gpipe", "1f1b", "zb-h1"]), st.integers(1, 5), st.integers(1, 6), st.data())
def test_fixed_orders_take_the_same_time_without_events(name, stages, count, data):
    seconds = st.floats(0.0, 10)

    def some(number=stages):
        return data.draw(st.lists(seconds, min_size=number, max_size=number))

    pairs = [(a, b) for a in range(stages) for b in range(a + 1, stages) if b == a + 1 or data.draw(st.booleans())]
    edges = [
        TimedEdge(
            source=a, target=b, forward=Transfer(*some(2)), backward=Transfer(*some(2)) if data.draw(st.booleans()) else None
        )
        for a, b in pairs
    ]
    weight = some()
    times = PipelineTimes(
        forward=some(),
        backward=[w + s for w, s in zip(weight, some(), strict=True)],
        weight=weight,
        update=some(),
        device=range(stages),
        edges=edges,
        exchanges=[Exchange(source=b, target=a, transfer=Transfer(*some(2))) for a, b in pairs[:2]],
        scale=some(count),
    )
    clocks = [_Clock([prepare_order(order) for order in get_schedule(name).actions(stages, count)], times) for _ in range(2)]
    found = clocks[0].run()
    again = clocks[1].run(events=True)
    assert again.seconds == found.seconds
    assert again.link_busy == found.link_busy
    assert again.device_busy == pytest.approx(found.device_busy, rel=1e-12)
    assert clocks[0].count == 0 < clocks[1].count


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(["gpipe", "1f1b", "eager-2", "interleaved-2"]), st.integers(1, 3), st.integers(1, 6), st.data())
def test_a_clock_with_a_limit_tells_the_step_or_a_bound_above_the_limit(name, half, count, data):
    stages = 2 * half
    device = [stage % half for stage in range(stages)] if name == "interleaved-2" else list(range(stages))
    values = data.draw(st.lists(st.floats(0.01, 10), min_size=4 * stages, max_size=4 * stages))
    edges = [
        TimedEdge(source=s, target=s + 1, forward=Transfer(0.1, values[4 * s + 2]), backward=Transfer(0.1, values[4 * s + 3]))
        for s in range(stages - 1)
    ]
    settled = {"forward": values[::4], "backward": values[1::4], "update": [1.0] * stages}
    times = PipelineTimes(**settled, device=device, edges=edges)
    orders = get_schedule(name).actions(stages, count)
    free = as_ready(get_schedule(name))
    whole = time_schedule(orders, times, free=free).seconds
    limit = data.draw(st.floats(0.1, 1.5)) * whole
    found = time_schedule(orders, times, free=free, limit=limit, after=dict.fromkeys(device, 1.0)).seconds
    assert found == whole if limit >= whole else limit < found <= whole * (1 + 1e-9)
