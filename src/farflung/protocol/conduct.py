"""Members that break the protocol, are late or accuse others: their run continues without them, and their standing drops."""

from __future__ import annotations

from farflung.protocol.attempts import Attempts
from farflung.protocol.cluster_state import ClusterState
from farflung.protocol.events import Command, MemberJudged, MemberLate, MemberLied, MemberReset, RunStalled
from farflung.protocol.runs import RunState
from farflung.protocol.standing import LAST, QUARANTINE, Offense

__all__ = ["Conduct"]


class Conduct:
    """Decides what becomes of members that misbehave."""

    def __init__(self, state: ClusterState, attempts: Attempts) -> None:
        self._state, self._attempts = state, attempts

    def lied(self, event: MemberLied) -> list[Command]:
        """A member sent what no honest member sends."""
        return self._expel(event.run, event.name, Offense(f"it broke the protocol: {event.cause}", QUARANTINE))

    def late(self, event: MemberLate) -> list[Command]:
        """A member has not done its part of an attempt in time."""
        run = self._state.runs.get(event.run)
        if run is None or run.state.over or event.attempt not in (0, run.attempts):
            return []
        if event.name not in run.devices and event.name not in run.awaited:
            return []
        run.late[event.name] = run.late.get(event.name, 0) + 1
        return self._expel(event.run, event.name, Offense(f"it {event.what}", LAST, source=run.source))

    def stalled(self, event: RunStalled) -> list[Command]:
        """A run makes no step, and nobody knows because of whom: whoever does not drop the attempt is found late."""
        run = self._state.runs.get(event.run)
        if run is None or event.attempt != run.attempts or run.state is not RunState.RUNNING:
            return []
        return self._attempts.lose(run, event.cause)

    def reset(self, event: MemberReset) -> list[Command]:
        """The broker's owner has pardoned a member."""
        self._state.standing.reset(event.name)
        return []

    def _expel(self, name_of_run: str, name: str, offense: Offense) -> list[Command]:
        """Let the run continue without ``name``, whose states are not used."""
        self._state.standing.offend(name, offense)
        judged = MemberJudged(name=name, run=name_of_run, text=f"worker {name} is {self._state.standing.text(name)}")
        run = self._state.runs.get(name_of_run)
        if run is None or run.state.over:
            return [judged]
        commands: list[Command] = [judged]
        if name in run.devices and run.state in (RunState.PREPARING, RunState.RUNNING):
            commands += self._attempts.lose(run, f"worker {name} is left out: {offense.cause}")
        if run.state is RunState.WAITING:
            self._state.release(run, name)
            self._attempts.free(run, name)
        return commands
