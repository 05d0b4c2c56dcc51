"""Helped runs at the broker's machine: who gets a stage, who helps, and that a helper's loss ends nothing."""

from __future__ import annotations

import random

import pytest

from farflung.protocol.broker import BrokerMachine, Run, RunState
from farflung.protocol.events import (
    AbortRun,
    AskHelper,
    Command,
    DismissMember,
    Event,
    FinishRun,
    HelperGone,
    HelperMoves,
    MakePlan,
    MemberJoined,
    MemberLost,
    MemberWants,
    Offer,
    PlanMade,
    PrepareRun,
    RunDropped,
    RunEnded,
    RunFailed,
    RunPrepared,
    RunSubmitted,
    StartRun,
    StopRequested,
)


def join(machine: BrokerMachine, name: str, *, reliable: bool = True, only: str = "") -> list[Command]:
    offer = Offer(memory=1e9, speed=1e9, reliable=reliable, only=only)
    return machine.handle(MemberJoined(name=name, address="x:1", offer=offer))


def running(*helpers: str, unreliable: frozenset[str] = frozenset()) -> tuple[BrokerMachine, list[Command]]:
    """The run ``r`` on ``a``, with these helpers; and the commands of its start."""
    machine = BrokerMachine()
    for name in helpers:
        join(machine, name, reliable=False)
    machine.handle(RunSubmitted(run="r", workers=None, recoveries=3, helped=True, unreliable=unreliable))
    join(machine, "a")
    machine.handle(PlanMade(run="r", attempt=1, devices=("a",)))
    return machine, machine.handle(RunPrepared(run="r", name="a", attempt=1))


def test_unreliable_members_get_no_stage_and_help_once_it_runs():
    machine, told = running("u", "v")
    assert told == [StartRun(run="r", name="a"), AskHelper(run="r", name="u"), AskHelper(run="r", name="v")]
    assert join(machine, "w", reliable=False) == [AskHelper(run="r", name="w")]
    assert machine.runs["r"].devices == ("a",)


def test_the_topology_may_say_who_is_unreliable():
    machine = BrokerMachine()
    join(machine, "u")
    machine.handle(RunSubmitted(run="r", workers=None, helped=True, unreliable=frozenset("u")))
    assert machine.runs["r"].state is RunState.WAITING
    assert join(machine, "a") == [MakePlan(run="r", members=("a",), attempt=1)]


def test_other_runs_use_unreliable_members_as_others():
    machine = BrokerMachine()
    join(machine, "u", reliable=False)
    assert machine.handle(RunSubmitted(run="r", workers=None)) == [MakePlan(run="r", members=("u",), attempt=1)]


def test_the_limits_of_the_job_hold_for_helpers():
    machine = BrokerMachine()
    versions = {"u": "jax 0.10.2", "v": "torch 2.13.0+cpu", "w": "", "x": "torch 2.13.0", "y": "torch 2.13.0"}
    for name, engine in versions.items():
        region = "far" if name == "y" else "home"
        offer = Offer(memory=1e9, speed=1e9, reliable=False, versions={"engine": engine}, region=region)
        machine.handle(MemberJoined(name=name, address="x:1", offer=offer))
    machine.handle(RunSubmitted(run="r", workers=None, helped=True, exclude=("x", "far"), engines=("torch==2.13.*",)))
    join(machine, "a")
    machine.handle(PlanMade(run="r", attempt=1, devices=("a",)))
    told = machine.handle(RunPrepared(run="r", name="a", attempt=1))
    assert [command.name for command in told if isinstance(command, AskHelper)] == ["v", "w"]
    assert [member.name for member in machine.may_help("r")] == ["v", "w"]


def test_the_owner_of_a_helper_decides_what_it_helps():
    machine = BrokerMachine()
    for name, only in (("u", "serving"), ("v", "training"), ("w", "")):
        join(machine, name, reliable=False, only=only)
    machine.handle(RunSubmitted(run="r", workers=None, helped=True))
    join(machine, "a")
    assert [member.name for member in machine.may_help("r")] == ["v", "w"]


def test_a_lost_helper_costs_no_attempt():
    machine, _ = running("u")
    assert machine.handle(MemberLost(name="u", cause="killed")) == [HelperGone(run="r", name="u", cause="killed")]
    assert machine.runs["r"].state is RunState.RUNNING
    assert join(machine, "u", reliable=False) == [AskHelper(run="r", name="u")]


def test_a_helper_that_fails_again_and_again_is_not_asked_any_more():
    machine, _ = running("u")
    failed = RunFailed(run="r", name="u", cause="no way to a", attempt=1)
    gone = HelperGone(run="r", name="u", cause="no way to a")
    assert machine.handle(failed) == [gone, AskHelper(run="r", name="u")]
    assert machine.handle(failed) == [gone, AskHelper(run="r", name="u")]
    assert machine.handle(failed) == [gone]
    assert machine.members["u"].run is None


