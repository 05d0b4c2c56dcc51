"""Runs that wait for workers: submitted, restored, and whose attempt is over."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.errors import InputError
from farflung.protocol.attempts import Attempts
from farflung.protocol.candidates import candidates
from farflung.protocol.cluster_state import ClusterState
from farflung.protocol.events import Command, MakePlan, RunRestored, RunSubmitted, RunWaits, WaitedEnough
from farflung.protocol.runs import Run, RunState

__all__ = ["RunQueue"]


class RunQueue:
    """Decides which run gets which free members, in the order of submission."""

    def __init__(self, state: ClusterState, attempts: Attempts) -> None:
        self._state, self._attempts = state, attempts

    def submitted(self, event: RunSubmitted) -> list[Command]:
        """A job was submitted."""
        self._add(event)
        return []

    def restored(self, event: RunRestored) -> list[Command]:
        """An earlier broker process had this run."""
        run = self._add(event)
        run.attempts, run.expected, run.began = event.attempts, event.expected, event.attempts > 0
        run.expected_names, run.stopping = frozenset(event.names), event.stopping
        if event.outcome:
            run.state, run.cause, run.kind = RunState(event.outcome), event.cause, event.kind
            run.devices = event.names
        return []

    def waited(self, event: WaitedEnough) -> list[Command]:
        """The workers of a restored run have had their time to come back."""
        run = self._state.runs.get(event.run)
        if run is not None:  # else it was over long ago
            run.expected, run.expected_names = 0, frozenset()
        return []

    def start(self) -> list[Command]:
        """Plan the runs for which there are enough free members; finish those that were stopped while they waited."""
        commands: list[Command] = []
        restored, ready = self._state.restored(), self._ready()  # once: there may be thousands of waiting runs
        for run in self._state.waiting():
            # each run is assigned before the free members for the next one are counted
            if not run.awaited and run.needs <= ready and (members := self._members_for(run, restored)):
                commands.append(self._assign(run, self._candidates(run, members)))
                restored, ready = self._state.restored(), self._ready()
        for run in self._state.runs.values():
            if run.stopping and run.state is RunState.WAITING and not (run.awaited or run.expected):
                commands += self._attempts.finish(run, RunState.STOPPED)  # nobody can resume it
        return commands + self._announced(restored)

    def _announced(self, restored: Sequence[Run]) -> list[Command]:
        """Tell the watchers once for how many workers a run waits after its attempt."""
        commands: list[Command] = []
        for run in self._state.waiting():
            if not run.attempts or run.announced or run.awaited or run.expected:
                continue
            members = self._state.members.values()
            free = {one.name for one in members if run.plans_for(one) and self._state.may_take(run.run, one, restored)}
            missing = max(run.needs - len(free), int(bool(run.refused) and run.refused >= free))
            if missing:
                run.announced = True
                commands.append(RunWaits(run=run.run, missing=missing))
        return commands

    def _ready(self) -> int:
        """Return how many members are ready; for some runs, fewer of them are free."""
        return sum(one.ready for one in self._state.members.values())

    def _members_for(self, run: Run, restored: Sequence[Run]) -> tuple[str, ...]:
        """Return the free members for which ``run`` may be planned (empty: it waits for more)."""
        state = self._state
        free = [one for one in state.members.values() if state.may_take(run.run, one, restored) and run.plans_for(one)]
        broken = {one.offer.host for one in state.members.values() if one.name in run.suspects} - {""}
        # the best first, each contains the one before: machines where no process of the run has died, then other workers
        choices = [
            [one.name for one in free if not (self._suspect(run, one.name) or one.offer.host in broken)],
            [one.name for one in free if not self._suspect(run, one.name)],
            [one.name for one in free if one.name not in run.suspects | run.lacking],
            [one.name for one in free],
        ]
        for names in choices:
            refused = bool(run.refused) and run.refused >= set(names)
            if len(names) >= run.needs and run.expected_names <= set(names) and not refused:
                return tuple(names)
        return ()

    def _candidates(self, run: Run, names: tuple[str, ...]) -> tuple[str, ...]:
        """Return those of the free members ``names`` for which ``run`` is planned; all of them after a plan was refused."""
        if run.refused:
            run.chosen = False
            return names
        found = candidates([self._state.members[name] for name in names], run.workers, run.expected_names)
        run.chosen = len(found) < len(names)
        return tuple(one.name for one in found)

    def _suspect(self, run: Run, name: str) -> bool:
        return name in run.suspects | run.lacking or self._state.standing.last(name)

    def _assign(self, run: Run, members: tuple[str, ...]) -> MakePlan:
        run.expected, run.expected_names, run.refused = 0, frozenset(), frozenset()
        run.state, run.devices, run.announced = RunState.PLANNING, members, False
        run.attempts += 1
        for name in members:
            self._state.members[name].run = run.run
        return MakePlan(run=run.run, members=members, attempt=run.attempts)

    def _add(self, event: RunSubmitted | RunRestored) -> Run:
        if event.run in self._state.runs:
            raise InputError(f"run {event.run!r} exists already")
        run = self._state.runs[event.run] = Run(
            run=event.run,
            workers=event.workers,
            recoveries=event.recoveries,
            helped=event.helped,
            unreliable=event.unreliable,
            exclude=event.exclude,
            engines=event.engines,
            serves=event.serves,
            submitter=event.submitter,
        )
        return run
