"""Random orders of events against the broker's own invariants."""

from __future__ import annotations

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, invariant, rule

from farflung.protocol.broker import BrokerMachine, Run, RunState
from farflung.protocol.events import (
    AbortRun,
    Command,
    FinishRun,
    MakePlan,
    MemberJoined,
    MemberLost,
    Offer,
    PlanMade,
    RecoverRun,
    RunAdvanced,
    RunDropped,
    RunEnded,
    RunFailed,
    RunPrepared,
    RunRestored,
    RunSubmitted,
    RunWaits,
    StopRequested,
    WaitedEnough,
)

OFFER = Offer(memory=1e9, speed=1e9)
NAMES = st.sampled_from("abcd")


class Orders(RuleBasedStateMachine):
    """Any event at any time, wrong ones too: ``handle`` validates, and no run is finished twice or served by strangers."""

    runs = Bundle("runs")

    def __init__(self) -> None:
        super().__init__()
        self.machine = BrokerMachine()
        self.finished: set[str] = set()
        self.plans: dict[str, MakePlan] = {}

    def take(self, commands: list[Command]) -> None:
        for command in commands:
            if isinstance(command, FinishRun):
                assert command.run not in self.finished, "finished twice"
                self.finished.add(command.run)
            elif isinstance(command, MakePlan):
                self.plans[command.run] = command
            elif isinstance(command, RecoverRun | RunWaits):
                assert command.run not in self.finished
            else:
                assert command.name in self.machine.members, f"{command} is for somebody who is gone"
                assert command.run not in self.finished or isinstance(command, AbortRun)

    @rule(name=NAMES)
    def join(self, name: str) -> None:
        if name not in self.machine.members:
            self.take(self.machine.handle(MemberJoined(name=name, address="x:1", offer=OFFER)))

    @rule(name=NAMES)
    def lose(self, name: str) -> None:
        self.take(self.machine.handle(MemberLost(name=name, cause="dead")))

    @rule(target=runs, workers=st.one_of(st.none(), st.integers(1, 4)), recoveries=st.integers(0, 3))
    def submit(self, workers: int | None, recoveries: int) -> str:
        run = f"run-{len(self.machine.runs)}"
        self.take(self.machine.handle(RunSubmitted(run=run, workers=workers, recoveries=recoveries)))
        return run

    @rule(target=runs, workers=st.one_of(st.none(), st.integers(1, 4)), expected=st.integers(0, 4), names=st.sets(NAMES))
    def restore(self, workers: int | None, expected: int, names: set[str]) -> str:
        run = f"run-{len(self.machine.runs)}"
        chosen = tuple(sorted(names)) if expected else ()
        event = RunRestored(run=run, workers=workers, recoveries=2, attempts=len(names), expected=expected, names=chosen)
        self.take(self.machine.handle(event))
        return run

    @rule(run=runs)
    def waited(self, run: str) -> None:
        self.take(self.machine.handle(WaitedEnough(run=run)))

    @rule(run=runs)
    def advanced(self, run: str) -> None:
        self.take(self.machine.handle(RunAdvanced(run=run)))

    @rule(run=runs)
    def no_plan(self, run: str) -> None:
        plan = self.plans.get(run)
        self.take(self.machine.handle(PlanMade(run=run, attempt=plan.attempt if plan else 1, error="x", kind="PlanError")))

    @rule(run=runs, data=st.data())
    def plan(self, run: str, data: st.DataObject) -> None:
        plan = self.plans.get(run)
        members = plan.members if plan else ("a",)
        devices = tuple(data.draw(st.lists(st.sampled_from(members), unique=True)))
        attempt = plan.attempt if plan else 1
        self.take(self.machine.handle(PlanMade(run=run, attempt=attempt, devices=devices)))

    @rule(run=runs)
    def prepare_all(self, run: str) -> None:
        for name in self.machine.runs[run].devices:
            self.take(self.machine.handle(RunPrepared(run=run, name=name)))

    @rule(run=runs, name=NAMES)
    def prepared(self, run: str, name: str) -> None:
        self.take(self.machine.handle(RunPrepared(run=run, name=name)))

    @rule(run=runs, name=NAMES)
    def dropped(self, run: str, name: str) -> None:
        self.take(self.machine.handle(RunDropped(run=run, name=name)))

    @rule(run=runs, name=NAMES)
    def ended(self, run: str, name: str) -> None:
        self.take(self.machine.handle(RunEnded(run=run, name=name)))

    @rule(run=runs, name=st.one_of(NAMES, st.just("")), lost=st.booleans())
    def failed(self, run: str, name: str, lost: bool) -> None:
        self.take(self.machine.handle(RunFailed(run=run, name=name, cause="x", lost_peer=lost)))

    @rule(run=runs, now=st.booleans())
    def stop(self, run: str, now: bool) -> None:
        self.take(self.machine.handle(StopRequested(run=run, now=now)))

    @invariant()
    def consistent(self) -> None:
        self.machine.validate()
        for run in self.machine.runs.values():
            assert run.state.over == (run.run in self.finished)
        for member in self.machine.members.values():
            run = self.machine.runs.get(member.run or "")  # all of a lost attempt are free together
            assert run is None or member.name in run.devices or (run.state is RunState.WAITING and run.awaited)

    def _kept_from(self, run: Run, interrupted: list[Run]) -> set[str]:
        """Whom runs that a restart interrupted keep from ``run``."""
        named = {name for other in interrupted for name in other.expected_names} - run.expected_names
        everybody = not run.expected and any(not other.expected_names for other in interrupted)
        return set(self.machine.members) if everybody else named

    @rule()
    def nobody_is_kept_after_the_wait(self) -> None:
        for one in self.machine.runs:
            self.take(self.machine.handle(WaitedEnough(run=one)))
        assert not any(one.expected or one.expected_names for one in self.machine.runs.values() if not one.state.over)

    @invariant()
    def nobody_waits_in_vain(self) -> None:
        idle = {name for name, member in self.machine.members.items() if member.run is None}
        waiting = [run for run in self.machine.runs.values() if run.state is RunState.WAITING]
        for run in waiting:
            free = idle - self._kept_from(run, [other for other in waiting if other.expected and other is not run])
            refused = bool(run.refused) and free <= run.refused
            assert run.awaited or len(free) < run.needs or refused or not run.expected_names <= free
        for run in self.machine.runs.values():
            assert run.state is not RunState.WAITING or run.awaited or not run.stopping, "who stops it, and when?"


Orders.TestCase.settings = settings(
    deadline=None, max_examples=40, stateful_step_count=30, suppress_health_check=list(HealthCheck)
)
TestOrders = Orders.TestCase
