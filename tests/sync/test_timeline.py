"""Predicted step times against the paper's equations, and what is printed for people."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.sync import (
    Costs,
    LayerInfo,
    World,
    get_strategy,
    local_sgd_seconds,
    partial_local_sgd_seconds,
    ssgd_seconds,
)
from farflung.sync.timeline import explain, mean_step_seconds, timeline
from farflung.units import Bytes, Seconds
from tests.support.plans.layer_time_instances import random_times


def world(bp: list[float], comm: list[float]) -> World:
    pairs = zip(bp, comm, strict=True)
    layers = tuple(LayerInfo(nbytes=Bytes(4), bp_seconds=Seconds(b), comm_seconds=Seconds(c)) for b, c in pairs)
    return World(rank=0, members=2, layers=layers)


@pytest.mark.parametrize("seed", range(5))
def test_programs_take_what_the_equations_say(seed: int) -> None:
    bp, comm = random_times(np.random.default_rng(seed), 9, 3.0)
    here = world(bp, comm)
    plain = mean_step_seconds(get_strategy("ssgd"), here, 6, forward_seconds=0.7)
    assert 6 * plain == pytest.approx(ssgd_seconds(6, 0.7, bp, comm))
    local = mean_step_seconds(get_strategy("local_sgd", sync_every=3), here, 6, forward_seconds=0.7)
    assert 6 * local == pytest.approx(local_sgd_seconds(6, 0.7, bp, comm, 3))
    for name in ("partial", "dreamddp", "contiguous", "free_sets"):
        strategy = get_strategy(name, sync_every=3)
        sets = strategy.schedule(here).sets  # type: ignore[attr-defined]
        expected = partial_local_sgd_seconds(6, 0.7, bp, comm, sets)
        assert 6 * mean_step_seconds(strategy, here, 6, forward_seconds=0.7) == pytest.approx(expected)
        filled = get_strategy(name, sync_every=3, fill=True)
        assert 6 * mean_step_seconds(filled, here, 6, forward_seconds=0.7) == pytest.approx(expected)


def test_overlap_and_codecs_shorten_a_step() -> None:
    here = world([1.0] * 4, [1.0] * 4)
    seconds = {name: mean_step_seconds(get_strategy(name), here, 8, forward_seconds=1.0) for name in ("ssgd", "wfbp", "delayed")}
    assert seconds == {"ssgd": 9.0, "wfbp": 6.0, "delayed": 5.0}
    assert mean_step_seconds(get_strategy("ssgd"), here, 8, forward_seconds=1.0, factor=0.5) == 7.0


def test_hidden_rounds_make_nobody_wait() -> None:
    here = world([1.0] * 3, [4.0] * 3)
    assert mean_step_seconds(get_strategy("co2", sync_every=4), here, 16) == 3.0
    assert mean_step_seconds(get_strategy("diloco", sync_every=4), here, 16) == 6.0
    busy = timeline(get_strategy("co2", sync_every=3), here, 9)
    assert [span.exposed for span in busy] == [0, 0, 0, 0, 0, 3, 0, 0, 3], "12 s of exchange do not fit behind 9 s"


def test_seed_and_scalar_has_two_forwards_instead_of_backward_and_exchange() -> None:
    assert mean_step_seconds(get_strategy("seed_and_scalar"), world([1.0] * 3, [4.0] * 3), 4, forward_seconds=2.0) == 4.0


def test_the_explanation_names_layers_and_what_is_hidden() -> None:
    strategy = get_strategy("dreamddp", sync_every=2, sets=((2,), (1, 0)))
    text = explain(strategy, world([1.0] * 3, [2.0] * 3), 2, names={2: "head"})
    assert text.splitlines() == [
        "dreamddp: exchanges parameters, codec identity",
        "step 0: layer head; 2.00 s on the link, 2.00 s of it hidden, the step waits 0 s",
        "step 1: layers 1, 0; 4.00 s on the link, 1.00 s of it hidden, the step waits 3.00 s",
        "with several micro-batches only the backward of the last one hides exchanges",
    ]
    quiet = explain(get_strategy("local_sgd", sync_every=2), world([1.0], [2.0]), 1)
    assert quiet.splitlines()[1] == "step 0: nothing leaves; waits 0 s"


def test_costs_beside_the_equations_lengthen_a_step() -> None:
    here = world([1.0] * 4, [1.0] * 4)
    costs = Costs(update=0.4, latency=0.25, control=0.5)

    def seconds(name: str, **settings: object) -> float:
        return mean_step_seconds(get_strategy(name, **settings), here, 4, costs=costs)

    assert seconds("ssgd") == pytest.approx(4 + 0.5 + 4 + 0.25 + 0.4)
    assert seconds("wfbp") == pytest.approx(5 + 0.25 + 0.4), "the verdict comes while the last layer is under way"
    assert seconds("partial", sync_every=4) == pytest.approx(4 + 0.4 + (3 * 0.5 + 1.25) / 4, abs=0.2)


def test_a_mean_that_is_added_up_on_the_way_takes_a_part_of_a_link() -> None:
    assert get_strategy("local_sgd").traits.link_share(4) == 0.5
    assert get_strategy("local_sgd", codec="int8").traits.link_share(4) == 1.0
    assert get_strategy("gossip").traits.link_share(4) == 1.0


def test_what_others_send_comes_beside_what_is_sent_here() -> None:
    """Both contributions of a step are there after the five seconds of one; a step computes for two."""
    here, waits = world([1.0, 1.0], [2.0, 3.0]), []
    for overlap in (0, 1, 3):
        spans = timeline(get_strategy("fedbuff", sync_every=4, overlap=overlap), here, 8)
        assert [exchange.end - exchange.begin for exchange in spans[3].exchanges] == [pytest.approx(5.0)] * 2
        waits.append(spans[3 + overlap].exposed)
    assert waits == pytest.approx([5.0, 3.0, 0.0])
