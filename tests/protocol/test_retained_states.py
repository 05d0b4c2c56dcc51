"""What is left in workers' memory after a loss, and the step to go on from."""

from __future__ import annotations

import random

from hypothesis import given
from hypothesis import strategies as st

from farflung.protocol.retained_states import Decision, RetainedState, believable, choose, moves

APPLIED = Decision(scale=0.5)


def retained(
    step: int, states: str, *, ready: bool = False, decision: Decision | None = None, copied: bool = False
) -> RetainedState:
    return RetainedState(step=step, committed=step, states=frozenset(states), ready=ready, decision=decision, copied=copied)


def test_a_replica_holds_what_the_dead_one_had() -> None:
    held = {"a": [retained(7, "xy")], "c": [retained(7, "z")]}
    found = choose(held, "xyz")
    assert found is not None
    assert (found.step, found.committed, found.copied) == (7, 7, False)
    assert moves(found, {"a": "xy", "c": "yz"}, {"y": 5}) == {"a": {}, "c": {"a": ("y",)}}


def test_who_is_ready_follows_who_has_applied() -> None:
    held = {"a": [retained(8, "x", decision=APPLIED)], "b": [retained(7, "y", ready=True)]}
    found = choose(held, "xy")
    assert found is not None
    assert (found.step, found.decision) == (8, APPLIED)


def test_nobody_applies_what_nobody_has_applied() -> None:
    found = choose({"a": [retained(7, "x", ready=True)], "b": [retained(7, "y", ready=True)]}, "xy")
    assert found is not None
    assert found.step == 7


def test_who_is_not_ready_can_not_follow() -> None:
    assert choose({"a": [retained(8, "x", decision=APPLIED)], "b": [retained(7, "y")]}, "xy") is None
    assert choose({"a": [retained(8, "x")], "b": [retained(7, "y", ready=True)]}, "xy") is None, (
        "it can't know how the step ended"
    )


def test_copies_serve_where_the_only_holder_died() -> None:
    held = {"a": [retained(4, "x", copied=True), retained(4, "y", copied=True), retained(7, "x")], "b": []}
    found = choose(held, "xy")
    assert found is not None
    assert (found.step, found.copied) == (4, True)
    assert choose({"a": [retained(7, "x")]}, "xy") is None


def test_of_several_holders_the_one_gives_that_gives_least() -> None:
    found = choose({"a": [retained(1, "xyz")], "b": [retained(1, "xyz")]}, "xyz")
    assert found is not None
    assert moves(found, {"c": "xyz"}, {"x": 4, "y": 3, "z": 2}) == {"c": {"a": ("x",), "b": ("y", "z")}}


@given(st.integers(0, 10**6))
def test_two_phases_leave_a_common_step_whoever_dies(seed: int) -> None:
    """Stages with replicas take steps as the two phases allow; some die anywhere. If a stage's replica lives, nothing is lost."""
    chance = random.Random(seed)
    workers = {f"{stage}{number}": stage for stage in "xyz" for number in range(chance.randint(1, 3))}
    applied = dict.fromkeys(workers, 0)
    ready = dict.fromkeys(workers, 0)
    for _ in range(chance.randint(0, 60)):
        name = chance.choice(sorted(workers))
        if ready[name] == applied[name] and min(applied.values()) == applied[name]:  # its inputs are those of this step
            ready[name] += 1
        elif ready[name] > applied[name] and min(ready.values()) >= ready[name]:  # all are ready
            applied[name] += 1
    committed = max(applied.values())
    living = {name for name in workers if chance.random() < 0.7}
    held = {
        name: [
            retained(applied[name], workers[name], ready=ready[name] > applied[name], decision=APPLIED if applied[name] else None)
        ]
        for name in living
    }
    found = choose(held, "xyz")
    if {workers[name] for name in living} == set("xyz"):
        assert found is not None
        assert found.step in (committed, max(applied[name] for name in living))
        assert found.step >= committed - 1
    else:
        assert found is None


def test_steps_that_nobody_else_has_made_are_not_believed() -> None:
    held = {"a": [retained(7, "x")], "z": [retained(7, "y"), retained(57, "xy")]}
    assert believable(held, {"a": 7, "z": 57}) == {"a": [retained(7, "x")], "z": [retained(7, "y")]}


def test_who_alone_survives_is_believed_as_far_as_the_reports_of_the_dead_go() -> None:
    held = {"a": [retained(9, "xy"), retained(8, "xy"), retained(7, "xy")]}
    assert believable(held, {"a": 9, "b": 6}) == {"a": [retained(8, "xy"), retained(7, "xy")]}
    assert believable(held, {"a": 9}) == held, "it had no peer"


def test_who_is_a_step_ahead_is_believed() -> None:
    held = {"a": [retained(8, "x", decision=APPLIED)], "b": [retained(7, "y", ready=True)]}
    assert believable(held, {"a": 0, "b": 0}) == held
