"""Members that break the protocol, are late or accuse others: runs continue without them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from farflung.protocol.broker import BrokerMachine, RunState
from farflung.protocol.events import (
    AbortRun,
    Command,
    FinishRun,
    MakePlan,
    MemberJoined,
    MemberJudged,
    MemberLate,
    MemberLied,
    MemberLost,
    MemberReset,
    MemberSpoilt,
    Offer,
    PlanMade,
    RecoverRun,
    RunAdvanced,
    RunDropped,
    RunFailed,
    RunPrepared,
    RunStalled,
    RunSubmitted,
    RunWaits,
)
from farflung.protocol.runs import MemberFailure

OFFER = Offer(memory=1e9, speed=1e9)


def machine(*names: str, workers: int | None = None) -> BrokerMachine:
    """A run that is planned for all of ``names``."""
    made = BrokerMachine()
    for name in names:
        made.handle(MemberJoined(name=name, address=f"{name}:1", offer=OFFER))
    made.handle(RunSubmitted(run="r", workers=workers, recoveries=9))
    return made


def plan(made: BrokerMachine, *names: str) -> list[Command]:
    return made.handle(PlanMade(run="r", attempt=made.runs["r"].attempts, devices=names))


def train(made: BrokerMachine, *names: str) -> None:
    plan(made, *names)
    for name in names:
        made.handle(RunPrepared(run="r", name=name))
    assert made.runs["r"].state is RunState.RUNNING


def drop(made: BrokerMachine, *names: str) -> list[Command]:
    return [command for name in names for command in made.handle(RunDropped(run="r", name=name))]


def of(commands: Sequence[Command], kind: type) -> list[Command]:
    return [command for command in commands if isinstance(command, kind)]


def test_a_run_continues_without_a_member_that_breaks_the_protocol() -> None:
    made = machine("a", "b", "c")
    train(made, "a", "b", "c")
    commands = made.handle(MemberLied(run="r", name="b", cause="bad message 'step'"))
    (judged,) = of(commands, MemberJudged)
    assert judged == MemberJudged(
        name="b",
        run="r",
        text="worker b is in quarantine, since it broke the protocol: bad message 'step'; farflung kick b --undo resets this",
    )
    assert RecoverRun(run="r", cause="worker b is left out: it broke the protocol: bad message 'step'") in commands
    assert [one.name for one in of(commands, AbortRun)] == ["a", "b", "c"]  # type: ignore[attr-defined]
    assert drop(made, "a", "c") == [MakePlan(run="r", members=("a", "c"), attempt=2)], "nobody waits for the liar"
    assert made.standing("b").startswith("in quarantine, since it broke the protocol")


def test_quarantine_ends_when_the_owner_says_so() -> None:
    made = machine("b", workers=1)
    train(made, "b")
    made.handle(MemberLied(run="r", name="b", cause="x"))
    assert made.runs["r"].state is RunState.WAITING
    assert made.handle(MemberReset(name="b")) == [MakePlan(run="r", members=("b",), attempt=2)]


@pytest.mark.parametrize("times", [1, 2])
def test_a_member_that_does_not_prepare_is_planned_last_and_then_not_at_all(times: int) -> None:
    made = machine("a", "b", workers=2)
    for _ in range(times):
        plan(made, "a", "b")
        made.handle(RunPrepared(run="r", name="a"))
        commands = made.handle(MemberLate(run="r", name="b", what="did not prepare within 10 min 0 s"))
        assert len(of(commands, MemberJudged)) == 1
        commands = drop(made, "a")
    again = MakePlan(run="r", members=("a", "b"), attempt=2) if times == 1 else RunWaits(run="r", missing=1)
    assert commands == [again], "it is needed once more, and then in quarantine"
    joined = made.handle(MemberJoined(name="c", address="c:1", offer=OFFER))
    assert joined == ([] if times == 1 else [MakePlan(run="r", members=("a", "c"), attempt=3)])


def test_a_run_that_could_do_without_a_late_member_does() -> None:
    made = machine("a", "b")
    plan(made, "a", "b")
    made.handle(MemberLate(run="r", name="b", what="did not prepare"))
    assert drop(made, "a") == [MakePlan(run="r", members=("a",), attempt=2)]
    commands = made.handle(PlanMade(run="r", attempt=2, error="too little memory", kind="PlanError"))
    assert commands[-1] == MakePlan(run="r", members=("a", "b"), attempt=3), "it can't do without"


def test_who_does_not_leave_an_attempt_is_not_waited_for() -> None:
    made = machine("a", "b")
    train(made, "a", "b")
    stalled = made.handle(RunStalled(run="r", attempt=1, cause="no step was made for 300 s"))
    assert stalled[-1] == RecoverRun(run="r", cause="no step was made for 300 s")
    assert drop(made, "a") == []
    late = made.handle(MemberLate(run="r", name="b", what="did not leave the attempt", attempt=1))
    assert late[-1] == MakePlan(run="r", members=("a",), attempt=2)
    assert made.handle(MemberLate(run="r", name="a", what="too old", attempt=1)) == []


def accuse(made: BrokerMachine, *names: str) -> list[Command]:
    train(made, *names)
    made.handle(RunFailed(run="r", name="a", cause="lost b", lost_peer=True))
    return drop(made, *names)


def test_who_loses_peers_that_are_there_again_and_again_is_planned_last() -> None:
    made = machine("a", "b", "c")
    assert accuse(made, "a", "b", "c") == [MakePlan(run="r", members=("a", "b", "c"), attempt=2)]
    assert accuse(made, "a", "b", "c") == [MakePlan(run="r", members=("b", "c"), attempt=3)]
    assert made.standing("a").startswith("planned last, since it reported a loss of a peer that was there: lost b")


def test_who_was_right_keeps_its_standing() -> None:
    made = machine("a", "b", "c")
    for attempt in (2, 3, 4):
        train(made, "a", "b", "c")
        made.handle(RunFailed(run="r", name="a", cause="lost b", lost_peer=True))
        made.handle(MemberLost(name="b", cause="its connection broke off"))
        made.handle(MemberJoined(name="b", address="b:1", offer=OFFER))
        assert drop(made, "a", "c") == [MakePlan(run="r", members=("a", "c", "b"), attempt=attempt)]
    assert made.standing("a") == ""


def test_a_member_with_spoilt_gradients_is_planned_last_at_the_second_time_and_never_in_quarantine() -> None:
    made = machine("a", "b")
    train(made, "a", "b")
    assert made.handle(MemberSpoilt(run="r", name="b", step=3)) == []
    (judged,) = made.handle(MemberSpoilt(run="r", name="b", step=4))
    cause = "its gradients were not finite in step 4 of r; farflung kick b --undo resets this"
    assert judged == MemberJudged(name="b", run="r", text=f"worker b is planned last, since {cause}")
    for step in range(5, 15):
        assert made.handle(MemberSpoilt(run="r", name="b", step=step)) == [], "said once"
    assert made.standing("b").startswith("planned last")
    assert made.runs["r"].state is RunState.RUNNING


FAILED = RunFailed(run="r", name="a", cause="no sense", kind="DataError")


def replacement(culprit: str, event: RunFailed) -> RecoverRun:
    reporter = "it" if event.name == culprit else f"worker {event.name}"
    text = f"worker {culprit} is replaced, because {reporter} reports: {event.cause}"
    found = RecoverRun(run="r", cause=text, replaced=True)
    assert found.text == f"{text}; the broker makes a new plan", "nobody is lost"
    return found


def replaced(made: BrokerMachine, event: RunFailed, culprit: str) -> None:
    """``event`` ends an attempt, and ``culprit`` is left out."""
    devices = made.runs["r"].devices
    commands = made.handle(event)
    assert replacement(culprit, event) in commands
    (judged,) = [one for one in commands if isinstance(one, MemberJudged)]
    assert judged.text.startswith(f"worker {culprit} is planned last, since it failed: {event.cause}; ")
    (plan,) = drop(made, *devices)
    assert isinstance(plan, MakePlan)
    assert culprit not in plan.members
    train(made, *plan.members)


def test_a_run_continues_without_a_member_that_fails() -> None:
    made = machine("a", "b", "c")
    train(made, "a", "b", "c")
    replaced(made, FAILED, "a")
    assert made.runs["r"].state is RunState.RUNNING


def test_a_failure_that_repeats_elsewhere_ends_the_run_and_pardons_the_first() -> None:
    made = machine("a", "b", "c")
    train(made, "a", "b", "c")
    replaced(made, FAILED, "a")
    finish = made.handle(replace(FAILED, name="b"))[-1]
    cause = "worker b: no sense; the attempt with worker a failed like this, too"
    assert finish == FinishRun(run="r", outcome="failed", cause=cause, kind="DataError")
    assert made.standing("a") == ""


def test_a_job_that_is_the_cause_costs_nobody_anything_whoever_was_blamed() -> None:
    """b gets what is not finite from a, then computes it alone; then a computes it alone."""
    made = machine("a", "b")
    train(made, "a", "b")
    replaced(made, replace(FAILED, name="b", blames="a"), "a")
    assert made.runs["r"].devices == ("b",)
    replaced(made, replace(FAILED, name="b"), "b")
    assert made.runs["r"].devices == ("a",)
    assert made.standing("a") == "", "b fails without it, too"
    assert isinstance(made.handle(FAILED)[-1], FinishRun)
    assert [made.standing(name) for name in "ab"] == ["", ""]


def test_a_member_that_lacks_the_data_of_a_job_is_replaced_and_keeps_its_standing() -> None:
    made = machine("a", "b", "c")
    plan(made, "a", "b", "c")
    missing = RunFailed(run="r", name="a", cause="data 'x' is not on this machine", kind="DataError", attempt=1)
    commands = made.handle(missing)
    assert of(commands, RecoverRun) == [replacement("a", missing)]
    assert not of(commands, MemberJudged)
    assert drop(made, "a", "b", "c") == [MakePlan(run="r", members=("b", "c"), attempt=2)]
    plan(made, "b", "c")
    finish = made.handle(replace(missing, name="b", attempt=2))[-1]
    cause = f"worker b: {missing.cause}; the attempt with worker a failed like this, too"
    assert finish == FinishRun(run="r", outcome="failed", cause=cause, kind="DataError")
    assert [made.standing(name) for name in "abc"] == ["", "", ""]


def test_a_member_whose_data_others_outvote_is_replaced_and_whoever_was_replaced_for_it_returns() -> None:
    made = machine("a", "b", "c", workers=2)
    plan(made, "a", "b")
    differ = RunFailed(run="r", name="b", cause="a and b hold different data", kind="DataError", attempt=1)
    assert of(made.handle(differ), RecoverRun) == [replacement("b", differ)]
    assert drop(made, "a", "b") == [MakePlan(run="r", members=("a", "c"), attempt=2)]
    plan(made, "a", "c")
    outvoted = replace(differ, name="a", attempt=2, outvoted_by=frozenset("bc"))
    assert of(made.handle(outvoted), RecoverRun) == [replacement("a", outvoted)]
    assert drop(made, "a", "c") == [MakePlan(run="r", members=("b", "c"), attempt=3)]
    assert [made.standing(name) for name in "abc"] == ["", "", ""]


def test_a_member_that_lacks_the_data_of_a_job_keeps_what_others_know_against_it() -> None:
    made = machine("a", "b", "c")
    train(made, "a", "b", "c")
    replaced(made, replace(FAILED, kind="GraphError"), "a")
    known = made.standing("a")
    made.runs["r"].lacking.add("a")
    made.runs["r"].failures.append(MemberFailure("a", "a", "DataError"))
    assert isinstance(made.handle(replace(FAILED, name="b"))[-1], FinishRun)
    assert made.standing("a") == known != ""


def test_another_failure_is_no_evidence() -> None:
    made = machine("a", "b", "c")
    train(made, "a", "b", "c")
    replaced(made, FAILED, "a")
    replaced(made, replace(FAILED, name="b", kind="GraphError"), "b")


def test_a_new_step_is_evidence_that_the_job_is_well() -> None:
    made = machine("a", "b", "c")
    train(made, "a", "b", "c")
    replaced(made, FAILED, "a")
    made.handle(RunAdvanced(run="r"))
    replaced(made, replace(FAILED, name="b"), "b")


@pytest.mark.parametrize("names", [("a",), ("a", "b")])
def test_a_member_without_which_there_is_no_run_ends_it(names: tuple[str, ...]) -> None:
    made = machine(*names, workers=len(names))
    train(made, *names)
    finish = made.handle(FAILED)[-1]
    assert finish == FinishRun(run="r", outcome="failed", cause="worker a: no sense", kind="DataError")


def test_who_is_blamed_is_replaced_once_and_then_who_blames() -> None:
    """A member that blames one after the other ends no run."""
    made = machine("a", "b", "c", "d")
    train(made, "a", "b", "c", "d")
    replaced(made, replace(FAILED, blames="d"), "d")
    replaced(made, replace(FAILED, blames="c"), "a")
    assert made.runs["r"].devices == ("b", "c", "d"), "nobody believes a any more"
    assert made.standing("d") == ""


def test_two_that_blame_different_members_are_evidence() -> None:
    made = machine("a", "b", "c", "d")
    train(made, "a", "b", "c", "d")
    replaced(made, replace(FAILED, blames="d"), "d")
    finish = made.handle(replace(FAILED, name="b", blames="c"))[-1]
    assert isinstance(finish, FinishRun)
    assert finish.cause == "worker c: no sense (told by worker b); the attempt with worker d failed like this, too"


def test_members_that_wait_for_each_other_are_planned_last_the_second_time() -> None:
    made = machine("a", "b", "c")
    for attempt, devices in [(1, ("a", "b", "c")), (2, ("a", "b", "c")), (3, ("a",))]:
        assert made.runs["r"].attempts == attempt
        train(made, *devices)
        made.handle(RunStalled(run="r", attempt=attempt, cause="b and c have waited for each other", suspects=("b", "c")))
        drop(made, *devices)
        if attempt == 2:
            assert made.standing("b").startswith("planned last, since b and c have waited for each other")


def test_replicas_that_differ_lose_standing_and_the_attempt_ends() -> None:
    made = machine("a", "b", "c")
    train(made, "a", "b", "c")
    cause = "the states of a and b after step 4 differ, although they must be equal"
    stalled = RunStalled(run="r", attempt=1, cause=cause, suspects=("a", "b"))
    assert made.handle(stalled)[-1] == RecoverRun(run="r", cause=cause)
    assert made.handle(stalled) == [], "of an attempt that is over"
