"""Which server a helper joins: the one that makes the slowest stages fastest; and who moves when stages are unequal."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from farflung.errors import InputError
from farflung.protocol.hybrid.server_choice import Server, best_move, choose_server, effective_speed

ONE = Server(name="a", stage=0, bandwidth=1e8, work=1e9, power=1e9, traffic=1e7)
SPEED = 1e9


def test_the_slowest_stage_gets_the_helper():
    busy = replace(ONE, name="b", stage=1, bandwidth=9e7, work=3e9)
    assert choose_server([ONE, busy], SPEED) is busy
    assert choose_server([ONE, replace(busy, power=4e9)], SPEED) is ONE


def test_of_equally_slow_stages_the_one_with_the_better_link():
    far = replace(ONE, name="b", stage=1, bandwidth=2e7)
    assert choose_server([far, ONE], SPEED) is ONE
    assert choose_server([replace(far, bandwidth=3e8), ONE], SPEED).name == "b"


def test_a_link_counts_by_what_it_leaves_of_the_speed():
    assert effective_speed(replace(ONE, traffic=0.0), SPEED) == pytest.approx(SPEED)
    assert effective_speed(ONE, SPEED) == pytest.approx(1 / (1 / 1e9 + 1e7 / 1e9 / 1e8))
    assert effective_speed(replace(ONE, bandwidth=1e4), SPEED) < 0.01 * SPEED


def test_noise_of_bandwidths_does_not_send_all_helpers_to_one_stage():
    """Three equal stages and five equal helpers: 2, 2 and 1 of them, whatever a noisy measurement says of the links."""
    random = np.random.default_rng(0)
    for _ in range(500):
        links = 1e8 * random.lognormal(0.0, 0.5, (5, 3))
        power = [SPEED] * 3
        for helper in range(5):
            servers = [
                replace(ONE, name=f"s{stage}", stage=stage, bandwidth=float(links[helper, stage]), power=power[stage])
                for stage in range(3)
            ]
            power[choose_server(servers, SPEED).stage] += SPEED
        assert sorted(power) == [2 * SPEED, 3 * SPEED, 3 * SPEED]


def test_inside_a_stage_the_best_link_then_the_fewest_helpers():
    other = replace(ONE, name="b", helpers=1)
    assert choose_server([other, ONE], SPEED) is ONE
    assert choose_server([replace(other, bandwidth=2e8), ONE], SPEED).name == "b"
    assert choose_server([replace(other, helpers=0), ONE], SPEED) is ONE


def test_nobody_to_join():
    with pytest.raises(
        InputError, match="a helper needs a server to join, and can reach none; give it a way to a reliable worker"
    ):
        choose_server([], SPEED)


def crowded(*counts: int) -> tuple[dict[str, list[Server]], dict[str, float], dict[str, int]]:
    """Equal stages with so many equal helpers each."""
    places = {f"h{stage}{number}": stage for stage, count in enumerate(counts) for number in range(count)}
    held = Counter(places.values())
    servers = [
        replace(ONE, name=f"s{stage}", stage=stage, power=SPEED * (1 + held[stage]), helpers=held[stage], traffic=0.0)
        for stage in range(len(counts))
    ]
    return dict.fromkeys(places, servers), dict.fromkeys(places, SPEED), places


def test_a_helper_of_a_crowded_stage_moves_to_an_empty_one():
    servers, speeds, places = crowded(5, 1, 0)
    assert places[best_move(servers, speeds, places)] == 0
    for balanced in ((2, 2, 1), (1, 1), (0, 0), (1, 0)):
        assert best_move(*crowded(*balanced)) == ""


def test_a_helper_that_can_reach_no_other_stage_stays():
    servers, speeds, places = crowded(3, 0)
    near = {name: [server for server in seen if server.stage == 0] for name, seen in servers.items()}
    assert best_move(near, speeds, places) == ""
