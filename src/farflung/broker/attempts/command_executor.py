"""Carries out the commands of the broker's machine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from farflung.broker.attempts.finisher import RunFinisher
from farflung.broker.attempts.helper_assignment import HelperAssignment
from farflung.broker.attempts.launcher import AttemptLauncher
from farflung.broker.attempts.planner import AttemptPlanner
from farflung.broker.live_run import LiveRun
from farflung.broker.notices import Notices
from farflung.broker.run_table import RunTable
from farflung.errors import InputError
from farflung.messages import commands
from farflung.messages.commands import Abort, Dismissed, Stop
from farflung.messages.schema import Message
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
    MemberJudged,
    MigrateRun,
    PrepareRun,
    RecoverRun,
    RunCommand,
    RunFailed,
    RunWaits,
    StartRun,
    StopRun,
)

__all__ = ["Action", "CommandExecutor"]

#: The slow part of a command (files, threads, messages to people), which runs after the lock was released.
Action = Callable[[], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandExecutor:
    """``send`` queues a message for a member and never waits; ``handle`` receives further events."""

    runs: RunTable
    notices: Notices
    planner: AttemptPlanner
    launcher: AttemptLauncher
    finisher: RunFinisher
    helpers: HelperAssignment
    send: Callable[[str, Message], None]
    handle: Callable[[Event], None]

    def apply(self, command: Command) -> Action | None:
        """Carry out ``command`` under ``RunTable.changed``; return the slow part of it, if there is one."""
        if isinstance(command, DismissMember):
            self.send(command.name, Dismissed())
            return None
        live = self.runs.live(command.run)
        return self._apply_to(live, command)

    def _apply_to(self, live: LiveRun, command: RunCommand) -> Action | None:
        if isinstance(command, StopRun | MigrateRun | AbortRun):
            self.send(command.name, _order(command, live.attempt.number))
            return None
        match command:
            case MakePlan():
                members = tuple(self.runs.machine.members[name] for name in command.members)
                return lambda: self.planner.begin(live, members, command.attempt)
            case PrepareRun():
                self.launcher.prepare(live, command.name)
                return None
            case StartRun():
                return self.launcher.start(live, command.name)
            case AskHelper():
                return self._ask_helper(live, command.name)
            case HelperGone():
                return self._helper_gone(live, command)
            case RecoverRun():
                self.helpers.over(live.run)
                return self.launcher.lost(live, command)
            case RunWaits() | MemberJudged():
                return lambda: self.notices.everybody(live.run, command.text)
            case FinishRun():
                return lambda: self.finisher.finish(live, command)

    def _ask_helper(self, live: LiveRun, name: str) -> Action | None:
        try:
            self.helpers.ask(live.helped, live.attempt.preparation, name)
        except InputError as error:
            failed = RunFailed(run=live.run, name=name, cause=str(error), attempt=live.attempt.number)
            return lambda: self.handle(failed)
        return None

    def _helper_gone(self, live: LiveRun, command: HelperGone) -> Action:
        text = self.helpers.gone(live.run, live.attempt.number, command.name, command.cause)

        def act() -> None:  # after the other commands: a helper that moves was asked again by one of them
            if text:
                self.notices.operator_of(live.run, text)
            with self.runs.changed:
                moves = self.helpers.move(live.helped)
            if moves:
                self.handle(HelperMoves(run=live.run, name=moves))

        return act


def _order(command: StopRun | MigrateRun | AbortRun, attempt: int) -> Message:
    if isinstance(command, AbortRun):
        return Abort(run=command.run, cause=command.cause, keep=command.keep, attempt=attempt)
    return Stop(run=command.run) if isinstance(command, StopRun) else commands.HandOver(run=command.run)
