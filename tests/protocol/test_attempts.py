"""A better plan ends an attempt as a loss does, but nobody is lost."""

from __future__ import annotations

from dataclasses import replace

from farflung.protocol.broker import BrokerMachine, RunState
from farflung.protocol.events import (
    ENGINE_CRASHED,
    AbortRun,
    BetterPlan,
    Command,
    FinishRun,
    MakePlan,
    MemberJoined,
    MemberLost,
    MemberMeasured,
    MemberSlowed,
    Offer,
    PlanMade,
    RecoverRun,
    RunAdvanced,
    RunDropped,
    RunEnded,
    RunFailed,
    RunPrepared,
    RunSubmitted,
    RunWaits,
)
from farflung.protocol.standing import StandingRecord

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
    assert made.handle(RunDropped(run="r", name="a")) == [MakePlan(run="r", members=("b",), attempt=2)], "another worker"
    made.handle(PlanMade(run="r", devices=("b",), attempt=2))
    made.handle(RunPrepared(run="r", name="b", attempt=2))
    assert made.handle(crash) == [], "of an attempt that is over"
    again = "the job has ended the processes of 2 attempts (on a, b) and is not tried again"
    commands = made.handle(replace(crash, name="b", attempt=2))
    assert commands[-1] == FinishRun(run="r", outcome="failed", cause=f"worker b: {CRASH}; {again}", kind=ENGINE_CRASHED)
    assert {member.name for member in made.members.values() if not member.run} == {"a", "b"}
    assert made.standing("a") == made.standing("b") == "", "the job is at fault"


def crash_on_a(made: BrokerMachine) -> list[Command]:
    attempt = made.runs["r"].attempts
    made.handle(RunFailed(run="r", name="a", cause=CRASH, kind=ENGINE_CRASHED, attempt=attempt))
    return made.handle(RunDropped(run="r", name="a", attempt=attempt))


def begin(made: BrokerMachine, *names: str, run: str = "r") -> None:
    attempt = made.runs[run].attempts
    made.handle(PlanMade(run=run, devices=names, attempt=attempt))
    for name in names:
        made.handle(RunPrepared(run=run, name=name, attempt=attempt))


def test_a_job_that_no_other_worker_can_compute_is_tried_twice_on_one() -> None:
    made = running()
    made.handle(MemberLost(name="b", cause="gone"))
    assert crash_on_a(made) == [MakePlan(run="r", members=("a",), attempt=2)], "nobody else is there"
    begin(made, "a")
    crash_on_a(made)
    where = "(on a, as no other worker could compute it) and is not tried again"
    assert made.runs["r"].cause.endswith(f"the job has ended the processes of 2 attempts {where}")


def test_after_a_crash_another_machine_comes_before_another_worker_of_the_same_machine() -> None:
    made = BrokerMachine()
    for name, host in (("a", "one"), ("b", "one"), ("c", "two")):
        made.handle(MemberJoined(name=name, address="x:1", offer=replace(OFFER, host=host)))
    made.handle(RunSubmitted(run="r", workers=None, recoveries=9))
    begin(made, "a")
    assert crash_on_a(made) == [MakePlan(run="r", members=("c",), attempt=2)]
    failed = made.handle(PlanMade(run="r", attempt=2, error="too little memory", kind="PlanError"))
    assert failed[-1] == MakePlan(run="r", members=("b", "c"), attempt=3)
    failed = made.handle(PlanMade(run="r", attempt=3, error="too little memory", kind="PlanError"))
    assert failed[-1] == MakePlan(run="r", members=("a", "b", "c"), attempt=4), "it can't do without"
    failed = made.handle(PlanMade(run="r", attempt=4, error="too little memory", kind="PlanError"))
    assert [type(one) for one in failed] == [RecoverRun, RunWaits], "it waits for a further worker"


def test_a_crash_that_other_workers_do_not_repeat_costs_standing() -> None:
    made = running()
    assert crash_on_a(made) == [MakePlan(run="r", members=("b",), attempt=2)]
    begin(made, "b")
    for _ in range(99):
        made.handle(RunAdvanced(run="r"))
    assert made.standing_changes() == {}
    made.handle(RunAdvanced(run="r"))
    text = f"a process died on it that did not die on other workers, run r: {CRASH}"
    assert made.standing_changes() == {"a": StandingRecord(points={"r": 1}, causes=(text,))}
    made.handle(RunFailed(run="r", name="b", cause=CRASH, kind=ENGINE_CRASHED, attempt=2))
    assert made.runs["r"].state is RunState.WAITING, "the first crash was not the job's fault, so this is its first one"


def test_a_crash_that_the_same_worker_does_not_repeat_costs_no_standing() -> None:
    made = running()
    made.handle(MemberLost(name="b", cause="gone"))
    crash_on_a(made)
    begin(made, "a")
    for _ in range(100):
        made.handle(RunAdvanced(run="r"))
    assert made.runs["r"].crashed == []
    assert made.standing_changes() == {}


def test_a_run_that_ends_well_shows_that_a_crash_was_not_its_fault() -> None:
    made = running()
    crash_on_a(made)
    begin(made, "b")
    made.handle(RunAdvanced(run="r"))
    made.handle(RunEnded(run="r", name="b"))
    assert made.runs["r"].state is RunState.FINISHED
    assert list(made.standing_changes()) == ["a"]


def test_a_crash_ends_a_run_without_recoveries() -> None:
    made = running()
    made.runs["r"].recoveries = 0
    commands = made.handle(RunFailed(run="r", name="a", cause=CRASH, kind=ENGINE_CRASHED))
    assert commands[-1] == FinishRun(run="r", outcome="failed", cause=f"worker a: {CRASH}", kind=ENGINE_CRASHED)
