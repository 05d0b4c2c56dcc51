"""Whole runs in simulated time under random faults: workers, helpers and the broker die, links break, messages wait in queues,
better plans are found for who has joined.

The little world obeys the machine's commands as workers do (each has a queue of commands and one of reports), keeps checkpoints,
and checks that a run ends with each step counted once, whatever happened on the way.
"""

from __future__ import annotations

import random
from collections import deque
from dataclasses import replace

import pytest

from farflung.protocol.broker import BrokerMachine, RunState
from farflung.protocol.events import (
    AbortRun,
    AskHelper,
    BetterPlan,
    Command,
    DismissMember,
    Event,
    FinishRun,
    HelperGone,
    MakePlan,
    MemberJoined,
    MemberLost,
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
    WaitedEnough,
)

OFFER = Offer(memory=1e9, speed=1e9)
STEPS, EVERY = 7, 3


class World:
    """One broker, some workers, one run; in every other world helpers, too."""

    def __init__(self, seed: int) -> None:
        self.chance = random.Random(seed)
        self.names = "abcd"[: self.chance.randint(1, 4)]
        self.workers = self.chance.choice([None, 1, len(self.names)])
        self.helped = self.chance.random() < 0.5
        self.names += "uvw"[: self.chance.randint(0, 3)] if self.helped else ""
        self.helping: set[str] = set()
        self.better = self.asked = 0
        self.machine = BrokerMachine()
        #: worker -> commands on their way to it, each with its attempt; worker -> reports on their way to the broker
        self.down: dict[str, deque[tuple[Command, int]]] = {}
        self.up: dict[str, deque[Event]] = {}
        self.plans: list[MakePlan] = []
        self.attempt: dict[str, int] = {}
        self.started: dict[str, int] = {}
        self.migrating: set[int] = set()
        self.ledger: list[int] = []
        self.checkpoint = self.furthest = self.begun = 0
        self.outcome = ""

    def tell(self, event: Event) -> None:
        name = getattr(event, "name", "")
        helper, before = name in self.helping, self.machine.runs["r"].attempts if self.helping else 0
        self.carry_out(self.machine.handle(event))
        assert not helper or self.machine.runs["r"].attempts == before, "a helper's fate costs no attempt"

    def carry_out(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, HelperGone):
                self.helping.discard(command.name)
                continue
            if isinstance(command, AskHelper):
                assert command.name not in self.helping, "it was asked once, and not let go since"
                self.helping.add(command.name)
                self.asked += 1
            if isinstance(command, AbortRun):
                self.helping.discard(command.name)
            if isinstance(command, MakePlan):
                self.plans.append(command)
            elif isinstance(command, FinishRun):
                assert not self.outcome, "finished twice"
                self.outcome = command.outcome
            elif not isinstance(command, RecoverRun | RunWaits):
                self.down[command.name].append((command, self.machine.runs["r"].attempts))

    def join(self, name: str) -> None:
        self.down[name], self.up[name] = deque(), deque()
        self.attempt.pop(name, None)
        self.started.pop(name, None)
        self.tell(MemberJoined(name=name, address="x:1", offer=replace(OFFER, reliable=name in "abcd")))
        if self.chance.random() < 0.2:
            self.improve()  # with it

    def die(self, name: str) -> None:
        """What it had sent may arrive, its commands do not."""
        for event in self.up.pop(name):
            if self.chance.random() < 0.5:
                self.tell(event)
        del self.down[name]
        self.started.pop(name, None)
        self.tell(MemberLost(name=name, cause="killed"))

    def restart_broker(self) -> None:
        attempts = self.machine.runs["r"].attempts if "r" in self.machine.runs else 0
        self.machine = BrokerMachine()
        self.down.clear()
        self.up.clear()
        self.started.clear()
        self.plans.clear()
        self.helping.clear()
        again = RunRestored(run="r", workers=self.workers, recoveries=50, attempts=attempts, expected=self.chance.randint(0, 4))
        self.tell(replace(again, helped=self.helped))

    def obey(self, name: str) -> None:
        command, attempt = self.down[name].popleft()
        if isinstance(command, PrepareRun):
            self.attempt[name] = attempt
            self.up[name].append(RunPrepared(run="r", name=name, attempt=attempt))
        elif isinstance(command, StartRun) and attempt == self.attempt.get(name):
            self.started[name] = self.attempt[name]
        elif isinstance(command, AskHelper) and self.chance.random() < 0.2:
            self.up[name].append(RunFailed(run="r", name=name, cause="no way", attempt=attempt))
        elif isinstance(command, MigrateRun):
            self.migrating.add(attempt)
        elif isinstance(command, AbortRun):
            self.started.pop(name, None)
            if command.keep:
                self.up[name].append(RunDropped(run="r", name=name, attempt=attempt))
        elif isinstance(command, DismissMember):
            self.die(name)

    def want(self, name: str) -> None:
        """Its owner wants something: to have it left out or back, or away."""
        parting = self.chance.choice(["", "", "drain", "leave"])
        self.tell(MemberWants(name=name, paused=self.chance.random() < 0.5, parting=parting))

    def plan(self) -> None:
        plan = self.plans.pop(self.chance.randrange(len(self.plans)))
        count = self.chance.randint(1, len(plan.members))
        self.tell(PlanMade(run="r", attempt=plan.attempt, devices=plan.members[:count]))

    def train(self) -> None:
        """A step of the current attempt, if all of its workers have begun; then a checkpoint where one is due."""
        run = self.machine.runs["r"]
        if run.state is not RunState.RUNNING or any(self.started.get(name) != run.attempts for name in run.devices):
            return
        if self.begun != run.attempts:
            self.begun = run.attempts
            del self.ledger[self.checkpoint :]
        if len(self.ledger) < STEPS:
            self.ledger.append(len(self.ledger))
            if len(self.ledger) > self.furthest:
                self.furthest = len(self.ledger)
                self.tell(RunAdvanced(run="r"))
            if len(self.ledger) % EVERY == 0:
                self.checkpoint = len(self.ledger)
            if run.attempts not in self.migrating or len(self.ledger) == STEPS:
                return
        self.checkpoint = len(self.ledger)
        for name in run.devices:
            self.started.pop(name)
            whole = len(self.ledger) == STEPS
            self.up[name].append(RunEnded(run="r", name=name, attempt=run.attempts, whole=whole))

    def improve(self) -> None:
        """Somebody has found a better plan, perhaps than one that is over by now."""
        run = self.machine.runs["r"]
        attempt = run.attempts - (self.chance.random() < 0.3)
        self.better += run.state is RunState.RUNNING and attempt == run.attempts
        self.tell(BetterPlan(run="r", attempt=attempt, cause="there is a better plan"))

    def break_link(self) -> None:
        run = self.machine.runs["r"]
        for name in run.devices:
            if self.started.pop(name, None) is not None and name in self.up:
                self.up[name].append(RunFailed(run="r", name=name, cause="lost", lost_peer=True, attempt=run.attempts))

    def act(self, faults: bool) -> None:
        chance = self.chance
        choices = [self.train, self.train]
        choices += [lambda name=name: self.obey(name) for name, queue in self.down.items() if queue]  # type: ignore[misc]
        choices += [lambda name=name: self.tell(self.up[name].popleft()) for name, q in self.up.items() if q]  # type: ignore[misc]
        if self.plans:
            choices.append(self.plan)
        choices += [lambda name=name: self.join(name) for name in self.names if name not in self.up]  # type: ignore[misc]
        if faults and chance.random() < 0.15:
            choices = [self.break_link, self.restart_broker, self.improve]
            choices += [lambda name=name: self.die(name) for name in list(self.up)] * 3  # type: ignore[misc]
            choices += [lambda name=name: self.want(name) for name in list(self.up)] * 2  # type: ignore[misc]
        chance.choice(choices)()

    def run(self) -> None:
        self.tell(RunSubmitted(run="r", workers=self.workers, recoveries=50, helped=self.helped))
        for _ in range(self.chance.randint(20, 120)):
            if not self.outcome:
                self.act(faults=True)
        for name in list(self.up):
            self.tell(MemberWants(name=name))  # nobody is left out for ever
        for _ in range(2000):
            if self.outcome:
                return
            self.act(faults=False)
            self.tell(WaitedEnough(run="r"))


def play(seeds: range) -> tuple[int, int]:
    """How often a better plan was found, and a helper asked."""
    better = asked = 0
    for seed in seeds:
        world = World(seed)
        world.run()
        assert world.outcome == "finished", f"seed {seed}: {world.outcome or world.machine.runs}"
        assert world.ledger == list(range(STEPS)), f"seed {seed}"
        assert not world.helping, f"seed {seed}: helpers are free when the run is over"
        better, asked = better + world.better, asked + world.asked
    return better, asked


def test_two_thousand_schedules() -> None:
    better, asked = play(range(2000))
    assert better > 200
    assert asked > 500


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("part", range(1, 50))
def test_many_more_schedules(part: int) -> None:
    """One part alone: ``-k "many_more_schedules and [7]"``."""
    play(range(2000 * part, 2000 * (part + 1)))
