"""Hybrid plans in virtual time: pipelines with known lengths, and helpers that are lost and come back."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import PlanError
from farflung.protocol.pool.task_pool import Patience
from farflung.simulator.hybrid import HelpedPipeline, HelpedServer, Helper, Hop, Loss, Wire

SLICES = tuple(range(12))


def servers(stages: int = 2, room: int = 12, **more: float) -> list[HelpedServer]:
    return [
        HelpedServer(name=f"s{k}", stage=k, slices=SLICES, forward=1.0, backward=2.0, room=room, helper_room=room, **more)  # type: ignore[arg-type]
        for k in range(stages)
    ]


def test_a_single_server_takes_the_sum_of_its_tasks() -> None:
    assert HelpedPipeline(servers(1)).run([(), ()]) == [36.0, 36.0]


def test_a_pipeline_takes_its_slices_and_one_slice_for_each_other_stage() -> None:
    assert HelpedPipeline(servers(3)).run([()]) == [12 * 3.0 + 2 * 3.0]


def test_a_hop_between_stages_delays_the_first_slice_there_and_the_last_gradient_back() -> None:
    hops = [Hop(source="s0", target="s1", forward=Wire(latency=0.5), back=Wire(latency=0.25))]
    assert HelpedPipeline(servers(2), hops=hops).run([()]) == [12 * 3.0 + 3.0 + 0.75]


def test_servers_of_one_device_compute_one_task_at_a_time() -> None:
    first, middle, last = servers(3, update=1.0)
    shared = [replace(first, device="d"), middle, replace(last, device="d")]
    hops = [Hop(source="d", target="s1", forward=Wire(latency=0.5), back=Wire(latency=0.25))]
    # d computes all the time, except near the end: the last gradient is away for 2.75 s, and one backward of 2 s is left
    assert HelpedPipeline(shared, hops=hops).run([(), ()]) == [2 * 12 * 3.0 + 0.75 + 2 * 1.0] * 2
    one = [replace(first, slices=(0,), device="d"), replace(middle, slices=(0,)), replace(last, slices=(0,), device="d")]
    assert HelpedPipeline(one, hops=hops).run([()]) == [3 * 3.0 + 2 * 0.75 + 2 * 1.0]


def test_a_helper_as_fast_as_its_server_halves_the_step() -> None:
    one = HelpedPipeline(servers(1), [Helper(name="h", server="s0", speed=1.0)])
    assert one.run([(), (), ()])[-1] == 18.0


def test_parameters_that_take_long_to_a_helper_leave_the_work_to_the_server() -> None:
    slow = Helper(name="h", server="s0", speed=1.0, down=Wire(per_byte=1.0), up=Wire(per_byte=1.0))
    assert HelpedPipeline(servers(1, states=1000.0), [slow]).run([()])[0] == pytest.approx(36.0, abs=3.0)


@pytest.mark.parametrize("seconds", [5.0, 20.0, 100.0])
def test_a_helper_behind_a_slow_link_does_not_make_steps_longer(seconds: float) -> None:
    """It computes as fast as its server, but its values take long, so it gets few slices or none."""
    wire = Wire(latency=0.1, per_byte=seconds)
    found = HelpedPipeline(
        servers(1, room=2, input=1.0, output=1.0), [Helper(name="h", server="s0", speed=1.0, down=wire, up=wire)]
    )
    assert found.run([()] * 8)[-1] <= 36.0


def test_a_helper_that_comes_back_counts_as_fast_as_it_was() -> None:
    """It computes fast behind a slow link. As an unknown helper, it would get half of the slices again."""
    wire = Wire(latency=0.1, per_byte=30.0)
    helper = Helper(name="h", server="s0", speed=1.0, down=wire, up=wire)
    patience = Patience(first=1000.0, least=1000.0)
    steps = HelpedPipeline(servers(1, room=2, input=1.0, output=1.0), [helper], patience=patience).run(
        [(), (), (Loss(helper="h", after=1.0),), ()]
    )
    assert steps[0] > 100.0
    assert steps[3] <= 36.0


def test_a_lost_helper_costs_the_slices_that_it_held_and_no_more() -> None:
    helper = Helper(name="h", server="s0", speed=1.0)
    lost = HelpedPipeline(servers(1), [helper]).run([(), (), (Loss(helper="h", after=9.0),), (), ()])
    assert lost[1] == 18.0
    assert 18.0 < lost[2] <= 36.0 - 9.0 + 3.0, "what it had completed counts"
    assert lost[4] == 18.0, "it is back in the next step"


def test_a_helper_that_comes_back_within_the_step_helps_again() -> None:
    helper = Helper(name="h", server="s0", speed=1.0)
    away, back = (
        HelpedPipeline(servers(1), [helper]).run([(), (Loss(helper="h", after=3.0, away=seconds),)])[1]
        for seconds in (float("inf"), 3.0)
    )
    assert back < away


def test_all_helpers_lost_at_once_leave_the_step_of_the_servers() -> None:
    helpers = [Helper(name=f"h{k}", server=f"s{k % 2}", speed=1.0) for k in range(4)]
    losses = [Loss(helper=helper.name, after=0.0) for helper in helpers]
    assert HelpedPipeline(servers(2), helpers).run([losses])[0] <= HelpedPipeline(servers(2)).run([()])[0] + 3.0


@given(
    st.integers(1, 3),
    st.lists(st.tuples(st.integers(0, 2), st.floats(0.25, 4)), max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.floats(0, 40), st.floats(0.5, 30)), max_size=6),
    st.integers(1, 12),
)
@settings(deadline=None, max_examples=60)
def test_every_step_ends_whatever_is_lost(
    stages: int, helping: list[tuple[int, float]], lost: list[tuple[int, float, float]], room: int
) -> None:
    wire = Wire(latency=0.1, per_byte=0.01)
    helpers = [
        Helper(name=f"h{k}", server=f"s{stage % stages}", speed=speed, down=wire, up=wire)
        for k, (stage, speed) in enumerate(helping)
    ]
    losses = [Loss(helper=f"h{k}", after=after, away=away) for k, after, away in lost if k < len(helpers)]
    found = HelpedPipeline(servers(stages, room, input=1.0, output=1.0), helpers).run([(), losses, ()])
    assert all(0.0 < seconds < 1000.0 for seconds in found)


def test_stages_with_different_slices_and_unknown_servers_are_refused() -> None:
    short = HelpedServer(name="s1", stage=1, slices=(0,), forward=1.0, backward=1.0)
    with pytest.raises(PlanError, match="two servers of a helped pipeline have one name: give each a name"):
        HelpedPipeline([*servers(2), *servers(1)])
    with pytest.raises(PlanError, match="the stages of a helped pipeline have different slices: give every stage all slices"):
        HelpedPipeline([*servers(1), short])
    with pytest.raises(PlanError, match="the helper h helps no server of the pipeline: name one of s0"):
        HelpedPipeline(servers(1), [Helper(name="h", server="x", speed=1.0)])
