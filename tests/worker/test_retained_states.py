"""What a worker holds between two attempts, and how who needs it finds the way there."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from types import SimpleNamespace
from typing import Any

from farflung.engines.base import Array
from farflung.errors import EngineCrashed
from farflung.messages.commands import LiveStart
from farflung.messages.data import StatesWanted
from farflung.protocol.retained_states import Decision, RetainedState
from farflung.worker.retained_states import Continuation, RetainedStates


class Held:
    """States ``names`` of step ``step``."""

    def __init__(self, step: int, names: str) -> None:
        self.retained_state = RetainedState(step=step, committed=step, states=frozenset(names))
        self.released = False

    def release(self) -> None:
        self.released = True

    def advance(self, decision: Decision) -> None:
        raise AssertionError("nothing is ready")

    def read(self, states: Collection[str]) -> Mapping[str, Array]:
        return {}


def kept(retained: RetainedStates) -> list[tuple[int, str]]:
    return [(retained_state.step, "".join(sorted(retained_state.states))) for retained_state in retained.retained_states("r")]


def test_attempts_that_end_before_they_train_leave_one_set_of_states() -> None:
    retained = RetainedStates()
    retained.store("r", Held(6, "ab"), Held(7, "ab"))
    for _ in range(8):
        retained.keep_only("r")
        retained.store("r", Held(7, "ab"))
    assert kept(retained) == [(6, "ab"), (7, "ab")], "an older step may be the one that all hold"
    retained.store("r", Held(7, "bc"))
    assert kept(retained) == [(6, "ab"), (7, "ab"), (7, "bc")], "nobody else may have the first any more"
    retained.store("r", Held(7, "abc"))
    assert kept(retained) == [(6, "ab"), (7, "abc")]


def test_a_part_that_ends_after_its_run_was_forgotten_leaves_nothing() -> None:
    retained = RetainedStates()
    retained.store("r", Held(7, "a"))
    retained.forget("r")
    late = Held(7, "a")
    retained.store("r", late)
    assert (retained.run, kept(retained)) == ("", [])
    assert late.released, "the process that holds the states must end"
    retained.keep_only("r")  # it works for the run again
    retained.store("r", Held(7, "a"))
    assert (retained.run, kept(retained)) == ("r", [(7, "a")])


def test_what_was_held_goes_when_training_goes_on_and_the_next_loss_is_kept_again() -> None:
    retained = RetainedStates()
    retained.store("r", Held(7, "a"))
    retained.training_begins("other")
    assert kept(retained) == [(7, "a")]
    retained.training_begins("r")
    assert kept(retained) == []
    retained.store("r", Held(9, "a"))
    assert kept(retained) == [(9, "a")]


def test_states_that_are_dropped_are_released() -> None:
    retained, old, covered, newest = RetainedStates(), Held(6, "ab"), Held(7, "a"), Held(7, "ab")
    retained.store("r", old, covered)
    retained.store("r", newest)
    assert [one.released for one in (old, covered, newest)] == [False, True, False]
    retained.training_begins("r")
    assert [one.released for one in (old, covered, newest)] == [True, True, True]


def test_the_states_of_a_process_that_has_died_are_not_there() -> None:
    class Dead(Held):
        def read(self, states: Collection[str]) -> Mapping[str, Array]:
            raise EngineCrashed("died")

        def advance(self, decision: Decision) -> None:
            raise EngineCrashed("died")

    retained = RetainedStates()
    retained.store("r", Held(6, "ab"), Dead(7, "ab"))
    assert retained.read("r", 7, ["a"]) == {}
    assert kept(retained) == [(6, "ab")]


def test_a_peer_is_sent_the_states_of_an_attempt_once() -> None:
    """Each answer is a copy in memory and a thread: a peer that asks again and again must not fill this machine."""
    posted: list[str] = []
    endpoint: Any = SimpleNamespace(post=lambda peer, frame, urgency: posted.append(frame.kind))
    retained, wanted = RetainedStates(), StatesWanted(run="r/2", base="r", attempt=2, names=("a",))
    retained.store("r", Held(7, "a"))
    retained.settle("r", 2, Continuation(LiveStart(step=7, committed=7, decision=None, moves={})), ["b"])
    for _ in range(3):
        retained.lend(endpoint, "b", wanted)
    retained.join()
    assert posted == ["lent-end"]


def test_a_name_that_is_requested_several_times_is_read_once() -> None:
    read: list[str] = []

    class Counting(Held):
        def read(self, states: Collection[str]) -> Mapping[str, Array]:
            read.extend(states)
            return {}

    retained, wanted = RetainedStates(), StatesWanted(run="r/2", base="r", attempt=2, names=("a",) * 1000)
    retained.store("r", Counting(7, "a"))
    retained.settle("r", 2, Continuation(LiveStart(step=7, committed=7, decision=None, moves={})), ["b"])
    endpoint: Any = SimpleNamespace(post=lambda peer, frame, urgency: None)
    retained.lend(endpoint, "b", wanted)
    retained.join()
    assert read == ["a"]
