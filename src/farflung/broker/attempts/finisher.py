"""The end of a run: its result, and what the broker forgets."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from threading import Lock
from typing import Protocol

from farflung.broker.attempts.planner import Journaled
from farflung.broker.attempts.retained_states import RetainedStates
from farflung.broker.links.relays import Relays
from farflung.broker.live_run import Attempt, TrainingTimes, WorkerFacts
from farflung.broker.notices import Notices, WatchedRun
from farflung.broker.records.journal import MOST_OVER
from farflung.broker.records.run_store import RunStore
from farflung.broker.run_table import RunTable
from farflung.clock import monotonic
from farflung.errors import FarflungError
from farflung.messages.conversions.failed_batches import batch_item
from farflung.messages.watching import Result
from farflung.protocol.events import FinishRun
from farflung.telemetry.records import RunResult
from farflung.units import Seconds, counted

__all__ = ["RunFinisher"]


class FinishedRun(WatchedRun, Protocol):
    """What the end of a run needs of it. ``files`` guards ``store``."""

    store: RunStore
    files: Lock
    attempt: Attempt
    times: TrainingTimes
    workers: WorkerFacts
    #: The newest generated text.
    sample: str

    def end(self, result: RunResult) -> None:
        """The run is over with ``result``."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFinisher:
    """Ends runs. ``helpers_over`` is called under ``RunTable.changed``."""

    runs: RunTable
    notices: Notices
    relays: Relays
    retained: RetainedStates
    journal: Journaled
    helpers_over: Callable[[str], None]

    def finish(self, live: FinishedRun, command: FinishRun) -> None:
        """Write the result of ``live`` and tell everybody. Not under ``RunTable.changed``: files are written."""
        with live.files:
            checkpoint = live.store.newest_checkpoint()
        attempt, times = live.attempt, live.times
        result = RunResult(
            status=command.outcome,  # type: ignore[arg-type]
            steps=attempt.first_step + (attempt.progress.count if attempt.progress else 0),
            seconds=0.0 if times.started is None else monotonic() - times.started,
            cause=command.cause,
            checkpoint=checkpoint,
            sample=live.sample,
        )
        try:
            with live.files:
                live.store.write_result(result)
        except FarflungError as error:
            self.notices.operator_of(live.run, f"warning: its result cannot be written: {error}")
        self.relays.assign(live.run, None, ())
        with self.runs.changed:
            self.helpers_over(live.run)
        try:
            # the result is written before the journal says so: see ``restore``
            self.journal(live.run, "over", outcome=command.outcome, kind=command.kind)
        except FarflungError as error:  # watchers must see the end of the run all the same
            self.notices.operator_of(live.run, f"warning: its end is not in the journal: {error}")
        self.notices.watchers(live, Result(result=result.to_json(), kind=command.kind, batch=batch_item(command.batch)))
        with self.runs.changed:
            live.end(result)
            for name in attempt.planned.plan.devices if attempt.planned else ():
                live.workers.retained.setdefault(name, [])
            self.retained.forget(live.run, live.workers)
            self.runs.forget_finished(MOST_OVER)
            self.runs.wake()
        took = f" in {Seconds(result.seconds)}" if times.started is not None else ""
        cause = f": {result.cause}" if result.cause else ""
        self.notices.operator_of(live.run, f"{result.status} after {counted(result.steps, 'step')}{took}{cause}")
