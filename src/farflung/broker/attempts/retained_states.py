"""States that workers retain after an attempt has ended, as they report them."""

from __future__ import annotations

from collections.abc import Callable, Collection
from dataclasses import dataclass

from farflung.broker.live_run import WorkerFacts
from farflung.broker.run_table import RunTable
from farflung.messages.commands import Forget
from farflung.messages.conversions.step_reports import StepReport
from farflung.messages.schema import Message
from farflung.protocol.broker import RunState
from farflung.protocol.retained_states import RetainedState

__all__ = ["RetainedReport", "RetainedStates"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RetainedReport:
    """States that a worker retains of plan number ``attempt`` of ``run``, and its last step reports."""

    run: str
    attempt: int
    states: list[RetainedState]
    steps: list[StepReport]


class RetainedStates:
    """Follows which worker retains which states. Any thread may call. ``send`` never waits."""

    def __init__(self, runs: RunTable, send: Callable[[str, Message], None]) -> None:
        self._runs, self._send = runs, send

    def report(self, name: str, report: RetainedReport) -> None:
        """The worker ``name`` has left an attempt of ``report.run`` and retains these states. Its last report counts.

        Raises:
            WireError: a step report does not fit the job or the plan.
        """
        with self._runs.changed:
            live = self._runs.live(report.run)
            limits = live.limits(live.running)
            for one in report.steps:
                limits.check_step(one)
            live.workers.retained[name] = report.states
            live.workers.step_reports[name] = report.steps

    def rejoin(self, name: str, report: RetainedReport) -> bool:
        """Return whether the run can use what the worker ``name``, which joins again, retains; store it if so."""
        with self._runs.changed:
            run = self._runs.machine.runs.get(report.run)
            known = run is not None and self._runs.find(report.run) is not None
            if not known or run is None or run.state is not RunState.WAITING or report.attempt != run.attempts:
                return False
            self.report(name, report)
            self._runs.live(report.run).workers.measured.add(name)  # for this run: its offer has the figures
        return True

    def of_members(self, workers: WorkerFacts) -> dict[str, list[RetainedState]]:
        """Return what those ``workers`` of a run that are members retain, without copies of those whom others blame."""
        with self._runs.changed:
            members = self._runs.machine.members
            here = {name: states for name, states in workers.retained.items() if name in members}
            return {name: [one for one in here[name] if not (one.copied and name in workers.blamed)] for name in here}

    def assigned(self, name: str, run: str) -> None:
        """``name`` prepares for ``run``; it drops what it retains of other runs (under ``RunTable.changed``)."""
        for other in self._runs.all():
            if other.run != run:
                other.workers.retained.pop(name, None)

    def forget(self, run: str, workers: WorkerFacts, training: Collection[str] = ()) -> None:
        """Nobody needs the retained states of ``run`` (under ``RunTable.changed``).

        ``training``: the workers of the new attempt, which drop the states by themselves; the others are told.
        """
        for name in workers.retained.keys() - set(training):
            self._send(name, Forget(run=run))
        workers.retained.clear()
        workers.step_reports.clear()
