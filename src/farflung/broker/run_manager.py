"""The broker's runs: the pure machine of ``protocol.broker`` with what its commands mean on disk and on the wire.

One lock guards the machine and the table of runs. Nothing slow happens under it: plans are made, files are written and frames
are packed by the thread whose event called for it, after it has let go of the lock.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from farflung.broker.attempt_start import Start
from farflung.broker.helper_assignment import Assisting, unreliable_of
from farflung.broker.idle_reasons import RunFacts, idle_reason
from farflung.broker.links.freshness import Freshness
from farflung.broker.links.probes import Probing
from farflung.broker.links.reachability import Dial, Reaching
from farflung.broker.links.relays import Relays
from farflung.broker.links.routes import Ways
from farflung.broker.links.table import LinkTable
from farflung.broker.live_run import Holds, LiveRun, first_source
from farflung.broker.measuring import Measuring
from farflung.broker.planning import Judge, Planned, cluster_of, plan_run, strangers_of
from farflung.broker.preparation import preparation_of
from farflung.broker.progress import Progress
from farflung.broker.records.journal import MOST_OVER
from farflung.broker.replanning import Replanning, World
from farflung.broker.stragglers import Watching
from farflung.clock import MonotonicClock
from farflung.data import compare_fingerprints
from farflung.errors import FarflungError, InputError
from farflung.messages.link_reports import Told
from farflung.messages.relays import write_relays
from farflung.messages.step_reports import StepReport
from farflung.messages.submission import Bundle
from farflung.messages.versions import mixed_engines
from farflung.plan.check import check_runnable
from farflung.protocol.broker import BrokerMachine, Member, RunState
from farflung.protocol.events import (
    AbortRun,
    AskHelper,
    Command,
    DismissMember,
    Event,
    FinishRun,
    HandOver,
    HelperGone,
    MakePlan,
    MemberJoined,
    MemberLost,
    MemberMeasured,
    PlanMade,
    PrepareRun,
    RecoverRun,
    RunAdvanced,
    RunFailed,
    RunRestored,
    RunSubmitted,
    StartRun,
    StopRequested,
    StopRun,
)
from farflung.protocol.holdings import Holding
from farflung.step.plugin_check import check_brought
from farflung.telemetry.faults import fault_point
from farflung.telemetry.log_line import Detail
from farflung.telemetry.records import Record, RecoveryRecord, RelayedRecord, RunResult, StepRecord
from farflung.telemetry.trace import Span
from farflung.units import Bytes, BytesPerSecond, Seconds, counted
from farflung.wire.frames import Frame

__all__ = ["Runs"]

#: Puts a frame into a member's session; never waits.
Send = Callable[[str, Frame], None]
Say = Callable[[str], None]


class Runs:
    """All runs of a broker, the members that serve them, and ``changed``: the lock, and the bell for those who wait."""

    def __init__(
        self,
        send: Send,
        say: Say,
        judge: Judge | None = None,
        links: LinkTable | None = None,
        dial: Dial | None = None,
        log: Callable[[str, Frame], None] = lambda run, frame: None,
    ) -> None:
        """``dial``: tries whether a worker can be dialled from here (None: who has an address can). ``log`` gets what watchers of
        a run are told; it must not wait."""
        self._log = log
        self._judge = judge
        self.machine = BrokerMachine()
        self.changed = threading.Condition(threading.RLock())
        self._send = send
        self._say = say
        self._measuring = Measuring(send, lambda name: name in self.machine.members, on_host=self.handle)
        self.links = links or LinkTable()
        self.probing = Probing(send, self.links)
        self.reaching = Reaching(send, dial)
        self.relays = Relays(send, self._relayed)
        self.ways = Ways(self.machine, self.changed, self.reaching, send)
        self._assisting = Assisting(send, self.machine, self.links, self.reaching)
        self._freshness = Freshness(self.links)
        world = World(links=self.links, reaching=self.reaching, judge=judge, measure=self._measuring.measure)
        self._replanning = Replanning(self.machine, self.changed, self.handle, world, self._told_of)
        self.watching = Watching(self._told_of, self.links, self._replanning.drifted)
        #: Told what has to be known after the broker was killed.
        self.note: Callable[..., None] = _forget
        self._live: dict[str, LiveRun] = {}
        self._clock = MonotonicClock()

    # -- looking ------------------------------------------------------------------------------------------------------

    def live(self, run: str) -> LiveRun:
        """The run called ``run``.

        Raises:
            InputError: there is none; the text lists the last ones.
        """
        with self.changed:
            found = self._live.get(run)
            if found is None:
                known = ", ".join(list(self._live)[-8:]) or "none"
                raise InputError(f"there is no run {run!r}; known runs: {known}")
            return found

    def all(self) -> list[LiveRun]:
        """Every run, the oldest first."""
        with self.changed:
            return list(self._live.values())

    def profiled(self, name: str) -> bool:
        """Whether the member ``name`` is measured now, its device or its links."""
        return self._measuring.asks(name) or self.probing.asks(name)

    def idle_reason(self, member: Member) -> str:
        """Why ``member`` is idle (empty: it is not; under the lock)."""
        machine = self.machine
        facts = [
            RunFacts(
                run=run.run,
                needs=run.needs if run.state is RunState.WAITING and machine.may_take(run.run, member) else 0,
                runs=run.state is RunState.RUNNING,
                looks=self._live[run.run].job.plan.again is not False,
                takes=run.plans_for(member),
                findings=self._replanning.findings(run.run),
            )
            for run in machine.runs.values()
            if not run.state.over and run.run in self._live
        ]
        return idle_reason(member, facts)

    def serves(self, name: str, run: str) -> bool:
        """Whether the member ``name`` works on ``run`` now."""
        with self.changed:
            member = self.machine.members.get(name)
            return member is not None and member.run == run

    # -- events -------------------------------------------------------------------------------------------------------

    def handle(self, event: Event) -> None:
        """Let the machine take ``event`` and carry out what it decides.

        Raises:
            InputError: as the machine.
        """
        if isinstance(event, MemberLost):
            self._measuring.gone(event.name)
            self.watching.gone(event.name)
            self.probing.gone(event.name)
            self.reaching.gone(event.name)
            self.relays.gone(event.name)
        if isinstance(event, MemberJoined):
            self._replanning.joined(event.name)
        with self.changed:
            commands = self.machine.handle(event)
            slow = [action for command in commands if (action := self._apply(command)) is not None]
            self.changed.notify_all()
        for action in slow:
            action()
        if isinstance(event, StopRequested):  # a broker that is killed now must not train on after its restart
            self.note(event.run, "stopping", stopping=True)

    def fail(self, run: str, error: FarflungError, name: str = "") -> None:
        """End ``run`` because of ``error`` (of the worker ``name``, or of the run as a whole)."""
        self.handle(RunFailed(run=run, name=name, cause=str(error), kind=type(error).__name__))

    def submit(self, live: LiveRun, write: Callable[[], None]) -> str:
        """Take in a run: its name is taken at once, ``write`` keeps its files, then it may begin. Returns its state.

        Raises:
            InputError: the name is taken.
        """
        with self.changed:
            if live.run in self._live:
                raise InputError(f"run {live.run!r} exists already; submit again for a new name")
            self._live[live.run] = live
        try:
            write()
        except BaseException:
            with self.changed:
                del self._live[live.run]
            raise
        self.note(live.run, "submitted", submitter=live.submitter)
        self._say(f"run {live.run}: submitted by {live.submitter} ({live.job.name}, {counted(live.job.steps, 'step')})")
        marked = unreliable_of(live.job, None if live.bundle is None else live.bundle.topology)
        job = live.job
        self.handle(
            RunSubmitted(
                run=live.run,
                workers=job.workers,
                recoveries=job.most_recoveries,
                helped=job.plan.helpers,
                unreliable=marked,
            )
        )
        with self.changed:
            return self.machine.runs[live.run].state.value

    def restore(self, live: LiveRun, event: RunRestored) -> None:
        """Take in a run of an earlier life of the broker."""
        with self.changed:
            self._live[live.run] = live
        self.handle(event)

    def take_up(self, live: LiveRun, workers: int) -> None:
        """Steps that were committed by ``workers`` workers when the broker died, and are not on record, will be told by them."""
        live.progress = Progress(live.job, workers, self._clock, lambda record: self._record(live, record), None, live.recorded)
        live.progress.keep = False
        live.progress.begin(live.elapsed)
        live.first_step = live.recorded

    def prepared(self, run: str, name: str, fingerprints: Mapping[str, str]) -> None:
        """A worker is ready and holds data with these ``fingerprints``.

        Raises:
            DataError: it holds other data than another worker of the run.
        """
        live = self.live(run)
        with self.changed:
            live.fingerprints[name] = fingerprints
            held = dict(live.fingerprints)
        self.tell(live, Frame("ready", {"name": name}))
        compare_fingerprints(held)

    def measured(self, event: MemberMeasured) -> None:
        """A worker has measured its device."""
        self.handle(event)
        self._measuring.answer(event)

    def learn(self, name: str, spans: Sequence[Span], links: Mapping[str, Told]) -> None:
        """What the worker ``name`` sent in training, and what that says of its ``links``."""
        member = self.machine.members.get(name)
        live = self._live.get(member.run or "") if member is not None else None
        topology = live.planned.topology if live is not None and live.planned is not None else None
        if live is not None:
            self.watching.spans(live.run, live.attempt, name, spans, links)
        fresh = self._freshness.take(name, links, None if topology is None else lambda peer: topology.relay(name, peer))
        for (source, target), figures in fresh.items():
            if self.links.drifts.better(source, target, figures.beta) and live is not None:
                self._replanning.wake(live.run, f"the link from {source} to {target} carries {BytesPerSecond(figures.beta)} now")

    def _told_of(self, run: str, text: str) -> None:
        self._say(f"run {run}: {text}")
        self.tell(self.live(run), Frame("note", {"text": text}))

    def tell(self, live: LiveRun, frame: Frame) -> None:
        """Add a line to what watchers of the run see."""
        live.log.mark(frame)
        self._log(live.run, frame)
        with self.changed:
            self.changed.notify_all()

    def close(self) -> None:
        """End what still goes on."""
        self._replanning.close()
        for live in self.all():
            with self.changed:
                known = live.run in self.machine.runs  # else its files are being written
            if known:
                self.handle(RunFailed(run=live.run, cause="the broker was ended", kind="ConnectionLost"))

    # -- the machine's commands ---------------------------------------------------------------------------------------

    def _apply(self, command: Command) -> Callable[[], None] | None:
        """Carry out ``command``; what is slow comes back as an action for later."""
        if isinstance(command, DismissMember):
            self._send(command.name, Frame("dismissed"))
            return None
        live = self._live[command.run]
        if isinstance(command, MakePlan):
            members = tuple(self.machine.members[name] for name in command.members)
            return lambda: self._begin_planning(live, members, command.attempt)
        if isinstance(command, PrepareRun):
            self._prepare(live, command.name)
            if live.start is not None and live.planned is not None and command.name == live.planned.plan.devices[0]:
                self._lend(live, live.start)
        elif isinstance(command, StartRun):
            return self._start(live, command.name)
        elif isinstance(command, AskHelper | HelperGone):
            return self._about_helper(live, command)
        elif isinstance(command, StopRun | HandOver | AbortRun):
            self._send(command.name, _order(command, live.attempt))
        elif isinstance(command, RecoverRun):
            return self._lose(live, command)
        elif isinstance(command, FinishRun):
            return lambda: self._finish(live, command)
        return None

    def _about_helper(self, live: LiveRun, command: AskHelper | HelperGone) -> Callable[[], None] | None:
        if isinstance(command, HelperGone):
            return self._said(live, self._assisting.gone(live, command.name, command.cause))
        try:
            self._assisting.ask(live, command.name)
        except FarflungError as error:
            lost = RunFailed(run=live.run, name=command.name, cause=str(error), attempt=live.attempt)
            return lambda: self.handle(lost)
        return None

    def _said(self, live: LiveRun, text: str) -> Callable[[], None] | None:
        return (lambda: self._say(f"run {live.run}: {text}")) if text else None

    def helps(self, live: LiveRun, name: str) -> None:
        """The worker ``name`` is ready to help."""
        with self.changed:
            told = self._said(live, self._assisting.ready(live, name))
        if told is not None:
            told()

    def _begin_planning(self, live: LiveRun, members: Sequence[Member], attempt: int) -> None:
        names = [member.name for member in members]
        self._say(f"run {live.run}: planning for {', '.join(names)}")
        self.tell(live, Frame("planning", {"members": names}))
        thread = threading.Thread(target=self._plan, args=(live, members, attempt), name=f"plan-{live.run}", daemon=True)
        thread.start()

    def _plan(self, live: LiveRun, members: Sequence[Member], attempt: int) -> None:
        bundle = live.bundle
        if bundle is None:
            return  # the run was stopped meanwhile
        fault_point("broker.before_plan", run=live.run)
        try:
            fresh = [member for member in members if member.name not in live.measured]
            self._measuring.measure(fresh, live.job.threads)  # the members' offers are changed by their answers
            cluster = cluster_of(bundle, members, self.links, self.reaching)
            check_brought(live.job, "the broker", plans=True)
            planned = plan_run(bundle, cluster, self._judge, running=live.running)
            planned = replace(planned, strangers=tuple(strangers_of(bundle, members)))
            check_runnable(planned.plan)
            with live.files:
                if attempt < live.store.attempt:
                    return  # somebody has gone, and a newer plan is made
                start = self._take_over(live, attempt, planned, bundle)
            if warning := mixed_engines([member for member in members if member.name in planned.plan.devices]):
                self._told_of(live.run, warning)
            protection = planned.protection(live.job)
            if protection.guards:
                self._say(Detail(f"run {live.run}: {protection}"))
            preparation = preparation_of(bundle, live, planned, start)
        except FarflungError as error:
            self.handle(PlanMade(run=live.run, attempt=attempt, error=str(error), kind=type(error).__name__))
            return
        except Exception as error:  # noqa: BLE001 - a planner may be anybody's; a run must not hang in its planning
            text = f"the planner {live.job.plan.planner} failed: {type(error).__name__}: {error}"
            self.handle(PlanMade(run=live.run, attempt=attempt, error=text, kind="PlanError"))
            return
        progress = Progress(
            live.job,
            len(planned.plan.devices),
            self._clock,
            lambda record: self._record(live, record),
            planned.estimate.step_seconds,
            start.step,
        )
        progress.keep = False
        with self.changed:
            run = self.machine.runs[live.run]
            if run.state is RunState.PLANNING and run.attempts == attempt:
                live.planned, live.preparation, live.progress, live.start = planned, preparation, progress, start
                live.planned_at = self._clock.now()
                live.attempt, live.first_step, live.committed = attempt, start.step, start.committed
                live.measured = {member.name for member in members}
                served = [*planned.plan.devices, *start.lenders]
                self.relays.assign(live.run, planned.topology, served, self.ways.relays_of_submitter(live, planned))
                self.tell(live, self._planned_frame(live, planned))
        self._say(f"run {live.run}: {planned.summary}")
        self.handle(PlanMade(run=live.run, attempt=attempt, devices=planned.plan.devices))

    def _take_over(self, live: LiveRun, attempt: int, planned: Planned, bundle: Bundle) -> Start:
        """From now on attempt number ``attempt`` is the run's: on disk, in the journal, and for reports of an older one.

        Under ``live.files``, so that of two plans the older one, if it comes late, changes none of that.
        """
        newest = live.store.begin(attempt)
        live.store.write_plan(planned.plan, planned.topology.to_json())
        start = Start.of(attempt, newest, first_source(live)).or_live(self._held(live), bundle.graph, planned.plan)
        self.note(live.run, "planned", attempts=attempt, devices=len(planned.plan.devices))
        if live.progress is not None:
            live.progress.settle(start.step, live.told)
            live.progress.close()
        return start

    def _planned_frame(self, live: LiveRun, planned: Planned) -> Frame:
        header = {
            "plan": planned.plan_json,
            "addresses": self.ways.addresses(planned.plan.devices),
            "predicted": planned.estimate.step_seconds,
            "summary": planned.summary,
            "explanation": planned.explanation,
            "first_step": live.first_step,
            "attempt": live.attempt,
            "recovered": live.begun > 0,
            "relays": write_relays(self.ways.of_submitter(live, planned)),
        }
        return Frame("planned", header)

    def _prepare(self, live: LiveRun, name: str) -> None:
        assert live.planned is not None
        assert live.preparation is not None
        others = {peer: address for peer, address in self.ways.addresses(live.planned.plan.devices).items() if peer != name}
        assert live.start is not None
        members = self.machine.members
        lenders = {holder: members[holder].address for holder in live.start.moves.get(name, {}) if holder in members}
        ways = self.ways.told(live.planned.topology, name, {**lenders, **others})  # who lends may have no part in the plan
        through = self.ways.of_submitter(live, live.planned).get(name)
        if through:
            ways["relays"][live.submitter] = [list(relay) for relay in through]
        frame, held = live.preparation, live.start.live_header(name)
        own = {"device": name, **ways} | ({} if held is None else {"live": held})
        self._send(name, Frame(frame.kind, {**frame.header, **own}, frame.sections))
        for other in self._live.values():
            if other is not live:
                other.held.pop(name, None)  # it gives up what it held for another run

    def _lend(self, live: LiveRun, start: Start) -> None:
        """Tell those who hold something that others need, and have no part in the plan."""
        assert live.planned is not None
        header, topology = {"run": live.run, "attempt": start.attempt}, live.planned.topology
        for name in start.lenders - set(live.planned.plan.devices):
            ways = self.ways.told(topology, name, self.ways.addresses(live.planned.plan.devices))
            self.ways.introduce(name, ways, topology)
            self._send(name, Frame("lend", {**header, **ways, "live": start.live_header(name)}))

    def _held(self, live: LiveRun) -> dict[str, list[Holding]]:
        with self.changed:
            return {name: list(held) for name, held in live.held.items() if name in self.machine.members}

    def returns(self, name: str, holds: Holds) -> bool:
        """The worker ``name`` comes back and holds something; whether its run may go on from that."""
        with self.changed:
            live, run = self._live.get(holds.run), self.machine.runs.get(holds.run)
            if live is None or run is None or run.state is not RunState.WAITING or holds.attempt != run.attempts:
                return False
        self.dropped(live, name, holds.held, holds.told)
        return True

    def dropped(self, live: LiveRun, name: str, held: list[Holding], told: list[StepReport]) -> None:
        """The worker ``name`` has let go of an attempt; what it holds, and its last reports."""
        with self.changed:
            live.held[name] = held
            live.told += told

    def _lose(self, live: LiveRun, command: RecoverRun) -> Callable[[], None]:
        """An attempt is over: say so to all who watch; the time until training goes on is the pause."""
        self._assisting.over(live.run)
        if not live.lost:
            live.lost_at = self._clock.now()
        live.lost = command.cause
        self.tell(live, Frame("note", {"text": command.told}))
        return lambda: self._say(f"run {live.run}: {command.cause}; {command.then}")

    def _start(self, live: LiveRun, name: str) -> Callable[[], None]:
        """Let ``name`` begin, after what has to be on record before the first step is."""
        frame, attempt = Frame("start", {"run": live.run, "attempt": live.attempt}), live.attempt
        if live.begun == attempt or live.progress is None:
            return lambda: self._send(name, frame)
        live.begun, now = attempt, self._clock.now()
        self._forget(live)
        live.started = now if live.started is None else live.started
        live.progress.begin(now - live.started)
        self.tell(live, Frame("started", {"run": live.run, "attempt": attempt, "seconds": now - live.planned_at}))
        self._replanning.begins(live)
        recovery = self._recovery(live, now - live.started) if live.lost else None
        live.lost = ""

        def begin() -> None:
            fault_point("broker.before_start", run=live.run)
            if recovery is not None:
                try:
                    self._record(live, recovery)
                except FarflungError as error:
                    self.fail(live.run, error)
                    return
            self._say(f"run {live.run}: {recovery or 'training begins'}")
            self._send(name, frame)

        return begin

    def _forget(self, live: LiveRun) -> None:
        """Training goes on, or the run is over: what was held of it before is not needed any more."""
        for name in set(live.held) - set(live.planned.plan.devices if live.planned and live.result is None else ()):
            self._send(name, Frame("forget", {"run": live.run}))
        live.held.clear()
        live.told.clear()

    def _recovery(self, live: LiveRun, elapsed: float) -> RecoveryRecord:
        assert live.planned is not None
        assert live.start is not None
        return RecoveryRecord(
            step=live.first_step,
            attempt=live.attempt,
            replayed=max(live.furthest - live.first_step, 0),
            pause=self._clock.now() - live.lost_at,
            elapsed=elapsed,
            cause=live.lost,
            devices=live.planned.plan.devices,
            source=live.start.came_from,
            moved=live.start.moved,
        )

    def _record(self, live: LiveRun, record: Record) -> None:
        live.unwritten.put(record)
        live.log.record(record.to_line())
        self._log(live.run, Frame("record", {"line": record.to_line()}))
        with self.changed:
            live.latest.take(record)
            self.changed.notify_all()
        if isinstance(record, StepRecord) and record.step >= live.furthest:
            live.furthest = record.step + 1
            if self.machine.runs[live.run].lost:
                self.handle(RunAdvanced(run=live.run))

    def _relayed(self, run: str, record: RelayedRecord) -> None:
        """A relay of ``run`` has told what it carried."""
        live = self._live.get(run)
        if live is None:
            return  # links were measured, for no run
        live.unwritten.put(record)
        self._say(Detail(f"run {run}: {record.relay} relayed {Bytes(record.nbytes)} from {record.source} to {record.target}"))

    def _finish(self, live: LiveRun, command: FinishRun) -> None:
        with live.files:
            checkpoint = live.store.newest_checkpoint()
        result = RunResult(
            status={"done": "finished", "stopped": "stopped"}.get(command.outcome, "failed"),  # type: ignore[arg-type]
            steps=live.first_step + (live.progress.count if live.progress else 0),
            seconds=0.0 if live.started is None else self._clock.now() - live.started,
            cause=command.cause,
            checkpoint=checkpoint,
            sample=live.sample,
        )
        try:
            with live.files:
                live.store.write_result(result)
        except FarflungError as error:
            self._say(f"run {live.run}: warning: its result cannot be written: {error}")
        self.relays.assign(live.run, None, ())
        with self.changed:
            self._assisting.over(live.run)
        self.note(live.run, "over", outcome=command.outcome, kind=command.kind)
        self.tell(live, Frame("result", {"result": result.to_json(), "kind": command.kind}))
        with self.changed:
            live.result = result
            live.bundle = live.preparation = None
            for name in live.planned.plan.devices if live.planned else ():
                live.held.setdefault(name, [])
            self._forget(live)
            for run in [one.run for one in self._live.values() if one.result is not None][:-MOST_OVER]:
                del self._live[run]
                self.machine.forget(run)
            self.changed.notify_all()
        took = f" in {Seconds(result.seconds)}" if live.started is not None else ""
        self._say(
            f"run {live.run}: {result.status} after {counted(result.steps, 'step')}{took}"
            + (f": {result.cause}" if result.cause else "")
        )


def _order(command: StopRun | HandOver | AbortRun, attempt: int) -> Frame:
    if isinstance(command, AbortRun):
        return Frame("abort", {"run": command.run, "cause": command.cause, "keep": command.keep, "attempt": attempt})
    return Frame("stop" if isinstance(command, StopRun) else "hand_over", {"run": command.run})


def _forget(run: str, what: str, /, **body: Any) -> None:
    del run, what, body
