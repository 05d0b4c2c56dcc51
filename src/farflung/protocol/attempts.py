"""The attempts of a run: from its plan over preparation and training to its end, a loss or a better plan.

The loss of a member, or of a link between two, ends the attempt. The other workers drop it and report the states that they
retain; only then are they free again. The run is planned again for the present workers, and continues from retained states or
from its newest checkpoint (``retained_states`` decides which). A run without recoveries fails instead, and so does a run that
is lost too often without a new step. A member that reports a failure is replaced first (``conduct``). Events of an attempt that
is over are ignored.
"""

from __future__ import annotations

from dataclasses import replace

from farflung.protocol.cluster_state import ClusterState
from farflung.protocol.events import (
    ENGINE_CRASHED,
    INPUT_ERROR,
    PLAN_ERROR,
    TRAINING_ERROR,
    AbortRun,
    BetterPlan,
    Command,
    FinishRun,
    MigrateRun,
    PlanMade,
    PrepareRun,
    RecoverRun,
    RunAdvanced,
    RunDropped,
    RunEnded,
    RunFailed,
    RunPrepared,
    StartRun,
    StopRequested,
    StopRun,
)
from farflung.protocol.hybrid.helper_pool import HelperPool
from farflung.protocol.runs import Run, RunState
from farflung.protocol.standing import LAST, Offense

__all__ = ["Attempts", "stale"]

#: A run whose job has ended the processes of so many attempts fails: a third worker is not tried.
_CRASHES = 2
#: After so many new steps without a crash, the crash was the fault of the worker's machine.
_SETTLED = 100
#: Errors of planning that other workers may solve; the rest are the broker's own (a full disk).
_NEEDS_OTHERS = frozenset({PLAN_ERROR, INPUT_ERROR})