def test_a_helper_that_moves_is_asked_again_and_counts_as_no_failure():
    machine, _ = running("u")
    cause = "it helps another stage from now on"
    moved = [
        HelperGone(run="r", name="u", cause=cause),
        AbortRun(run="r", name="u", cause=cause),
        AskHelper(run="r", name="u"),
    ]
    for _ in range(4):
        assert machine.handle(HelperMoves(run="r", name="u")) == moved
    assert machine.handle(HelperMoves(run="r", name="a")) == [], "a server does not move"
    assert machine.handle(HelperMoves(run="gone", name="u")) == []
    assert [member.name for member in machine.may_help("r")] == ["u"]


@pytest.mark.parametrize("wish", [{"paused": True}, {"parting": "leave"}])
def test_an_owner_gets_a_helper_back_at_once(wish: dict[str, object]):
    machine, _ = running("u")
    told = machine.handle(MemberWants(name="u", **wish))  # type: ignore[arg-type]
    cause = "its owner wants it back"
    freed = [HelperGone(run="r", name="u", cause=cause), AbortRun(run="r", name="u", cause=cause)]
    assert told == [*freed, *([DismissMember(name="u")] if "parting" in wish else [])]
    assert machine.runs["r"].state is RunState.RUNNING


def test_helpers_are_free_when_the_attempt_is_over():
    machine, _ = running("u")
    told = machine.handle(MemberLost(name="a", cause="killed"))
    assert AbortRun(run="r", name="u", cause="it needs no help now") in told
    assert machine.members["u"].run is None
    machine, _ = running("u")
    told = machine.handle(RunEnded(run="r", name="a", attempt=1))
    assert told == [FinishRun(run="r", outcome="finished"), AbortRun(run="r", name="u", cause="it needs no help now")]


class World:
    """A helped run, reliable members a and b, helpers u, v and w."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.machine = BrokerMachine()
        self.machine.handle(RunSubmitted(run="r", workers=self.chance.choice([None, 1, 2]), recoveries=99, helped=True))
        self.commands: list[Command] = []
        self.helping: set[str] = set()

    @property
    def run(self) -> Run:
        return self.machine.runs["r"]

    def tell(self, event: Event) -> None:
        before, helper = self.run.attempts, getattr(event, "name", "") in self.run.helpers
        for command in self.machine.handle(event):
            self.commands.append(command)
            if isinstance(command, AskHelper):
                assert command.name not in self.helping, "it was asked once, and not let go since"
                self.helping.add(command.name)
            elif isinstance(command, HelperGone | AbortRun):
                self.helping.discard(command.name)
        assert not helper or self.run.attempts == before, "a helper's fate costs no attempt"

    def disturb(self, name: str) -> None:
        kind = self.chance.randrange(3)
        if kind == 0:
            self.tell(MemberLost(name=name, cause="killed"))
        elif kind == 1 and name in self.run.helpers:
            self.tell(RunFailed(run="r", name=name, cause="broken", attempt=self.run.attempts))
        else:
            self.tell(MemberWants(name=name, paused=self.chance.random() < 0.5))

    def obey(self, command: Command) -> None:
        attempt = self.run.attempts
        if isinstance(command, MakePlan):
            self.tell(PlanMade(run="r", attempt=command.attempt, devices=command.members))
        elif isinstance(command, PrepareRun):
            self.tell(RunPrepared(run="r", name=command.name, attempt=attempt))
        elif isinstance(command, AbortRun) and command.keep:
            self.tell(RunDropped(run="r", name=command.name, attempt=attempt))

    def tick(self, faults: float) -> None:
        name = self.chance.choice("abuvw")
        if name not in self.machine.members:
            offer = Offer(memory=1e9, speed=1e9, reliable=name in "ab")
            self.tell(MemberJoined(name=name, address="x:1", offer=offer))
        elif self.chance.random() < faults:
            self.disturb(name)
        elif self.commands:
            self.obey(self.commands.pop(0))


@pytest.mark.parametrize("seed", range(300))
def test_random_schedules(seed: int):
    """The machine's own invariants hold, and a run that is left alone ends, whatever befalls helpers."""
    world = World(seed)
    for _ in range(world.chance.randint(0, 80)):
        world.tick(0.3)
    for name in list(world.machine.members):
        world.tell(MemberWants(name=name))
    for _ in range(400):
        world.tick(0.0)
    run = world.run
    assert run.state is RunState.RUNNING
    assert world.helping == run.helpers
    assert set(run.devices) <= set("ab")
    assert set(run.helpers) <= set("uvw")
    world.tell(StopRequested(run="r"))
    for name in run.devices:
        world.tell(RunEnded(run="r", name=name, attempt=run.attempts))
    assert world.commands[-1] == FinishRun(run="r", outcome="stopped") or isinstance(world.commands[-1], AbortRun)
    assert run.state.over
    assert all(member.run is None for member in world.machine.members.values())
