"""Where an attempt begins: with what workers retain, unless a checkpoint is newer."""

from __future__ import annotations

from farflung.broker.planning.attempt_start import Start
from farflung.protocol.retained_states import RetainedState
from tests.support.steps.small_runs import small_graph, small_plan, small_setup

GRAPH, PLAN = small_graph(), small_plan()
OWN = {device: frozenset(small_setup(device).subgraphs[stage].states) for stage, device in enumerate("ab")}


def kept(step: int) -> Start:
    return Start(attempt=2, step=step, committed=step, source="checkpoint", kept=(step, step))


def retained(step: int, device: str) -> RetainedState:
    return RetainedState(step=step, committed=step - 1, states=OWN[device])


def test_without_a_checkpoint_the_first_states_count() -> None:
    start = Start.of(1, None, "weights")
    assert (start.step, start.committed, start.source, start.came_from) == (0, 0, "weights", "start")
    assert start.live_start("a") is None
    assert start.lenders == frozenset()


def test_states_in_memory_are_newer_than_the_checkpoint_and_stay_where_they_are() -> None:
    start = kept(4).or_live({"a": [retained(6, "a")], "b": [retained(6, "b")]}, GRAPH, PLAN)
    assert (start.step, start.committed, start.kept, start.came_from) == (6, 5, (4, 4), "memory")
    assert start.moves == {"a": {}, "b": {}}
    assert start.moved == 0
    live = start.live_start("a")
    assert live is not None
    assert (live.step, live.committed, live.moves) == (6, 5, {})


def test_states_move_to_the_device_that_has_their_stage_now() -> None:
    start = kept(4).or_live({"c": [retained(6, "a")], "b": [retained(6, "b")]}, GRAPH, PLAN)
    assert start.moves["a"].keys() == {"c"}
    assert set(start.moves["a"]["c"]) == OWN["a"]
    assert start.lenders == {"c"}
    assert start.moved == sum(GRAPH.state[name].spec.nbytes for name in OWN["a"])


def test_a_checkpoint_counts_where_memory_is_older_or_incomplete() -> None:
    older = {"a": [retained(3, "a")], "b": [retained(3, "b")]}
    incomplete = {"a": [retained(6, "a")]}
    for held in (older, incomplete, {}):
        assert kept(4).or_live(held, GRAPH, PLAN) == kept(4)
