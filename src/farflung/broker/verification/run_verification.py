"""Verification of the members of one attempt: step reports in, events for the machine and commands for workers out."""

from __future__ import annotations

import threading
from collections.abc import Callable

from farflung.broker.verification.unit_verdicts import Disputed, Forged, SecondOpinion, UnitVerdicts
from farflung.messages.commands import Recheck
from farflung.messages.conversions.step_reports import StepReport
from farflung.messages.schema import Message
from farflung.plan.model import Plan
from farflung.protocol.events import Event, MemberLied, RunStalled

__all__ = ["RunVerification"]


class RunVerification:
    """Any thread may call ``report``."""

    def __init__(self, run: str, attempt: int, plan: Plan) -> None:
        self._run, self._attempt = run, attempt
        self._verdicts = UnitVerdicts(plan)
        #: Guards the verdicts: reports of several workers come at the same time.
        self._lock = threading.Lock()

    @property
    def verified(self) -> int:
        """How many units were verified and equal."""
        return self._verdicts.verified

    def report(self, name: str, report: StepReport, send: Callable[[str, Message], None]) -> list[tuple[int, Event]]:
        """Take the step report of the worker ``name``; return the events that follow, each with its step.

        ``send`` never waits.
        """
        with self._lock:
            findings = self._verdicts.report(name, report)
        events: list[tuple[int, Event]] = []
        for finding in findings:  # without the lock: they are values
            unit = finding.unit
            match finding:
                case SecondOpinion():
                    recheck = Recheck(
                        run=self._run,
                        attempt=self._attempt,
                        step=unit.step,
                        stage=unit.stage,
                        micro_batch=unit.micro_batch,
                        verifier=finding.verifier,
                    )
                    send(finding.name, recheck)
                case Forged():
                    cause = f"its results for {unit} differ from those of {' and '.join(finding.others)}"
                    events.append((unit.step, MemberLied(run=self._run, name=finding.name, cause=cause)))
                case Disputed():
                    cause = f"{' and '.join(finding.names)} disagree about {unit}"
                    stalled = RunStalled(run=self._run, attempt=self._attempt, cause=cause, suspects=finding.names)
                    events.append((unit.step, stalled))
        return events
