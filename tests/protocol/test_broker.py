"""The broker's decisions: each transition by hand (``scenarios/test_broker_orders.py`` has random orders)."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from farflung.errors import InputError
from farflung.protocol.broker import BrokerMachine, RunState
from farflung.protocol.cluster_state import ClusterState
from farflung.protocol.events import (
    AbortRun,
    BetterPlan,
    Command,
    DismissMember,
    FinishRun,
    MakePlan,
    MemberJoined,
    MemberLost,
    MemberMeasured,
    MemberWants,
    MigrateRun,
    Offer,
    PlanMade,
    PrepareRun,
    RecoverRun,
    RunAdvanced,
    RunDropped,
    RunEnded,
    RunFailed,
    RunPrepared,
    RunRestored,
    RunSubmitted,
    RunWaits,
    StartRun,
    StopRequested,
    StopRun,
    WaitedEnough,
)

OFFER = Offer(memory=1e9, speed=1e9)


def test_a_fresh_measurement_replaces_the_offer() -> None:
    made = machine("a")
    event = MemberMeasured(name="a", speed=5e9, factor=0.5, overhead=1e-5)
    assert made.handle(event) == []
    offer = made.members["a"].offer
    assert (offer.speed, offer.factor, offer.overhead, offer.memory) == (5e9, 0.5, 1e-5, 1e9)
    assert made.handle(MemberMeasured(name="gone", speed=1.0, factor=1.0, overhead=0.0)) == []


def leaves(name: str) -> MemberWants:
    return MemberWants(name=name, parting="leave")


def test_a_worker_that_leaves_hands_over_after_the_step_and_that_is_no_loss() -> None:
    made = running("a", "b")
    made.runs["r"].workers = None
    assert made.handle(leaves("b")) == [MigrateRun(run="r", name="a"), MigrateRun(run="r", name="b")]
    assert made.handle(leaves("b")) == [], "asked twice"
    assert made.members["b"].state(trains=True) == "draining"
    assert made.handle(RunEnded(run="r", name="b", whole=False)) == []
    assert made.handle(RunEnded(run="r", name="a", whole=False)) == [
        RecoverRun(run="r", cause="worker b leaves", migrated=True),
        MakePlan(run="r", members=("a",), attempt=2),
        DismissMember(name="b"),
    ]
    assert made.runs["r"].lost == 0
    assert made.handle(MemberLost(name="b", cause="it left")) == []
    assert [gone.cause for gone in made.gone.values()] == ["it left"]


def test_a_run_that_ends_while_it_is_handed_over_has_ended() -> None:
    made = running("a")
    made.handle(leaves("a"))
    assert made.handle(RunEnded(run="r", name="a")) == [FinishRun(run="r", outcome="finished"), DismissMember(name="a")]


def test_who_is_paused_gets_no_work_until_it_is_not() -> None:
    made = running("a", "b")
    made.runs["r"].workers = None
    made.handle(MemberWants(name="a", paused=True))
    made.handle(RunEnded(run="r", name="a", whole=False))
    commands = made.handle(RunEnded(run="r", name="b", whole=False))
    assert commands == [
        RecoverRun(run="r", cause="worker a is paused", migrated=True),
        MakePlan(run="r", members=("b",), attempt=2),
    ]
    assert made.members["a"].state(trains=False) == "standby"
    assert made.handle(RunSubmitted(run="s", workers=None)) == []
    assert made.handle(MemberWants(name="a")) == [MakePlan(run="s", members=("a",), attempt=1)]


def test_who_drains_serves_its_run_to_the_end() -> None:
    made = running("a")
    assert made.handle(MemberWants(name="a", parting="drain")) == []
    made.handle(RunSubmitted(run="s", workers=None))
    assert made.handle(RunEnded(run="r", name="a")) == [FinishRun(run="r", outcome="finished"), DismissMember(name="a")]


def test_an_idle_worker_may_leave_at_once_and_one_that_is_planned_for_is_left_out() -> None:
    made = machine("a", "b", "c")
    assert made.handle(leaves("c")) == [DismissMember(name="c")]
    assert made.handle(MemberWants(name="nobody", paused=True)) == []
    made.handle(RunSubmitted(run="r", workers=None))
    assert made.handle(leaves("b")) == [MakePlan(run="r", members=("a",), attempt=2), DismissMember(name="b")]
    made.handle(PlanMade(run="r", attempt=2, devices=("a",)))
    assert made.handle(MemberWants(name="a", paused=True)) == [
        AbortRun(run="r", name="a", cause="worker a is paused", keep=True),
        RecoverRun(run="r", cause="worker a is paused"),
    ]


def test_no_run_begins_on_a_worker_that_joins_paused() -> None:
    made = machine()
    made.handle(RunSubmitted(run="r", workers=1))
    paused = MemberWants(name="a", paused=True, memory=5e8)
    assert made.handle(MemberJoined(name="a", address="a:1", offer=OFFER, wants=paused)) == []
    assert made.members["a"].offer.memory == 5e8
    assert made.handle(MemberWants(name="a")) == [MakePlan(run="r", members=("a",), attempt=1)]


@pytest.mark.parametrize("wish", [{"paused": True}, {"parting": "leave"}], ids=["paused", "leaves"])
def test_who_withdraws_from_an_attempt_that_is_over_hands_nothing_over(wish: dict[str, Any]) -> None:
    made = surviving("a", "b", "c", "d")
    made.handle(MemberLost(name="d", cause="dead"))
    assert made.handle(MemberWants(name="c", **wish)) == []
    assert MakePlan(run="r", members=("a", "b"), attempt=2) in drop(made, "a", "b", "c")
    begin(made, "a", "b")
    assert made.handle(leaves("b")) == [MigrateRun(run="r", name="a"), MigrateRun(run="r", name="b")]


def test_jobs_queue_in_their_order() -> None:
    made = machine()
    for run in ("r", "s", "t"):
        made.handle(RunSubmitted(run=run, workers=1))
    assert [one.run for one in made.waiting()] == ["r", "s", "t"]
    assert made.handle(StopRequested(run="s")) == [FinishRun(run="s", outcome="stopped")]
    assert [one.run for one in made.waiting()] == ["r", "t"]
    assert made.handle(MemberJoined(name="a", address="a:1", offer=OFFER)) == [MakePlan(run="r", members=("a",), attempt=1)]


def machine(*names: str) -> BrokerMachine:
    made = BrokerMachine()
    for name in names:
        assert made.handle(MemberJoined(name=name, address=f"{name}:1", offer=OFFER)) == []
    return made


def running(*names: str) -> BrokerMachine:
    made = machine(*names)
    made.handle(RunSubmitted(run="r", workers=len(names)))
    made.handle(PlanMade(run="r", devices=names))
    for name in names:
        made.handle(RunPrepared(run="r", name=name))
    assert made.runs["r"].state is RunState.RUNNING
    return made


def idle(made: BrokerMachine) -> set[str]:
    return {member.name for member in made.members.values() if member.run is None}


def test_the_whole_life_of_a_run() -> None:
    made = machine("a", "b")
    assert made.handle(RunSubmitted(run="r", workers=2)) == [MakePlan(run="r", members=("a", "b"), attempt=1)]
    assert made.handle(PlanMade(run="r", devices=("b", "a"))) == [PrepareRun(run="r", name="b"), PrepareRun(run="r", name="a")]
    assert made.handle(RunPrepared(run="r", name="a")) == []
    assert made.handle(RunPrepared(run="r", name="b")) == [StartRun(run="r", name="b"), StartRun(run="r", name="a")]
    assert made.handle(RunEnded(run="r", name="b")) == []
    assert made.handle(RunEnded(run="r", name="a")) == [FinishRun(run="r", outcome="finished")]
    assert idle(made) == {"a", "b"}


def test_a_run_waits_for_its_workers() -> None:
    made = machine("a")
    assert made.handle(RunSubmitted(run="r", workers=2)) == []
    assert made.handle(MemberJoined(name="b", address="b:1", offer=OFFER)) == [MakePlan(run="r", members=("a", "b"))]


def test_a_run_without_a_number_takes_whoever_is_there() -> None:
    made = BrokerMachine()
    assert made.handle(RunSubmitted(run="r", workers=None)) == []
    assert made.handle(MemberJoined(name="a", address="a:1", offer=OFFER)) == [MakePlan(run="r", members=("a",))]


def test_workers_that_the_plan_leaves_out_serve_the_next_run() -> None:
    made = machine("a", "b", "c")
    made.handle(RunSubmitted(run="r", workers=2))
    made.handle(RunSubmitted(run="s", workers=1))
    commands = made.handle(PlanMade(run="r", devices=("a", "c")))
    assert commands[-1] == MakePlan(run="s", members=("b",))


def test_runs_wait_their_turn() -> None:
    made = running("a", "b")
    assert made.handle(RunSubmitted(run="s", workers=1)) == []
    made.handle(RunEnded(run="r", name="a"))
    assert made.handle(RunEnded(run="r", name="b"))[-1] == MakePlan(run="s", members=("a", "b"))


def test_a_long_queue_costs_nothing_while_too_few_members_are_ready(monkeypatch: pytest.MonkeyPatch) -> None:
    made = running("a", "b")
    made.handle(MemberJoined(name="c", address="c:1", offer=OFFER))
    monkeypatch.setattr(ClusterState, "may_take", lambda *_: pytest.fail("no waiting run can begin, so no member is considered"))
    for number in range(3):
        assert made.handle(RunSubmitted(run=f"s{number}", workers=2)) == []
    assert made.handle(RunAdvanced(run="r")) == []


def test_names_are_taken_once() -> None:
    made = machine("a")
    with pytest.raises(InputError, match="a worker called 'a' is connected already; choose another name with --name"):
        made.handle(MemberJoined(name="a", address="x:1", offer=OFFER))
    made.handle(RunSubmitted(run="r", workers=9))
    with pytest.raises(InputError, match="run 'r' exists already"):
        made.handle(RunSubmitted(run="r", workers=1))


@pytest.mark.parametrize("event", [StopRequested(run="x"), RunEnded(run="x", name="a"), PlanMade(run="x")])
def test_unknown_runs_are_named_with_the_known_ones(event: StopRequested | RunEnded | PlanMade) -> None:
    with pytest.raises(InputError, match="there is no run 'x'; known runs: r"):
        running("a").handle(event)


def test_a_worker_lost_in_mid_run_ends_the_run_and_frees_the_others() -> None:
    made = running("a", "b", "c")
    commands = made.handle(MemberLost(name="b", cause="the connection broke off"))
    cause = "worker b is gone: the connection broke off"
    assert commands == [
        AbortRun(run="r", name="a", cause=cause),
        AbortRun(run="r", name="c", cause=cause),
        FinishRun(run="r", outcome="failed", cause=cause, kind="TrainingError"),
    ]
    assert idle(made) == {"a", "c"}


def test_a_lost_peer_is_named_first() -> None:
    made = running("a", "b")
    (*_, finish) = made.handle(RunFailed(run="r", name="a", cause="lost b: the connection broke off", lost_peer=True))
    assert isinstance(finish, FinishRun)
    assert finish.cause == "lost b: the connection broke off (told by worker a)"
    assert made.handle(MemberLost(name="b", cause="dead")) == []


def test_a_worker_that_has_done_its_part_may_leave() -> None:
    made = running("a", "b")
    made.handle(RunEnded(run="r", name="b"))
    assert made.handle(MemberLost(name="b", cause="it left")) == []
    assert made.handle(RunEnded(run="r", name="a")) == [FinishRun(run="r", outcome="finished")]


def test_it_may_even_come_back_and_serve_another_run_meanwhile() -> None:
    made = running("a", "b")
    made.handle(RunEnded(run="r", name="b"))
    made.handle(MemberLost(name="b", cause="it left"))
    made.handle(RunSubmitted(run="s", workers=1))
    assert made.handle(MemberJoined(name="b", address="b:2", offer=OFFER)) == [MakePlan(run="s", members=("b",))]
    commands = made.handle(RunFailed(run="r", name="a", cause="out of memory"))
    assert [type(command) for command in commands] == [
        AbortRun,
        FinishRun,
    ]
    assert made.members["b"].run == "s"


def test_a_worker_lost_while_planning_sends_the_run_back_to_wait() -> None:
    made = machine("a", "b")
    made.handle(RunSubmitted(run="r", workers=2))
    assert made.handle(MemberLost(name="b", cause="dead")) == [RunWaits(run="r", missing=1)]
    assert made.runs["r"].state is RunState.WAITING
    assert drop(made, "a") == []
    assert made.handle(MemberJoined(name="c", address="c:1", offer=OFFER)) == [MakePlan(run="r", members=("a", "c"), attempt=2)]
    assert made.handle(PlanMade(run="r", attempt=1, devices=("a", "b"))) == [], "the plan for the old workers is not taken"
    assert made.handle(PlanMade(run="r", attempt=2, devices=("c",))) == [PrepareRun(run="r", name="c")]


def test_no_plan_fails_the_run_with_the_planners_words() -> None:
    made = machine("a")
    made.handle(RunSubmitted(run="r", workers=1))
    commands = made.handle(PlanMade(run="r", error="device a lacks 1.2 GB", kind="PlanError"))
    assert commands == [FinishRun(run="r", outcome="failed", cause="device a lacks 1.2 GB", kind="PlanError")]


@pytest.mark.parametrize("devices", [("a", "z"), ()])
def test_a_plan_for_others_is_none(devices: tuple[str, ...]) -> None:
    made = machine("a")
    made.handle(RunSubmitted(run="r", workers=1))
    (finish,) = made.handle(PlanMade(run="r", devices=devices))
    assert isinstance(finish, FinishRun)
    assert finish.kind == "PlanError"
    assert "who was not offered to it" in finish.cause


def test_stop_waits_for_the_step_unless_now() -> None:
    made = running("a", "b")
    assert made.handle(StopRequested(run="r")) == [StopRun(run="r", name="a"), StopRun(run="r", name="b")]
    made.handle(RunEnded(run="r", name="a"))
    assert made.handle(RunEnded(run="r", name="b")) == [FinishRun(run="r", outcome="stopped")]
    made = running("a")
    assert made.handle(StopRequested(run="r", now=True)) == [
        AbortRun(run="r", name="a", cause="stopped"),
        FinishRun(run="r", outcome="stopped"),
    ]
    assert made.handle(StopRequested(run="r")) == []


def test_stop_of_a_run_that_waits_or_plans() -> None:
    made = machine("a")
    made.handle(RunSubmitted(run="w", workers=2))
    assert made.handle(StopRequested(run="w")) == [FinishRun(run="w", outcome="stopped")]
    made.handle(RunSubmitted(run="p", workers=1))
    assert made.handle(StopRequested(run="p")) == [FinishRun(run="p", outcome="stopped")]
    assert made.handle(PlanMade(run="p", devices=("a",))) == []
    assert idle(made) == {"a"}


def test_reports_of_strangers_change_nothing() -> None:
    made = running("a")
    made.handle(MemberJoined(name="z", address="z:1", offer=OFFER))
    assert made.handle(RunFailed(run="r", name="z", cause="ha")) == []
    assert made.handle(RunEnded(run="r", name="z")) == []
    assert made.handle(RunPrepared(run="r", name="z")) == []
    assert made.runs["r"].state is RunState.RUNNING


def test_a_failure_of_the_run_as_a_whole_names_no_worker() -> None:
    made = running("a")
    (_, finish) = made.handle(RunFailed(run="r", cause="no space left", kind="DataError"))
    assert finish == FinishRun(run="r", outcome="failed", cause="no space left", kind="DataError")


# -- losses that are survived -----------------------------------------------------------------------------------------------


def surviving(*names: str, recoveries: int = 2, workers: int | None = None) -> BrokerMachine:
    made = machine(*names)
    made.handle(RunSubmitted(run="r", workers=workers, recoveries=recoveries))
    begin(made, *names)
    return made


def begin(made: BrokerMachine, *names: str) -> None:
    attempt = made.runs["r"].attempts
    made.handle(PlanMade(run="r", attempt=attempt, devices=names))
    for name in names:
        made.handle(RunPrepared(run="r", name=name, attempt=attempt))
    assert made.runs["r"].state is RunState.RUNNING


def drop(made: BrokerMachine, *names: str) -> list[Command]:
    """All have let go of the last attempt; what comes of it, at last."""
    attempt = made.runs["r"].attempts
    *early, last = [made.handle(RunDropped(run="r", name=name, attempt=attempt)) for name in names]
    assert early == [[]] * len(early), "they are awaited all"
    return last


def test_a_loss_is_planned_around() -> None:
    made = surviving("a", "b", "c")
    cause = "worker b is gone: dead"
    assert made.handle(MemberLost(name="b", cause="dead")) == [
        AbortRun(run="r", name="a", cause=cause, keep=True),
        AbortRun(run="r", name="c", cause=cause, keep=True),
        RecoverRun(run="r", cause=cause),
    ]
    assert drop(made, "a", "c") == [MakePlan(run="r", members=("a", "c"), attempt=2)]
    assert made.handle(RunDropped(run="r", name="a", attempt=1)) == [], "told twice"
    assert made.handle(RunEnded(run="r", name="a", attempt=1)) == [], "an older plan's"
    begin(made, "a", "c")


def test_both_ends_of_a_broken_link_go_on() -> None:
    made = surviving("a", "b")
    commands = made.handle(RunFailed(run="r", name="a", cause="lost b", lost_peer=True, attempt=1))
    assert commands[-1] == RecoverRun(run="r", cause="lost b (told by worker a)")
    assert made.handle(RunFailed(run="r", name="b", cause="lost a", lost_peer=True, attempt=1)) == [], "the same loss, told twice"
    assert drop(made, "a", "b") == [MakePlan(run="r", members=("a", "b"), attempt=2)]
    assert made.runs["r"].lost == 1


def test_those_who_go_while_they_are_awaited_are_awaited_no_more() -> None:
    made = surviving("a", "b", "c")
    made.handle(MemberLost(name="b", cause="dead"))
    made.handle(RunSubmitted(run="other", workers=1))
    assert made.runs["other"].state is RunState.WAITING, "nobody is free before all have let go"
    assert made.handle(RunDropped(run="r", name="c", attempt=1)) == []
    assert made.handle(MemberLost(name="a", cause="dead, too")) == [MakePlan(run="r", members=("c",), attempt=2)]


def test_a_run_that_is_stopped_while_workers_let_go_frees_them() -> None:
    made = surviving("a", "b")
    made.handle(MemberLost(name="b", cause="dead"))
    assert made.handle(StopRequested(run="r", now=True)) == [FinishRun(run="r", outcome="stopped")]
    assert made.members["a"].run is None


def test_a_stop_between_two_plans_waits_for_a_step_and_its_checkpoint() -> None:
    made = surviving("a", "b")
    made.handle(BetterPlan(run="r", attempt=1, cause="there is a better plan"))
    assert made.handle(StopRequested(run="r")) == [], "workers hold steps that no checkpoint has"
    drop(made, "a", "b")
    assert made.handle(StopRequested(run="r")) == []
    made.handle(PlanMade(run="r", devices=("a", "b"), attempt=2))
    assert made.handle(StopRequested(run="r")) == []
    made.handle(RunPrepared(run="r", name="a", attempt=2))
    stops = [StopRun(run="r", name="a"), StopRun(run="r", name="b")]
    assert made.handle(RunPrepared(run="r", name="b", attempt=2)) == [
        StartRun(run="r", name="a"),
        StartRun(run="r", name="b"),
        *stops,
    ]
    made.handle(RunEnded(run="r", name="a", attempt=2, whole=False))
    assert made.handle(RunEnded(run="r", name="b", attempt=2, whole=False)) == [FinishRun(run="r", outcome="stopped")]


def test_a_stop_between_two_plans_ends_the_run_where_there_is_no_plan_or_nobody() -> None:
    made = surviving("a", "b")
    made.handle(MemberLost(name="b", cause="dead"))
    assert made.handle(StopRequested(run="r")) == []
    drop(made, "a")
    (finish,) = made.handle(PlanMade(run="r", attempt=2, error="too small", kind="PlanError"))
    assert finish == FinishRun(run="r", outcome="stopped")
    made = surviving("a", "b")
    made.handle(MemberLost(name="b", cause="dead"))
    assert made.handle(StopRequested(run="r")) == []
    assert made.handle(MemberLost(name="a", cause="dead, too")) == [FinishRun(run="r", outcome="stopped")]


def test_reports_of_an_older_plan_prepare_and_fail_nothing() -> None:
    made = surviving("a", "b")
    made.handle(MemberLost(name="b", cause="dead"))
    drop(made, "a")
    made.handle(PlanMade(run="r", attempt=2, devices=("a",)))
    assert made.handle(RunPrepared(run="r", name="a", attempt=1)) == []
    assert made.handle(RunFailed(run="r", name="a", cause="out of memory", attempt=1)) == []
    assert made.handle(RunPrepared(run="r", name="a", attempt=2)) == [StartRun(run="r", name="a")]


def test_it_waits_for_as_many_as_the_job_asks_for() -> None:
    made = surviving("a", "b", workers=2)
    assert made.handle(MemberLost(name="b", cause="dead"))[-1] == RecoverRun(run="r", cause="worker b is gone: dead")
    assert made.runs["r"].state is RunState.WAITING
    assert drop(made, "a") == [RunWaits(run="r", missing=1)]
    assert made.handle(MemberJoined(name="c", address="c:1", offer=OFFER)) == [MakePlan(run="r", members=("a", "c"), attempt=2)]


def test_a_run_without_any_worker_says_once_what_it_waits_for() -> None:
    made = surviving("a", "b")
    assert made.handle(MemberLost(name="b", cause="dead"))[-1] == RecoverRun(run="r", cause="worker b is gone: dead")
    (waits,) = made.handle(MemberLost(name="a", cause="dead"))
    assert waits == RunWaits(run="r", missing=1)
    assert waits.text == "waiting for 1 more worker: add workers with farflung join, or end the run with farflung stop r"
    assert RunWaits(run="r", missing=2).text.startswith("waiting for 2 more workers: ")
    assert made.handle(RunSubmitted(run="other", workers=1)) == [], "it is said once, and a new run has its own answer"
    made.handle(MemberJoined(name="c", address="c:1", offer=OFFER))
    made.handle(PlanMade(run="r", attempt=2, devices=("c",)))
    assert made.handle(MemberLost(name="c", cause="dead"))[-1] == RunWaits(run="r", missing=1), "it waits again"


@pytest.mark.parametrize("kind", ["PlanError", "InputError"])
def test_it_waits_for_somebody_new_where_those_left_do_not_suffice(kind: str) -> None:
    made = surviving("a", "b")
    made.handle(MemberLost(name="b", cause="dead"))
    drop(made, "a")
    commands = made.handle(PlanMade(run="r", attempt=2, error="device a lacks 1.2 GB", kind=kind))
    assert commands == [
        RecoverRun(run="r", cause="no plan for those who are left: device a lacks 1.2 GB"),
        RunWaits(run="r", missing=1),
    ]
    assert made.handle(MemberJoined(name="b", address="b:2", offer=OFFER)) == [MakePlan(run="r", members=("a", "b"), attempt=3)]


def test_trouble_of_the_brokers_own_while_it_plans_again_ends_the_run() -> None:
    made = surviving("a", "b")
    made.handle(MemberLost(name="b", cause="dead"))
    drop(made, "a")
    commands = made.handle(PlanMade(run="r", attempt=2, error="no space left", kind="DiskFull"))
    assert commands == [FinishRun(run="r", outcome="failed", cause="no space left", kind="DiskFull")]


def test_too_many_losses_without_a_step_end_the_run() -> None:
    made = surviving("a", "b", recoveries=2, workers=2)
    for attempt in (1, 2):
        made.handle(RunFailed(run="r", name="a", cause="lost b", lost_peer=True, attempt=attempt))
        drop(made, "a", "b")
        begin(made, "a", "b")
    (*_, finish) = made.handle(RunFailed(run="r", name="a", cause="lost b", lost_peer=True, attempt=3))
    assert isinstance(finish, FinishRun)
    assert finish.cause == "lost b (told by worker a) (2 recoveries without a new step came before)"


def test_a_new_step_gives_it_all_its_recoveries_again() -> None:
    made = surviving("a", "b", recoveries=1, workers=2)
    for attempt in range(1, 6):
        made.handle(RunFailed(run="r", name="a", cause="lost b", lost_peer=True, attempt=attempt))
        drop(made, "a", "b")
        begin(made, "a", "b")
        assert made.handle(RunAdvanced(run="r")) == []


def test_a_run_that_is_stopping_ends_at_a_loss() -> None:
    made = surviving("a", "b")
    made.handle(StopRequested(run="r"))
    commands = made.handle(MemberLost(name="b", cause="dead"))
    assert commands == [AbortRun(run="r", name="a", cause="worker b is gone: dead"), FinishRun(run="r", outcome="stopped")]


def test_a_restored_run_waits_for_its_workers_for_a_while() -> None:
    made = BrokerMachine()
    assert made.handle(RunRestored(run="r", workers=None, recoveries=2, attempts=4, expected=2)) == []
    assert made.handle(MemberJoined(name="a", address="a:1", offer=OFFER)) == []
    assert made.handle(WaitedEnough(run="r")) == [MakePlan(run="r", members=("a",), attempt=5)]
    begin(made, "a")
    assert made.handle(WaitedEnough(run="r")) == []


def test_a_restored_run_waits_for_those_who_hold_its_states() -> None:
    made = BrokerMachine()
    made.handle(RunRestored(run="r", workers=None, recoveries=2, attempts=4, expected=1, names=("a",)))
    assert made.handle(MemberJoined(name="b", address="b:1", offer=OFFER)) == []
    joined = made.handle(MemberJoined(name="a", address="a:1", offer=OFFER))
    assert [(command.members, command.attempt) for command in joined if isinstance(command, MakePlan)] == [(("b", "a"), 5)]


def test_a_restored_run_waits_for_nobody_for_ever() -> None:
    made = BrokerMachine()
    made.handle(RunRestored(run="r", workers=None, recoveries=2, attempts=4, expected=1, names=("a",)))
    assert made.handle(MemberJoined(name="b", address="b:1", offer=OFFER)) == []
    assert made.handle(WaitedEnough(run="r")) == [MakePlan(run="r", members=("b",), attempt=5)]


def plans(commands: list[Command]) -> list[tuple[str, tuple[str, ...]]]:
    return [(command.run, command.members) for command in commands if isinstance(command, MakePlan)]


def restarted(*named: str) -> BrokerMachine:
    """A broker after its restart: ``old`` had two workers, ``queued`` had none yet."""
    made = BrokerMachine()
    made.handle(RunRestored(run="queued", workers=None))
    made.handle(RunRestored(run="old", workers=None, recoveries=2, attempts=4, expected=2, names=named))
    return made


@pytest.mark.parametrize("named", [("a", "b"), ()])
def test_a_queued_run_does_not_take_the_workers_of_a_run_that_a_restart_interrupted(named: tuple[str, ...]) -> None:
    made = restarted(*named)
    assert made.handle(MemberJoined(name="a", address="a:1", offer=OFFER)) == []
    assert made.handle(RunSubmitted(run="new", workers=1)) == []
    assert plans(made.handle(MemberJoined(name="b", address="b:1", offer=OFFER))) == [("old", ("a", "b"))]


def test_a_queued_run_takes_a_worker_that_the_interrupted_one_did_not_have() -> None:
    made = restarted("a", "b")
    assert made.handle(MemberJoined(name="a", address="a:1", offer=OFFER)) == []
    assert plans(made.handle(MemberJoined(name="c", address="c:1", offer=OFFER))) == [("queued", ("c",))]
    assert plans(made.handle(MemberJoined(name="b", address="b:1", offer=OFFER))) == [("old", ("a", "b"))]


def test_workers_are_kept_for_an_interrupted_run_no_longer_than_it_waits_or_lasts() -> None:
    made = restarted("a", "b")
    made.handle(MemberJoined(name="a", address="a:1", offer=OFFER))
    assert plans(made.handle(WaitedEnough(run="old"))) == [("queued", ("a",))], "the order of the runs counts again"
    made = restarted("a", "b")
    made.handle(MemberJoined(name="a", address="a:1", offer=OFFER))
    assert plans(made.handle(StopRequested(run="old", now=True))) == [("queued", ("a",))]


def test_interrupted_runs_keep_to_the_workers_that_each_had() -> None:
    made = BrokerMachine()
    made.handle(RunRestored(run="r", workers=None, recoveries=2, attempts=1, expected=1, names=("a",)))
    made.handle(RunRestored(run="q", workers=None, recoveries=2, attempts=1, expected=2, names=("b", "c")))
    assert made.handle(MemberJoined(name="b", address="b:1", offer=OFFER)) == []
    assert plans(made.handle(MemberJoined(name="a", address="a:1", offer=OFFER))) == [("r", ("a",))]
    assert plans(made.handle(MemberJoined(name="c", address="c:1", offer=OFFER))) == [("q", ("b", "c"))]


def test_a_restored_run_that_was_over_stays_over() -> None:
    made = BrokerMachine()
    assert made.handle(RunRestored(run="r", workers=None, outcome="failed", cause="why", kind="DataError")) == []
    assert made.handle(MemberJoined(name="a", address="a:1", offer=OFFER)) == []
    assert (made.runs["r"].state, made.runs["r"].cause) == (RunState.FAILED, "why")


def test_owners_decide_between_training_and_serving() -> None:
    """A training run and a served model take the members that are for them, at the same time."""
    made = BrokerMachine()
    for name, only in (("t", "training"), ("s", "serving")):
        made.handle(MemberJoined(name=name, address=f"{name}:1", offer=replace(OFFER, only=only)))
    assert made.handle(RunSubmitted(run="model", workers=1, serves=True)) == [MakePlan(run="model", members=("s",), attempt=1)]
    assert made.handle(RunSubmitted(run="again", workers=1, serves=True)) == []
    assert made.handle(RunSubmitted(run="job", workers=1)) == [MakePlan(run="job", members=("t",), attempt=1)]
    any_member = made.handle(MemberJoined(name="b", address="b:1", offer=OFFER))
    assert any_member == [MakePlan(run="again", members=("b",), attempt=1)]
