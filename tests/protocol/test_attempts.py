"""A better plan ends an attempt as a loss does, but nobody is lost."""

from __future__ import annotations

from dataclasses import replace

from farflung.protocol.broker import BrokerMachine, RunState
from farflung.protocol.events import (
    ENGINE_CRASHED,
    AbortRun,
    BetterPlan,
    FinishRun,
    MakePlan,
    MemberJoined,
    MemberMeasured,
    MemberSlowed,
    Offer,
    PlanMade,
    RecoverRun,
    RunDropped,
    RunFailed,
    RunPrepared,
    RunSubmitted,
)

OFFER = Offer(memory=1e9, speed=1e9)
BETTER = BetterPlan(run="r", attempt=1, cause="there is a better plan")


def running() -> BrokerMachine:
    made = BrokerMachine()
    made.handle(MemberJoined(name="a", address="x:1", offer=OFFER))
    made.handle(RunSubmitted(run="r", workers=None, recoveries=3))
    made.handle(PlanMade(run="r", devices=("a",)))
    assert made.handle(BETTER) == [], "it does not run yet"
    made.handle(RunPrepared(run="r", name="a"))
    made.handle(MemberJoined(name="b", address="x:1", offer=OFFER))
    return made


def test_the_run_is_planned_again_for_all_once_they_have_let_go() -> None:
    made = running()
    assert made.handle(replace(BETTER, attempt=2)) == [], "of another attempt"
    assert made.handle(BETTER) == [
        AbortRun(run="r", name="a", cause="there is a better plan", keep=True),
        RecoverRun(run="r", cause="there is a better plan", better=True),
    ]
    assert made.handle(RunDropped(run="r", name="a")) == [MakePlan(run="r", members=("a", "b"), attempt=2)]
    assert made.runs["r"].state is RunState.PLANNING
    assert made.runs["r"].lost == 0
    assert made.handle(BETTER) == [], "it does not run"


def test_people_are_told_that_nothing_is_lost() -> None:
    better = RecoverRun(run="r", cause="there is a better plan", better=True)
    assert better.text == "there is a better plan; the run continues with the new plan from the last step"
    assert RecoverRun(run="r", cause="worker b leaves", migrated=True).text == "worker b leaves; other workers take over its part"
    assert RecoverRun(run="r", cause="b died").text == "lost: b died; the broker makes a new plan"


def test_a_drift_counts_until_the_device_is_measured_again() -> None:
    made = running()
    for times, speed in ((4.0, 0.25e9), (2.0, 0.125e9), (0.25, 0.5e9), (0.01, 1e9), (1e9, 1e7)):
        assert made.handle(MemberSlowed(name="a", times=times)) == []
        assert abs(made.members["a"].speed - speed) < 1.0, "never taken for faster than measured, nor for still"
    assert made.members["b"].speed == 1e9
    made.handle(MemberMeasured(name="a", speed=2e9, factor=1.0, overhead=0.0))
    assert made.members["a"].speed == 2e9
    assert made.handle(MemberSlowed(name="nobody", times=2.0)) == []


CRASH = "the process that computes died of SIGFPE in the forward, operator 'y' (aten.div.Tensor_mode)"


def test_a_crash_ends_the_attempt_and_the_second_one_the_run() -> None:
    made = running()
    crash = RunFailed(run="r", name="a", cause=CRASH, kind=ENGINE_CRASHED, attempt=1)
    assert made.handle(crash) == [
        AbortRun(run="r", name="a", cause=f"worker a: {CRASH}", keep=True),
        RecoverRun(run="r", cause=f"worker a: {CRASH}"),
    ]
    assert made.handle(crash) == [], "nobody computes now"
    assert made.handle(RunDropped(run="r", name="a")) == [MakePlan(run="r", members=("a", "b"), attempt=2)]
    made.handle(PlanMade(run="r", devices=("b",), attempt=2))
    made.handle(RunPrepared(run="r", name="b", attempt=2))
    assert made.handle(crash) == [], "of an attempt that is over"
    again = "the job has ended the processes of 2 attempts and is not tried again"
    commands = made.handle(replace(crash, name="b", attempt=2))
    assert commands[-1] == FinishRun(run="r", outcome="failed", cause=f"worker b: {CRASH}; {again}", kind=ENGINE_CRASHED)
    assert {member.name for member in made.members.values() if not member.run} == {"a", "b"}


def test_a_crash_ends_a_run_without_recoveries() -> None:
    made = running()
    made.runs["r"].recoveries = 0
    commands = made.handle(RunFailed(run="r", name="a", cause=CRASH, kind=ENGINE_CRASHED))
    assert commands[-1] == FinishRun(run="r", outcome="failed", cause=f"worker a: {CRASH}", kind=ENGINE_CRASHED)
