"""Which server a helper joins: the nearest stage, of equally near ones the one with the most work for its power."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.errors import InputError
from farflung.protocol.server_choice import Server, choose_server

ONE = Server(name="a", stage=0, bandwidth=1e8, work=1e9, power=1e9)


def test_the_best_mean_bandwidth_counts():
    far = replace(ONE, name="b", stage=1, bandwidth=5e7, work=9e9)
    assert choose_server([ONE, far]) is ONE
    good, bad = replace(far, name="c", bandwidth=1.5e8), replace(far, name="d", bandwidth=1e7)
    assert choose_server([ONE, good, bad]) is good, "the mean of 80 MB/s counts as near, and there is more work"
    assert choose_server([ONE, replace(good, bandwidth=1.2e8), bad]) is ONE


def test_of_equally_near_stages_the_one_with_the_most_work_for_its_power():
    busy = replace(ONE, name="b", stage=1, bandwidth=9e7, work=3e9)
    assert choose_server([ONE, busy]) is busy
    assert choose_server([ONE, replace(busy, power=4e9)]) is ONE


def test_inside_a_stage_the_best_link_then_the_fewest_helpers():
    other = replace(ONE, name="b", helpers=1)
    assert choose_server([other, ONE]) is ONE
    assert choose_server([replace(other, bandwidth=2e8), ONE]).name == "b"
    assert choose_server([replace(other, helpers=0), ONE]) is ONE


def test_nobody_to_join():
    with pytest.raises(
        InputError, match="a helper needs a server to join, and can reach none; give it a way to a reliable worker"
    ):
        choose_server([])
