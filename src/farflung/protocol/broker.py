"""The broker's decisions as a pure state machine: events in, commands out; no clock, no socket, no file.

A run is *waiting* (for workers), *planning*, *preparing*, *running*, then *done*, *stopped* or *failed*. A member serves at
most one run.

A member that wants to go, or to be left out for a while, hands over: the attempt ends after the current step with a checkpoint,
and the next one begins without it. That is no loss. A member that drains serves its run to the end.

The loss of a member, or of a link between two, ends the run's *attempt*: the others drop it and tell what they still hold,
and only then are they free again. The run is planned again for the workers that are there, and goes on from what is held, or
from its newest checkpoint; that choice is ``holdings``' and the shell's. A run that was submitted
without recoveries fails instead, and so does one that is lost too often without a new step between. What members report of
an attempt that is over is not heard.

A run that an earlier life of the broker left behind has the first right to the workers that it had: until they are back, or have
had their time to come back, runs that wait for workers do not get them.

A run that is *helped* is planned for reliable members only. While it runs, every unreliable one that is free helps one of them;
it has no part in the plan, so it may come and go without another attempt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from farflung.errors import InputError
from farflung.protocol.events import (
    INPUT_ERROR,
    PLAN_ERROR,
    TRAINING_ERROR,
    AbortRun,
    AskHelper,
    BetterPlan,
    Command,
    DismissMember,
    Event,
    FinishRun,
    HandOver,
    HelperGone,
    HostMeasured,
    MakePlan,
    MemberDrifted,
    MemberJoined,
    MemberLost,
    MemberMeasured,
    MemberWants,
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
    StartRun,
    StopRequested,
    StopRun,
    WaitedEnough,
)
from farflung.protocol.members import Gone, Member, Parting

__all__ = ["BrokerMachine", "Member", "Run", "RunState"]

_MOST_GONE = 50
#: How many times slower than measured a member is taken for at most.
_MOST_DRIFT = 100.0
#: A helper that failed so often in an attempt is not asked again.
_HELPER_TRIES = 3
#: Errors of planning that other workers may mend; the rest are the broker's own (a full disk).
_NEEDS_OTHERS = frozenset({PLAN_ERROR, INPUT_ERROR})


class RunState(StrEnum):
    """Where a run stands."""

    WAITING = "waiting"
    PLANNING = "planning"
    PREPARING = "preparing"
    RUNNING = "running"
    DONE = "done"
    STOPPED = "stopped"
    FAILED = "failed"

    @property
    def over(self) -> bool:
        """Whether nothing more will happen."""
        return self in (RunState.DONE, RunState.STOPPED, RunState.FAILED)


@dataclass(slots=True, kw_only=True)
class Run:
    """A job on its way.

    ``lost``: attempts that ended by a loss since the last new step; more than ``recoveries`` of them end the run. ``hoped``: a
    run of an earlier life of the broker waits for so many workers, and for those ``named``. ``refused``: a plan for these could
    not be made after a loss, so somebody new must come. ``began``: there was a plan for it once. ``handing``: why its attempt
    ends after the current step (empty: it does not). ``unfinished``: a worker has ended it before the job's end. ``awaited``:
    who has yet to drop the last attempt. ``helpers``: who helps now; ``failed_helpers``: how often each has failed in this
    attempt.
    """

    run: str
    workers: int | None
    recoveries: int = 0
    lost: int = 0
    began: bool = False
    hoped: int = 0
    named: frozenset[str] = frozenset()
    refused: frozenset[str] = frozenset()
    awaited: set[str] = field(default_factory=set)
    state: RunState = RunState.WAITING
    devices: tuple[str, ...] = ()
    prepared: set[str] = field(default_factory=set)
    ended: set[str] = field(default_factory=set)
    attempts: int = 0
    stopping: bool = False
    handing: str = ""
    unfinished: bool = False
    cause: str = ""
    kind: str = ""
    helped: bool = False
    unreliable: frozenset[str] = frozenset()
    helpers: set[str] = field(default_factory=set)
    failed_helpers: dict[str, int] = field(default_factory=dict)

    def plans_for(self, member: Member) -> bool:
        """Whether ``member`` may have a stage; else it may help."""
        return not self.helped or (member.offer.reliable and member.name not in self.unreliable)

    @property
    def needs(self) -> int:
        """Idle workers that it waits for."""
        return max(self.workers or 1, self.hoped)


class BrokerMachine:
    """Holds members and runs; ``handle`` is the only way in."""

    def __init__(self) -> None:
        self.members: dict[str, Member] = {}
        self.runs: dict[str, Run] = {}
        #: The last ones that went, the latest last.
        self.gone: dict[str, Gone] = {}
        self._handlers: dict[type, Callable[[Any], list[Command]]] = {
            MemberJoined: self._joined,
            MemberLost: self._lost,
            MemberMeasured: self._measured,
            HostMeasured: self._host_measured,
            MemberDrifted: self._drifted,
            MemberWants: self._wants,
            RunSubmitted: self._submitted,
            RunRestored: self._restored,
            WaitedEnough: self._waited,
            RunAdvanced: self._advanced,
            BetterPlan: self._better,
            PlanMade: self._planned,
            RunPrepared: self._prepared,
            RunDropped: self._dropped,
            RunEnded: self._ended,
            RunFailed: self._failed,
            StopRequested: self._stop,
        }

    def handle(self, event: Event) -> list[Command]:
        """Take one event; the commands are to be carried out in order.

        Raises:
            InputError: the event names a run that does not exist, or a name that is taken.
        """
        commands = self._handlers[type(event)](event)
        commands += self._let_helpers_go()
        commands += self._start_waiting()
        commands += self._ask_helpers()
        commands += self._let_go()
        self.validate()
        return commands

    def ahead(self, run: str) -> int:
        """How many runs that wait for workers were handed in before ``run``, if it waits itself (else 0)."""
        waiting = [one.run for one in self.runs.values() if one.state is RunState.WAITING]
        return waiting.index(run) if run in waiting else 0

    def may_take(self, name: str, member: Member) -> bool:
        """Whether ``member`` is free for the run ``name``: it is ready, and no run of the broker's earlier life waits for it.

        Such a run has the first right to those it names, and to everybody where it names nobody.
        """
        run = self.runs[name]
        if not member.ready or member.name in run.named:
            return member.ready
        keepers = (one for one in self.runs.values() if one is not run and one.hoped and one.state is RunState.WAITING)
        return not any(member.name in one.named or not (one.named or run.hoped) for one in keepers)

    def forget(self, run: str) -> None:
        """Let go of a run that is over."""
        if run in self.runs:
            assert self.runs[run].state.over, f"{run} is not over"
            del self.runs[run]

    def validate(self) -> None:
        """The machine's own invariants (a failure is a defect of this class)."""
        for member in self.members.values():
            assert member.run is None or not self.runs[member.run].state.over, f"{member.name} serves a run that is over"
        for run in self.runs.values():
            assert run.prepared <= set(run.devices), f"{run.run}: prepared workers outside the plan"
            assert run.ended <= set(run.devices), f"{run.run}: workers outside the plan have ended it"
            if run.state in (RunState.PREPARING, RunState.RUNNING):
                for name in set(run.devices) - run.ended:
                    assert name in self.members, f"{run.run} runs on {name}, who is gone"
                    assert self.members[name].run == run.run, f"{run.run} runs on {name}, who serves {self.members[name].run}"
            assert not run.helpers & set(run.devices), f"{run.run}: a helper has a part in the plan"
            assert all(self._serves(name, run) for name in run.helpers), f"{run.run}: a helper is gone, or serves another run"

    # -- members ------------------------------------------------------------------------------------------------------

    def _joined(self, event: MemberJoined) -> list[Command]:
        if event.name in self.members:
            raise InputError(f"a worker called {event.name!r} is connected already; choose another name with --name")
        self.gone.pop(event.name, None)
        self.members[event.name] = Member(name=event.name, address=event.address, offer=event.offer, generation=event.generation)
        return [] if event.wants is None else self._wants(event.wants)

    def _wants(self, event: MemberWants) -> list[Command]:
        member = self.members.get(event.name)
        if member is None:
            return []
        member.paused, member.parting = event.paused, Parting(event.parting)
        member.dismissed = member.dismissed and bool(member.parting)
        if event.memory is not None:
            member.offer = replace(member.offer, memory=event.memory)
        if not member.withdraws or member.run is None:
            return []
        run = self.runs[member.run]
        if member.name in run.helpers:
            return self._part_with(run, member.name, "its owner wants it back", told=False)
        why = f"worker {member.name} {'leaves' if member.parting else 'is paused'}"
        if run.state is RunState.PLANNING:
            self._wait_again(run)
            return []
        if run.state is RunState.PREPARING:
            commands = self._abort(run, why, keep=True)
            self._wait_again(run, {command.name for command in commands})
            return [*commands, RecoverRun(run=run.run, cause=why)]
        if run.state is not RunState.RUNNING or run.handing or run.stopping:
            return []
        run.handing = why
        return [HandOver(run=run.run, name=name) for name in run.devices if self._serves(name, run)]

    def _let_go(self) -> list[Command]:
        free = [member for member in self.members.values() if member.parting and member.run is None and not member.dismissed]
        for member in free:
            member.dismissed = True
        return [DismissMember(name=member.name) for member in free]

    def _measured(self, event: MemberMeasured) -> list[Command]:
        member = self.members.get(event.name)
        if member is not None:
            member.offer = replace(
                member.offer, speed=event.speed, factor=event.factor, overhead=event.overhead, convolution=event.convolution
            )
            member.drift = 1.0
        return []

    def _host_measured(self, event: HostMeasured) -> list[Command]:
        for member in (self.members[name] for name in event.names if name in self.members):
            member.capacity, member.measured_with = event.capacity, len(event.names)
        return []

    def _drifted(self, event: MemberDrifted) -> list[Command]:
        """What its steps show counts until it is measured again; it is never taken for faster than it was measured."""
        member = self.members.get(event.name)
        if member is not None:
            member.drift = min(max(1.0, member.drift * event.times), _MOST_DRIFT)
        return []

    def _lost(self, event: MemberLost) -> list[Command]:
        member = self.members.pop(event.name, None)
        if member is not None:
            self.gone[event.name] = Gone(name=event.name, generation=member.generation, cause=event.cause)
            while len(self.gone) > _MOST_GONE:
                del self.gone[next(iter(self.gone))]
        for waiting in self.runs.values():
            waiting.refused -= {event.name}  # if it comes back, it may have more to offer
        if member is None or member.run is None:
            return []
        run = self.runs[member.run]
        if event.name in run.helpers:
            return self._part_with(run, event.name, event.cause, told=True)
        if run.state is RunState.WAITING:
            self._free(run, event.name)
            return []
        if event.name in run.ended:
            return []  # its part is done; nobody needs it any more
        if run.state is RunState.PLANNING:  # nothing was sent yet: wait for workers again
            self._wait_again(run)
            return []
        return self._lose(run, f"worker {event.name} is gone: {event.cause.removeprefix(f'lost {event.name}: ')}")

    # -- runs ---------------------------------------------------------------------------------------------------------

    def _submitted(self, event: RunSubmitted) -> list[Command]:
        if event.run in self.runs:
            raise InputError(f"run {event.run!r} exists already")
        self.runs[event.run] = Run(
            run=event.run,
            workers=event.workers,
            recoveries=event.recoveries,
            helped=event.helped,
            unreliable=event.unreliable,
        )
        return []

    def _restored(self, event: RunRestored) -> list[Command]:
        told = RunSubmitted(run=event.run, workers=event.workers, recoveries=event.recoveries)
        self._submitted(replace(told, helped=event.helped, unreliable=event.unreliable))
        run = self.runs[event.run]
        run.attempts, run.hoped, run.began = event.attempts, event.hoped, event.attempts > 0
        run.named, run.stopping = frozenset(event.named), event.stopping
        if event.outcome:
            run.state, run.cause, run.kind = RunState(event.outcome), event.cause, event.kind
            run.devices = event.named
        return []

    def _waited(self, event: WaitedEnough) -> list[Command]:
        run = self.runs.get(event.run)
        if run is not None:  # else it was over long ago
            run.hoped, run.named = 0, frozenset()
        return []

    def _advanced(self, event: RunAdvanced) -> list[Command]:
        self._run(event.run).lost = 0
        return []

    def _start_waiting(self) -> list[Command]:
        commands: list[Command] = []
        for run in self.runs.values():
            if run.state is not RunState.WAITING or run.awaited:
                continue
            idle = [one.name for one in self.members.values() if self.may_take(run.run, one) and run.plans_for(one)]
            if len(idle) < run.needs:
                continue
            if (run.refused and run.refused >= set(idle)) or not run.named <= set(idle):
                continue
            run.hoped, run.named = 0, frozenset()
            run.refused = frozenset()
            run.state = RunState.PLANNING
            run.devices = tuple(idle)
            run.attempts += 1
            for name in idle:
                self.members[name].run = run.run
            commands.append(MakePlan(run=run.run, members=tuple(idle), attempt=run.attempts))
        for run in self.runs.values():
            if run.stopping and run.state is RunState.WAITING and not (run.awaited or run.hoped):  # nobody can take it up
                commands += self._over(run, RunState.STOPPED)
        return commands

    def _ask_helpers(self) -> list[Command]:
        commands: list[Command] = []
        for run in self.runs.values():
            if not run.helped or run.state is not RunState.RUNNING or run.handing or run.stopping or run.ended:
                continue
            for member in self.members.values():
                tried = run.failed_helpers.get(member.name, 0)
                if self.may_take(run.run, member) and not run.plans_for(member) and tried < _HELPER_TRIES:
                    member.run = run.run
                    run.helpers.add(member.name)
                    commands.append(AskHelper(run=run.run, name=member.name))
        return commands

    def _let_helpers_go(self) -> list[Command]:
        """Helpers of attempts that are over are free."""
        commands: list[Command] = []
        for run in self.runs.values():
            if run.state is not RunState.RUNNING and (run.helpers or run.failed_helpers):
                for name in sorted(run.helpers):
                    self._release(run, name)
                    commands.append(AbortRun(run=run.run, name=name, cause="it needs no help now"))
                run.helpers.clear()
                run.failed_helpers.clear()
        return commands

    def _part_with(self, run: Run, name: str, cause: str, *, told: bool) -> list[Command]:
        """One helper less; ``told``: it has ended by itself."""
        run.helpers.discard(name)
        self._release(run, name)
        gone: list[Command] = [HelperGone(run=run.run, name=name, cause=cause)]
        return gone if told else [*gone, AbortRun(run=run.run, name=name, cause=cause)]

    def _better(self, event: BetterPlan) -> list[Command]:
        """The attempt ends as after a loss, but nothing was lost: all go on from the last commit, which they hold in memory."""
        run = self.runs.get(event.run)
        busy = run is None or run.state is not RunState.RUNNING or run.handing or run.stopping or run.ended
        if run is None or busy or event.attempt != run.attempts:
            return []
        commands = self._abort(run, event.cause, keep=True)
        self._wait_again(run, {command.name for command in commands})
        return [*commands, RecoverRun(run=run.run, cause=event.cause, better=True)]

    def _planned(self, event: PlanMade) -> list[Command]:
        run = self._run(event.run)
        if run.state is not RunState.PLANNING or event.attempt != run.attempts:
            return []  # stopped meanwhile, or made for workers of whom one has gone since
        if event.error and run.stopping:
            return self._over(run, RunState.STOPPED)
        if event.error and event.kind in _NEEDS_OTHERS and run.began and run.recoveries:  # wait for who makes up for the loss
            run.refused = frozenset(run.devices)
            self._wait_again(run)
            return [RecoverRun(run=run.run, cause=f"no plan for those who are left: {event.error}")]
        if event.error:
            return self._fail(run, event.error, event.kind)
        strange = [name for name in event.devices if name not in run.devices]
        if strange or not event.devices:
            return self._fail(run, f"the plan names {', '.join(strange) or 'nobody'}, who was not offered to it", PLAN_ERROR)
        for name in set(run.devices) - set(event.devices):
            self._release(run, name)
        run.devices, run.began = event.devices, True
        run.state = RunState.PREPARING
        return [PrepareRun(run=run.run, name=name) for name in run.devices]

    def _prepared(self, event: RunPrepared) -> list[Command]:
        run = self._run(event.run)
        if run.state is not RunState.PREPARING or event.name not in run.devices or _stale(event, run):
            return []
        run.prepared.add(event.name)
        if run.prepared != set(run.devices):
            return []
        run.state = RunState.RUNNING
        started: list[Command] = [StartRun(run=run.run, name=name) for name in run.devices]
        return started + (self._stop_after_a_step(run) if run.stopping else [])

    def _dropped(self, event: RunDropped) -> list[Command]:
        run = self._run(event.run)
        if not _stale(event, run):
            self._free(run, event.name)
        return []

    def _ended(self, event: RunEnded) -> list[Command]:
        run = self._run(event.run)
        if run.state is not RunState.RUNNING or event.name not in run.devices or _stale(event, run):
            return []
        run.ended.add(event.name)
        run.unfinished = run.unfinished or not event.whole
        if run.ended != set(run.devices):
            return []
        if run.handing and run.unfinished and not run.stopping:
            why = run.handing
            self._wait_again(run)
            return [RecoverRun(run=run.run, cause=why, handed=True)]
        return self._over(run, RunState.STOPPED if run.stopping else RunState.DONE)

    def _failed(self, event: RunFailed) -> list[Command]:
        run = self._run(event.run)
        if event.name in run.helpers and not _stale(event, run):
            run.failed_helpers[event.name] = run.failed_helpers.get(event.name, 0) + 1
            return self._part_with(run, event.name, event.cause, told=True)
        if run.state.over or (event.name and event.name not in run.devices) or event.name in run.ended or _stale(event, run):
            return []
        if not event.name:
            return self._fail(run, event.cause, event.kind)
        if event.lost_peer:  # who is lost stands in the cause, and its own session may break a moment later
            return self._lose(run, f"{event.cause} (told by worker {event.name})")
        return self._fail(run, f"worker {event.name}: {event.cause}", event.kind)

    def _stop(self, event: StopRequested) -> list[Command]:
        run = self._run(event.run)
        if run.state.over:
            return []
        run.stopping = True
        if run.state is RunState.RUNNING and not event.now:
            return self._stop_after_a_step(run)
        planned = run.state in (RunState.PLANNING, RunState.PREPARING) or (run.state is RunState.WAITING and run.awaited)
        if run.began and planned and not event.now:
            return []  # workers hold steps that no checkpoint has: the next attempt takes them up, and ends with one
        commands: list[Command] = [
            AbortRun(run=run.run, name=name, cause="stopped")
            for name in run.devices
            if run.state in (RunState.PREPARING, RunState.RUNNING) and self._serves(name, run)
        ]
        return commands + self._over(run, RunState.STOPPED)

    def _stop_after_a_step(self, run: Run) -> list[Command]:
        return [StopRun(run=run.run, name=name) for name in run.devices if self._serves(name, run)]

    def _lose(self, run: Run, cause: str) -> list[Command]:
        """An attempt lost somebody: the next one begins with whoever is there, unless that was too often."""
        if run.stopping:
            return [*self._abort(run, cause), *self._over(run, RunState.STOPPED)]
        if run.lost >= run.recoveries:
            often = f" ({run.lost} recoveries without a new step came before)" if run.lost else ""
            return self._fail(run, cause + often)
        run.lost += 1
        commands = self._abort(run, cause, keep=True)
        self._wait_again(run, {command.name for command in commands})
        return [*commands, RecoverRun(run=run.run, cause=cause)]

    def _wait_again(self, run: Run, awaited: set[str] | None = None) -> None:
        """Wait for workers; those of the last attempt are free together, once all who are ``awaited`` have let go of it."""
        run.state = RunState.WAITING
        run.awaited = awaited or set()
        self._free(run)
        run.devices = ()
        run.prepared.clear()
        run.ended.clear()
        run.handing, run.unfinished = "", False

    def _free(self, run: Run, name: str = "") -> None:
        """``name`` has let go of the last attempt, or is gone."""
        run.awaited.discard(name)
        if run.state is RunState.WAITING and not run.awaited:
            for member in self.members:
                self._release(run, member)

    def _abort(self, run: Run, cause: str, *, keep: bool = False) -> list[AbortRun]:
        busy = run.state in (RunState.PREPARING, RunState.RUNNING)
        told = [name for name in run.devices if self._serves(name, run)] if busy else []
        return [AbortRun(run=run.run, name=name, cause=cause, keep=keep) for name in told]

    def _fail(self, run: Run, cause: str, kind: str = TRAINING_ERROR) -> list[Command]:
        return [*self._abort(run, cause), *self._over(run, RunState.FAILED, cause, kind)]

    def _over(self, run: Run, state: RunState, cause: str = "", kind: str = "") -> list[Command]:
        run.state, run.cause, run.kind = state, cause, kind
        run.awaited.clear()
        for name in self.members:
            self._release(run, name)
        return [FinishRun(run=run.run, outcome=state.value, cause=cause, kind=kind)]

    def _serves(self, name: str, run: Run) -> bool:
        member = self.members.get(name)
        return member is not None and member.run == run.run

    def _release(self, run: Run, name: str) -> None:
        member = self.members.get(name)
        if member is not None and member.run == run.run:  # a worker that left may have come back and serve another run
            member.run = None

    def _run(self, name: str) -> Run:
        try:
            return self.runs[name]
        except KeyError:
            known = ", ".join(self.runs) or "none"
            raise InputError(f"there is no run {name!r}; known runs: {known}") from None


def _stale(event: RunPrepared | RunDropped | RunEnded | RunFailed, run: Run) -> bool:
    """Whether it is told of an attempt that is over."""
    return event.attempt not in (0, run.attempts)
