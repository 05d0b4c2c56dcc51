"""All runs of a broker: events go to the machine of ``protocol.broker``, and its commands are carried out.

One lock, ``RunTable.changed``, guards the machine and the table of runs. Nothing slow happens under it: the thread that brings an
event makes plans, writes files and tells people after it has released the lock.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any

from farflung.broker.attempts.command_executor import CommandExecutor
from farflung.broker.attempts.finisher import RunFinisher
from farflung.broker.attempts.helper_assignment import HelperAssignment, unreliable_of
from farflung.broker.attempts.launcher import AttemptLauncher
from farflung.broker.attempts.planner import AttemptPlanner, Journaled
from farflung.broker.attempts.replanner import PlanInputs, Replanner
from farflung.broker.attempts.retained_states import RetainedStates
from farflung.broker.links.network import Network
from farflung.broker.live_run import LiveRun
from farflung.broker.notices import Notices
from farflung.broker.planning import Judge, LimitedJudges
from farflung.broker.planning.device_measurements import DeviceMeasurements
from farflung.broker.run_recorder import RunRecorder
from farflung.broker.run_table import RunTable
from farflung.broker.straggler_monitor import StragglerMonitor
from farflung.messages.schema import Message
from farflung.protocol.events import (
    Event,
    MemberJoined,
    MemberLost,
    RunFailed,
    RunRestored,
    RunSubmitted,
    StopRequested,
)
from farflung.protocol.runs import RunState
from farflung.protocol.standing import StandingRecord
from farflung.units import counted

__all__ = ["RunManager", "Stores"]


def _no_journal(run: str, what: str, /, **fields: Any) -> None:
    del run, what, fields


def _forget(changes: Mapping[str, StandingRecord | None]) -> None:
    del changes


def _no_copy(run: str) -> None:
    del run


def _forget_presence(name: str, generation: int, cause: str) -> None:
    del name, generation, cause


@dataclass(frozen=True, slots=True, kw_only=True)
class Stores:
    """What a broker that was killed finds again. ``journal`` stores an event of a run; ``standing``: changes of standing.

    ``presence``: that a worker has joined (name, generation, empty), or why it has left. ``recorded``: records of a run are on
    disk.
    """

    journal: Journaled = _no_journal
    standing: Callable[[Mapping[str, StandingRecord | None]], None] = _forget
    presence: Callable[[str, int, str], None] = _forget_presence
    recorded: Callable[[str], None] = _no_copy


class RunManager:
    """Feeds the machine of ``runs`` with events and carries out its commands. Any thread may call."""

    def __init__(
        self,
        runs: RunTable,
        network: Network,
        notices: Notices,
        send: Callable[[str, Message], None],
        judge: Judge | None = None,
        stores: Stores | None = None,
    ) -> None:
        """``send`` queues a message for a member and never waits. ``judge`` predicts step times (default: the timed dry-run)."""
        self._stores = stores or Stores()
        self._runs, self._network, self._notices = runs, network, notices
        machine = runs.machine
        self.measurements = DeviceMeasurements(send, lambda name: name in machine.members, on_host=self.handle)
        judges = LimitedJudges(judge)
        inputs = PlanInputs(
            links=network.table, reachability=network.reachability, judges=judges, measure=self.measurements.measure
        )
        self.replanner = Replanner(machine, runs.changed, self.handle, inputs, notices.everybody)
        self.stragglers = StragglerMonitor(notices.everybody, network.table, self.replanner.slowed)
        self.retained = RetainedStates(runs, send)
        self.helpers = HelperAssignment(send, machine, network.table, network.reachability)
        self.recorder = RunRecorder(runs, notices, self.handle, self._stores.recorded)
        self._planner = AttemptPlanner(
            runs=runs,
            notices=notices,
            network=network,
            recorder=self.recorder,
            retained=self.retained,
            handle=self.handle,
            measure=self.measurements.measure,
            journal=self._stores.journal,
            judges=judges,
        )
        self._executor = self._make_executor(send)

    def _make_executor(self, send: Callable[[str, Message], None]) -> CommandExecutor:
        runs, notices = self._runs, self._notices
        launcher = AttemptLauncher(
            runs=runs,
            notices=notices,
            routes=self._network.routes,
            recorder=self.recorder,
            retained=self.retained,
            send=send,
            handle=self.handle,
            trains=lambda run: self.replanner.begins(runs.live(run)),
        )
        finisher = RunFinisher(
            runs=runs,
            notices=notices,
            relays=self._network.relays,
            retained=self.retained,
            journal=self._stores.journal,
            helpers_over=self.helpers.over,
        )
        return CommandExecutor(
            runs=runs,
            notices=notices,
            planner=self._planner,
            launcher=launcher,
            finisher=finisher,
            helpers=self.helpers,
            send=send,
            handle=self.handle,
        )

    def handle(self, event: Event) -> None:
        """Pass ``event`` to the machine and carry out its commands.

        Raises:
            InputError: as the machine.
        """
        if isinstance(event, MemberLost):
            self.measurements.lost(event.name)
            self.stragglers.lost(event.name)
            self._network.lost(event.name)
        if isinstance(event, MemberJoined):
            self.replanner.joined(event.name)
        with self._runs.changed:
            commands = self._runs.machine.handle(event)
            judged = self._runs.machine.standing_changes()
            gone = self._runs.machine.gone.get(event.name) if isinstance(event, MemberLost) else None
            actions = [action for command in commands if (action := self._executor.apply(command)) is not None]
            self._runs.wake()
        with ExitStack() as left:  # each action runs even if something before it raises: another run may wait for it
            for action in reversed(actions):
                left.callback(action)
            self._stores.standing(judged)
            if isinstance(event, MemberJoined):
                self._stores.presence(event.name, event.generation, "")
            elif gone is not None:
                self._stores.presence(gone.name, gone.generation, gone.cause)
        if isinstance(event, StopRequested):  # a broker that is killed now must not train on after its restart
            self._stores.journal(event.run, "stopping", stopping=True)

    def submit(self, live: LiveRun, write: Callable[[], None]) -> str:
        """Add a new run, call ``write`` to store its files, and let it begin. Return its state.

        Its name is taken before ``write`` is called.

        Raises:
            InputError: the name is taken.
        """
        self._runs.add(live)
        written = False
        try:
            write()
            written = True
        finally:
            if not written:
                self._runs.remove(live.run)
        self._stores.journal(live.run, "submitted", submitter=live.submission.submitter)
        job = live.job
        text = f"submitted by {live.submission.submitter} ({job.name}, {counted(job.steps, 'step')})"
        self._notices.operator_of(live.run, text)
        self.handle(
            RunSubmitted(
                run=live.run,
                workers=job.workers,
                recoveries=job.most_recoveries,
                helped=job.plan.helpers,
                unreliable=unreliable_of(job, live.submission.topology),
                exclude=job.limits.exclude,
                engines=job.limits.engines,
                serves=live.serves,
                submitter=live.submission.submitter,
            )
        )
        with self._runs.changed:
            self._put_away(live)
            return self._runs.machine.runs[live.run].state.value

    def restore(self, live: LiveRun, event: RunRestored) -> None:
        """Add a run of an earlier broker process."""
        self._runs.add(live)
        self.handle(event)
        with self._runs.changed:
            self._put_away(live)

    def _put_away(self, live: LiveRun) -> None:
        """Drop the bundle of a run that waits for its first plan: the queue of a ticket may be long. The lock is held."""
        run = self._runs.machine.runs[live.run]
        if run.state is RunState.WAITING and not run.attempts:
            live.submission.use_bundle(None)

    def close(self) -> None:
        """Fail all runs that are not over, and join all threads."""
        self.measurements.close()
        self.replanner.close()
        for live in self._runs.all():
            with self._runs.changed:
                known = live.run in self._runs.machine.runs  # else its files are being written
            if known:
                self.handle(RunFailed(run=live.run, cause="the broker was ended", kind="ConnectionLost"))
        self._planner.close()
        for live in self._runs.all():
            live.records.unwritten.close()