class Attempts:
    """Decides about the attempts of all runs."""

    def __init__(self, state: ClusterState, helpers: HelperPool) -> None:
        self._state, self._helpers = state, helpers

    # -- events -------------------------------------------------------------------------------------------------------

    def planned(self, event: PlanMade) -> list[Command]:
        """The planner has answered."""
        run = self._state.run(event.run)
        if run.state is not RunState.PLANNING or event.attempt != run.attempts:
            return []  # stopped meanwhile, or a worker that it was planned for was lost
        if event.error and run.stopping:
            return self.finish(run, RunState.STOPPED)
        others = bool(run.began and run.recoveries) or run.chosen or self._state.left_out(run)
        if event.error and event.kind in _NEEDS_OTHERS and others:
            run.refused = frozenset(run.devices)  # wait for a worker that replaces the lost one
            self.wait(run)
            return [
                RecoverRun(
                    run=run.run, cause=f"no plan for {'these workers' if run.chosen else 'those who are left'}: {event.error}"
                )
            ]
        if event.error:
            return self.fail(run, RunFailed(run=run.run, cause=event.error, kind=event.kind))
        strange = [name for name in event.devices if name not in run.devices]
        if strange or not event.devices:
            cause = f"the plan names {', '.join(strange) or 'nobody'}, who was not offered to it"
            return self.fail(run, RunFailed(run=run.run, cause=cause, kind=PLAN_ERROR))
        for name in set(run.devices) - set(event.devices):
            self._state.release(run, name)
        run.devices, run.began = event.devices, True
        run.state = RunState.PREPARING
        return [PrepareRun(run=run.run, name=name) for name in run.devices]

    def prepared(self, event: RunPrepared) -> list[Command]:
        """A worker is prepared; training begins with the last one."""
        run = self._state.run(event.run)
        if run.state is not RunState.PREPARING or event.name not in run.devices or stale(event, run):
            return []
        run.prepared.add(event.name)
        if run.prepared != set(run.devices):
            return []
        run.state, run.accuser = RunState.RUNNING, ""
        started: list[Command] = [StartRun(run=run.run, name=name) for name in run.devices]
        return started + (self._stop_after_step(run) if run.stopping else [])

    def advanced(self, event: RunAdvanced) -> list[Command]:
        """The run has made a new step."""
        run = self._state.run(event.run)
        run.lost = 0
        run.failures.clear()
        run.steps_since_crash += 1
        if run.steps_since_crash >= _SETTLED:
            self._settle(run)
        return []

    def dropped(self, event: RunDropped) -> list[Command]:
        """A worker has dropped the last attempt."""
        run = self._state.run(event.run)
        if not stale(event, run):
            self.free(run, event.name)
        return []

    def ended(self, event: RunEnded) -> list[Command]:
        """A worker has ended its part; with the last one, the run or its attempt is over."""
        run = self._state.run(event.run)
        if run.state is not RunState.RUNNING or event.name not in run.devices or stale(event, run):
            return []
        run.ended.add(event.name)
        run.unfinished = run.unfinished or not event.whole
        if run.ended != set(run.devices):
            return []
        if run.migrating and run.unfinished and not run.stopping:
            cause = run.migrating
            self.wait(run)
            return [RecoverRun(run=run.run, cause=cause, migrated=True)]
        return self.finish(run, RunState.STOPPED if run.stopping else RunState.FINISHED)

    def failed(self, event: RunFailed) -> list[Command]:
        """A worker has failed, or lost a peer; or the whole run has failed."""
        run = self._state.run(event.run)
        working = event.name in run.devices or event.name in run.helpers
        if event.kind == ENGINE_CRASHED and working and not (run.state.over or stale(event, run)):
            run.crashed.append((event.name, event.cause))
            run.steps_since_crash = 0
            if len(run.crashed) >= _CRASHES:
                return self.fail(run, replace(event, cause=f"worker {event.name}: {event.cause}; {_crashes(run)}"))
        if event.name in run.helpers and not stale(event, run):
            return self._helpers.fail(run, event.name, event.cause)
        if run.state.over or (event.name and event.name not in run.devices) or event.name in run.ended or stale(event, run):
            return []
        if not event.name:
            return self.fail(run, event)
        if event.lost_peer:  # the cause names the lost peer, whose own session may break a moment later
            cause = f"{event.cause} (told by worker {event.name})"
            run.accuser = event.name
            # a broken link looks the same from here, so this alone leads to no quarantine
            offense = Offense(f"it reported a loss of a peer that was there: {event.cause}", 1, LAST, run.source)
            self._state.standing.offend(event.name, offense)
            return self.lose(run, cause)
        if event.kind == ENGINE_CRASHED:  # the worker is well, and its process's states are elsewhere or in the checkpoint
            return self.lose(run, f"worker {event.name}: {event.cause}", ENGINE_CRASHED)
        return self.fail(run, replace(event, cause=f"worker {event.name}: {event.cause}"))

    def better(self, event: BetterPlan) -> list[Command]:
        """End the attempt as after a loss; but all workers retain the last committed step, so nothing is repeated."""
        run = self._state.runs.get(event.run)
        if run is None or not run.continues or event.attempt != run.attempts:
            return []
        return self._drop(run, RecoverRun(run=run.run, cause=event.cause, better=True))

    def stop(self, event: StopRequested) -> list[Command]:
        """Somebody has asked the run to end."""
        run = self._state.run(event.run)
        if run.state.over:
            return []
        run.stopping = True
        if run.state is RunState.RUNNING and not event.now:
            return self._stop_after_step(run)
        resumes = run.state in (RunState.PLANNING, RunState.PREPARING) or (run.state is RunState.WAITING and run.awaited)
        if run.began and resumes and not event.now:
            return []  # workers retain steps that no checkpoint has: the next attempt resumes them and ends with a checkpoint
        return [*self._abort(run, "stopped"), *self.finish(run, RunState.STOPPED)]

    # -- what members cause -------------------------------------------------------------------------------------------

    def lose(self, run: Run, cause: str, kind: str = TRAINING_ERROR, *, gone: bool = True) -> list[Command]:
        """The attempt has lost a worker, or its process: begin the next one with all present, unless that happened too often.

        ``gone``: the worker has left; otherwise only this run continues without it.
        """
        if run.stopping:
            return [*self._abort(run, cause), *self.finish(run, RunState.STOPPED)]
        if run.lost >= run.recoveries:
            often = f" ({run.lost} recoveries without a new step came before)" if run.lost else ""
            return self.fail(run, RunFailed(run=run.run, cause=cause + often, kind=kind))
        run.lost += 1
        return self._drop(run, RecoverRun(run=run.run, cause=cause, replaced=not gone))

    def leave_out(self, run: Run, cause: str) -> list[Command]:
        """A worker wants to leave, or to be left out for a while. That is no loss."""
        if run.state is RunState.PLANNING:
            self.wait(run)
            return []
        if run.state is RunState.PREPARING:
            return self._drop(run, RecoverRun(run=run.run, cause=cause))
        if run.state is not RunState.RUNNING or run.migrating or run.stopping:
            return []
        run.migrating = cause
        return [MigrateRun(run=run.run, name=name) for name in self._state.workers_of(run)]

    def wait(self, run: Run, awaited: set[str] | None = None) -> None:
        """Wait for workers. Those of the last attempt become free together, once all ``awaited`` have dropped it."""
        run.wait(awaited or set())
        self.free(run)

    def free(self, run: Run, name: str = "") -> None:
        """``name`` has dropped the last attempt, or is lost."""
        run.awaited.discard(name)
        if run.state is RunState.WAITING and not run.awaited:
            self._state.release_all(run)

    def finish(self, run: Run, state: RunState, failure: RunFailed | None = None) -> list[Command]:
        """The run is over; ``failure`` ended it (None: nothing failed)."""
        if state is RunState.FINISHED and run.steps_since_crash:
            self._settle(run)
        cause, kind, batch = ("", "", None) if failure is None else (failure.cause, failure.kind, failure.batch)
        run.state, run.cause, run.kind = state, cause, kind
        run.awaited.clear()
        self._state.release_all(run)
        return [FinishRun(run=run.run, outcome=state.value, cause=cause, kind=kind, batch=batch)]

    # -- parts --------------------------------------------------------------------------------------------------------

    def _settle(self, run: Run) -> None:
        """The run has continued without a crash: whoever crashed has a machine that may be broken."""
        for name, cause in run.crashed:
            if name not in run.devices:  # else the same machine computed the same job without a crash
                text = f"a process died on it that did not die on other workers, run {run.run}: {cause}"
                self._state.standing.offend(name, Offense(text, 1, source=run.source))
        run.crashed.clear()

    def _drop(self, run: Run, command: RecoverRun) -> list[Command]:
        """End the attempt; its workers retain their states."""
        commands = self._abort(run, command.cause, keep=True)
        self.wait(run, {one.name for one in commands})
        return [*commands, command]

    def _abort(self, run: Run, cause: str, *, keep: bool = False) -> list[AbortRun]:
        busy = run.state in (RunState.PREPARING, RunState.RUNNING)
        return [AbortRun(run=run.run, name=name, cause=cause, keep=keep) for name in self._state.workers_of(run) if busy]

    def fail(self, run: Run, failure: RunFailed) -> list[Command]:
        """The run fails: all its workers drop it."""
        return [*self._abort(run, failure.cause), *self.finish(run, RunState.FAILED, failure)]

    def _stop_after_step(self, run: Run) -> list[Command]:
        return [StopRun(run=run.run, name=name) for name in self._state.workers_of(run)]


def _crashes(run: Run) -> str:
    names = [name for name, _ in run.crashed]
    where = f"on {', '.join(names)}" if len(set(names)) > 1 else f"on {names[0]}, as no other worker could compute it"
    return f"the job has ended the processes of {len(names)} attempts ({where}) and is not tried again"


def stale(event: RunPrepared | RunDropped | RunEnded | RunFailed, run: Run) -> bool:
    """Return whether the event belongs to an attempt that is over."""
    return event.attempt not in (0, run.attempts)
