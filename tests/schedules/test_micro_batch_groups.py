"""Schedules whose unit is a group of micro-batches."""

from __future__ import annotations

import pytest

from farflung.errors import InputError
from farflung.schedules import check_schedule, get_schedule, grouped, schedule_names
from farflung.schedules.progress import Progress, as_ready


def test_the_order_of_1f1b_in_groups_of_two() -> None:
    first, last = get_schedule("1f1b@2").actions(2, 5)
    assert " ".join(map(str, first)) == "0F0 0F1 0F2 0F3 0B0 0B1 0F4 0B2 0B3 0B4"
    assert " ".join(map(str, last)) == "1F0 1F1 1B0 1B1 1F2 1F3 1B2 1B3 1F4 1B4"


@pytest.mark.parametrize("name", schedule_names())
@pytest.mark.parametrize("count", [2, 3])
def test_every_schedule_has_groups_that_do_not_stand_still(name: str, count: int) -> None:
    schedule = get_schedule(grouped(name, count))
    check_schedule(schedule.actions(12, 7), 7)
    assert as_ready(schedule) == as_ready(get_schedule(name))


def test_a_group_of_one_is_the_schedule() -> None:
    assert grouped("gpipe", 1) == "gpipe"


@pytest.mark.parametrize("name", ["1f1b@", "1f1b@1", "1f1b@x", "1f1b@2000"])
def test_a_wrong_group(name: str) -> None:
    with pytest.raises(InputError) as raised:
        get_schedule(name)
    expected = f"schedule {name!r}: @ takes the micro-batches of a group, 2 to 1024; write e.g. 1f1b@2"
    assert str(raised.value) == expected


def test_what_a_site_computes_together() -> None:
    """Two ranks: groups end at multiples of two, also where the part of a replica begins in the middle of a group."""
    order = [a for a in get_schedule("1f1b@2").actions(1, 6)[0] if a.micro_batch >= 1]
    queue, found = Progress(order), []
    while not queue.done:
        actions = queue.run(queue.heads()[0], 2)
        found.append(" ".join(map(str, actions)))
        for action in actions:
            queue.take(action)
    assert found == ["0F1", "0B1", "0F2 0F3", "0B2 0B3", "0F4 0F5", "0B4 0B5"]


def test_only_a_head_begins_a_group() -> None:
    order = get_schedule("1f1b@2").actions(1, 4)[0]
    with pytest.raises(ValueError, match="is not next"):
        Progress(order).run(order[1], 2)
