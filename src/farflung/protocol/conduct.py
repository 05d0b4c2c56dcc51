"""Members that break the protocol, are late, fail or accuse others: their run continues without them, and their standing drops.

A member that reports a failure may have a broken disk, or lie. So its word ends no run that can continue without the member that
is to blame. The run fails if another member reports a failure of the same kind with somebody else to blame, since then the job
or its data are the cause.
"""

from __future__ import annotations

from dataclasses import replace

from farflung.protocol.attempts import Attempts, stale
from farflung.protocol.cluster_state import ClusterState
from farflung.protocol.events import (
    DATA_ERROR,
    ENGINE_CRASHED,
    Command,
    MemberJudged,
    MemberLate,
    MemberLied,
    MemberReset,
    MemberSpoilt,
    RunFailed,
    RunStalled,
)
from farflung.protocol.runs import MemberFailure, Run, RunState
from farflung.protocol.standing import LAST, QUARANTINE, Offense

__all__ = ["Conduct"]


class Conduct:
    """Decides what becomes of members that misbehave."""

    def __init__(self, state: ClusterState, attempts: Attempts) -> None:
        self._state, self._attempts = state, attempts

    def lied(self, event: MemberLied) -> list[Command]:
        """A member sent what no honest member sends."""
        return self._expel(event.run, event.name, Offense(f"it broke the protocol: {event.cause}", QUARANTINE))

    def failed(self, event: RunFailed) -> list[Command]:
        """A worker has failed, or lost a peer; or the whole run has failed."""
        run = self._state.run(event.run)
        alone = event.name in run.devices and event.name not in run.ended and not (run.state.over or stale(event, run))
        if not alone or event.lost_peer or event.kind == ENGINE_CRASHED:
            return self._attempts.failed(event)
        if event.outvoted_by:  # whoever was replaced in place of this member, because nobody had outvoted it, may return
            run.lacking -= event.outvoted_by
            if self._continues_without(run, event.name):
                run.lacking.add(event.name)
                return self._replace(run, event.name, event)
        culprit, text = self._blame(run, event)
        if text:
            return self._attempts.fail(run, replace(event, cause=text))
        if run.state is RunState.PREPARING and event.kind == DATA_ERROR:  # a machine without a file is as good as before
            run.lacking.add(culprit)
            return self._replace(run, culprit, event)
        self._state.standing.offend(culprit, Offense(f"it failed: {event.cause}", LAST, source=run.source))
        return [self._judged(run.run, culprit), *self._replace(run, culprit, event)]

    def _replace(self, run: Run, culprit: str, event: RunFailed) -> list[Command]:
        """Continue without the worker ``culprit``, which has joined still. The cause is a text of the machine that reports it."""
        reporter = "it" if event.name == culprit else f"worker {event.name}"
        cause = f"worker {culprit} is replaced, because {reporter} reports: {event.cause}"
        return self._attempts.lose(run, cause, gone=False)

    def _blame(self, run: Run, event: RunFailed) -> tuple[str, str]:
        """Return who is to blame for the failure that ``event.name`` reports; if that ends the run, the cause.

        A member that has blamed another one before is to blame for the next failure that it reports.
        """
        accused = event.blames if event.blames in run.devices else event.name
        serial = self._refuted(run, event.name)
        failure = MemberFailure(event.name, event.name if serial else accused, event.kind)
        culprit = failure.culprit
        alike = [known for known in run.failures if known.kind == failure.kind]
        elsewhere = [known for known in alike if known.culprit not in ("", culprit) and known.reporter != failure.reporter]
        cause = f"worker {culprit}: {event.cause}" + (f" (told by worker {event.name})" if culprit != event.name else "")
        if elsewhere:  # the job or its data are the cause, also of failures that one member blamed on another
            for known in alike:
                if known.culprit not in run.lacking:
                    self._state.standing.pardon(known.culprit, LAST, run.source)
            return culprit, f"{cause}; the attempt with worker {elsewhere[-1].culprit} failed like this, too"
        again = any(known.culprit == culprit for known in alike)
        run.failures.append(failure)
        return culprit, "" if not again and self._continues_without(run, culprit) else cause

    def _refuted(self, run: Run, name: str) -> bool:
        """Return whether ``name``, which reports a failure now, has blamed others before. They are pardoned."""
        serial = False
        for index, known in enumerate(run.failures):
            if known.reporter == name != known.culprit:
                serial = True
                if known.culprit not in run.lacking:
                    self._state.standing.pardon(known.culprit, LAST, run.source)
                run.failures[index] = replace(known, culprit="")
        return serial

    def _continues_without(self, run: Run, name: str) -> bool:
        return run.lost < run.recoveries and not run.stopping and self._replaceable(run, name)

    def _replaceable(self, run: Run, name: str) -> bool:
        """Return whether ``run`` has enough members without ``name``."""
        state = self._state
        others = [one for one in state.members.values() if one.name != name and run.plans_for(one)]
        able = [one.name for one in others if state.serves(one.name, run) or state.may_take(run.run, one)]
        return sum(not state.standing.quarantined(one) for one in able) >= run.needs

    def late(self, event: MemberLate) -> list[Command]:
        """A member has not done its part of an attempt in time."""
        run = self._state.runs.get(event.run)
        if run is None or run.state.over or event.attempt not in (0, run.attempts):
            return []
        if event.name not in run.devices and event.name not in run.awaited:
            return []
        run.late[event.name] = run.late.get(event.name, 0) + 1
        return self._expel(event.run, event.name, Offense(f"it {event.what}", LAST, source=run.source))

    def spoilt(self, event: MemberSpoilt) -> list[Command]:
        """A member's gradients were not finite. Data can be the cause, so this alone leads to no quarantine."""
        standing, last = self._state.standing, self._state.standing.last(event.name)
        run = self._state.runs.get(event.run)
        source = event.run if run is None else run.source
        offense = Offense(f"its gradients were not finite in step {event.step} of {event.run}", 1, LAST, source)
        standing.offend(event.name, offense)
        if last or not standing.last(event.name):
            return []
        return [MemberJudged(name=event.name, run=event.run, text=f"worker {event.name} is {standing.text(event.name)}")]

    def stalled(self, event: RunStalled) -> list[Command]:
        """A run makes no step, and nobody knows because of whom: whoever does not drop the attempt is found late."""
        run = self._state.runs.get(event.run)
        if run is None or event.attempt != run.attempts or run.state is not RunState.RUNNING:
            return []
        for name in event.suspects:
            self._state.standing.offend(name, Offense(event.cause, 1, LAST, run.source))
        return self._attempts.lose(run, event.cause)

    def reset(self, event: MemberReset) -> list[Command]:
        """The broker's owner has pardoned a member."""
        self._state.standing.reset(event.name)
        return []

    def _expel(self, name_of_run: str, name: str, offense: Offense) -> list[Command]:
        """Let the run continue without ``name``, whose states are not used."""
        self._state.standing.offend(name, offense)
        judged = self._judged(name_of_run, name)
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

    def _judged(self, run: str, name: str) -> MemberJudged:
        return MemberJudged(name=name, run=run, text=f"worker {name} is {self._state.standing.text(name)}")
