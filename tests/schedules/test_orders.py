"""Orders that are kept are those of the schedule, and parts of them are a replica's."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import InputError, PlanError
from farflung.schedules import as_ready, get_schedule, orders_of, part_of, prepare_order, retained, schedule_names


@settings(max_examples=40)
@given(data=st.data(), name=st.sampled_from(schedule_names()), stages=st.integers(1, 6), count=st.sampled_from([1, 3, 8, 300]))
def test_parts_are_the_actions_of_a_share(data, name, stages, count):
    stages *= int(name.rpartition("-")[2]) if name.startswith("interleaved") else 1
    orders = get_schedule(name).actions(stages, count)
    assert orders_of(name, stages, count) == tuple(tuple(order) for order in orders)
    stage, first = data.draw(st.integers(0, stages - 1)), data.draw(st.integers(0, count - 1))
    end = data.draw(st.integers(first + 1, count))
    own = tuple(action for action in orders[stage] if first <= action.micro_batch < end)
    part = part_of(name, stages, count, stage, (first, end))
    assert (part.actions, part.in_flight) == (own, retained(own))
    assert part.prepared == prepare_order(own, free=as_ready(get_schedule(name)))


def test_orders_that_there_are_none_of_are_refused():
    with pytest.raises(InputError, match="unknown schedule"):
        orders_of("backwards", 2, 2)
    with pytest.raises(PlanError, match="needs 2 stages for each device"):
        part_of("interleaved-2", 3, 2, 0, (0, 2))
