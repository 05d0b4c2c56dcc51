"""Which unreliable members help which run. A helper has no part in the plan, so it may come and go within an attempt."""

from __future__ import annotations

from farflung.protocol.cluster_state import ClusterState
from farflung.protocol.events import AbortRun, AskHelper, Command, HelperGone, HelperMoves
from farflung.protocol.members import Member
from farflung.protocol.runs import Run, RunState

__all__ = ["HelperPool"]

#: A helper that failed this often in an attempt is not asked again.
_HELPER_TRIES = 3


class HelperPool:
    """Decides about helpers."""

    def __init__(self, state: ClusterState) -> None:
        self._state = state

    def ask(self) -> list[Command]:
        """Let each free unreliable member help a run."""
        commands: list[Command] = []
        for run in self._state.runs.values():
            if not run.helped or not run.continues:
                continue
            for member in self.able(run):
                if member.name not in run.helpers:
                    member.run = run.run
                    run.helpers.add(member.name)
                    commands.append(AskHelper(run=run.run, name=member.name))
        return commands

    def able(self, run: Run) -> list[Member]:
        """Return the members that help ``run``, and those that may."""
        if not run.helped:
            return []
        return [
            member
            for member in self._state.members.values()
            if member.name in run.helpers
            or (
                self._state.may_take(run.run, member)
                and not run.plans_for(member)
                and not run.bars(member)
                and run.failed_helpers.get(member.name, 0) < _HELPER_TRIES
            )
        ]

    def moved(self, event: HelperMoves) -> list[Command]:
        """A helper should help another stage: it ends here, and is asked again."""
        run = self._state.runs.get(event.run)
        if run is None or run.state is not RunState.RUNNING or event.name not in run.helpers:
            return []
        return self.withdraw(run, event.name, "it helps another stage from now on")

    def release_unneeded(self) -> list[Command]:
        """Release the helpers of attempts that are over."""
        commands: list[Command] = []
        for run in self._state.runs.values():
            if run.state is not RunState.RUNNING and (run.helpers or run.failed_helpers):
                for name in sorted(run.helpers):
                    self._state.release(run, name)
                    commands.append(AbortRun(run=run.run, name=name, cause="it needs no help now"))
                run.helpers.clear()
                run.failed_helpers.clear()
        return commands

    def withdraw(self, run: Run, name: str, cause: str) -> list[Command]:
        """The owner of the helper ``name`` wants it back."""
        return [*self.lose(run, name, cause), AbortRun(run=run.run, name=name, cause=cause)]

    def fail(self, run: Run, name: str, cause: str) -> list[Command]:
        """The helper ``name`` has failed."""
        run.failed_helpers[name] = run.failed_helpers.get(name, 0) + 1
        return self.lose(run, name, cause)

    def lose(self, run: Run, name: str, cause: str) -> list[Command]:
        """The helper ``name`` has ended by itself."""
        run.helpers.discard(name)
        self._state.release(run, name)
        return [HelperGone(run=run.run, name=name, cause=cause)]
