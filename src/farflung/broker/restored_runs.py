"""Runs of an earlier broker process, from its journal and their folders: finished ones are shown, the others continue."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path

from farflung.broker.attempts.helper_assignment import unreliable_of
from farflung.broker.live_run import LiveRun, RunRecords, Submission
from farflung.broker.records.bundle_file import read_bundle
from farflung.broker.records.journal import JournaledRun
from farflung.broker.records.run_store import RunStore
from farflung.broker.records.watch_history import read_history
from farflung.broker.run_recorder import RunRecorder
from farflung.checkpoint import CheckpointStore
from farflung.clock import wall_time
from farflung.errors import DataError, FarflungError
from farflung.job import JobSpec
from farflung.job import from_json as job_from_json
from farflung.messages.submission import Bundle
from farflung.messages.watching import Note, Result
from farflung.plan import Plan
from farflung.protocol.events import Event, RunFailed, RunRestored, WaitedEnough
from farflung.telemetry import RecoveryRecord, RunFolder, RunResult, StepRecord
from farflung.telemetry.faults import fault_point
from farflung.thread_group import ThreadGroup
from farflung.units import counted

__all__ = ["RestoredRuns"]

#: Seconds for the workers of a run to come back; then it continues with the workers that are there.
_RETURN_SECONDS = 30.0
#: Seconds for the process that feeds the data to come back.
_FEEDER_SECONDS = 120.0


@dataclass(slots=True, kw_only=True)
class RestoredRuns:
    """Restores runs, once, before anybody is served. ``add`` adds a run with its event; ``handle`` receives later events.

    ``fetch`` copies a newer checkpoint of a run to the given store: another broker may have led until now.

    Threads: "return-RUN" and "feeder-RUN", which end the wait for workers and for the process that feeds the data.
    """

    folder: Path
    add: Callable[[LiveRun, RunRestored], None]
    handle: Callable[[Event], None]
    recorder: RunRecorder
    say: Callable[[str], None]
    fetch: Callable[[str, CheckpointStore], None] | None = None
    _threads: ThreadGroup = field(default_factory=ThreadGroup)

    def restore(self, runs: tuple[JournaledRun, ...]) -> None:
        """Restore ``runs`` of the journal."""
        if runs:
            fault_point("broker.before_replay")
        for one in runs:
            try:
                self._restore(one, self.folder / one.run)
            except FarflungError as error:
                self.say(f"run {one.run}: its files cannot be used, so the run does not resume: {error}")

    def close(self) -> None:
        """Cancel the timers, and join their threads."""
        self._threads.cancel()
        self._threads.join()

    def _restore(self, journaled: JournaledRun, root: Path) -> None:
        result = RunFolder(root).read_result()  # written before the journal says so
        if result is None and self.fetch is not None:
            self.fetch(journaled.run, RunStore(root).checkpoints)
        if result is None and journaled.outcome:
            raise DataError(f"{root} has no result.json, although the run is over")
        live = _live(journaled, root, None if result is not None else read_bundle(root))
        if result is None and live.job.checkpoint.resume and not live.store.checkpoints.steps():
            raise DataError(f"{live.store.checkpoints.folder} lacks the checkpoint with which the run began")  # not step 0
        if result is not None:
            self._add_finished(live, journaled, result)
        else:
            self._add_unfinished(live, journaled)

    def _add_finished(self, live: LiveRun, journaled: JournaledRun, result: RunResult) -> None:
        kind = journaled.kind or ("TrainingError" if result.status == "failed" else "")
        live.end(result)
        live.install(replace(live.attempt, number=journaled.attempts))
        live.records.log.mark(Result(result=result.to_json(), kind=kind))
        event = RunRestored(
            run=live.run,
            workers=live.job.workers,
            attempts=journaled.attempts,
            outcome=result.status,
            cause=result.cause,
            kind=kind,
            names=live.last_plan.devices if live.last_plan is not None else (),
        )
        self.add(live, event)

    def _add_unfinished(self, live: LiveRun, journaled: JournaledRun) -> None:
        expected = journaled.devices if journaled.attempts else 0
        if expected:  # steps that were committed when the broker died, and are not on record: the workers will report them
            progress = self.recorder.progress(live, live.last_plan, None, live.times.recorded)
            progress.begin(live.times.elapsed)
            live.install(replace(live.attempt, first_step=live.times.recorded, progress=progress))
        needed = counted(expected or live.job.workers or 1, "worker")
        cause = f"{live.times.lost}; " if live.times.lost else ""
        text = f"{cause}waiting for {needed} to resume"
        self.say(f"run {live.run}: {text}")
        live.records.log.mark(Note(text=text))
        event = RunRestored(
            run=live.run,
            workers=live.job.workers,
            recoveries=live.job.most_recoveries,
            attempts=journaled.attempts,
            expected=expected,
            names=live.last_plan.devices if expected and live.last_plan is not None else (),
            helped=live.job.plan.helpers,
            unreliable=unreliable_of(live.job, live.submission.topology),
            exclude=live.job.limits.exclude,
            engines=live.job.limits.engines,
            serves=live.serves,
            stopping=journaled.stopping,
            submitter=journaled.submitter,
        )
        self.add(live, event)
        if expected:
            self._threads.later(_RETURN_SECONDS, f"return-{live.run}", lambda: self.handle(WaitedEnough(run=live.run)))
        if live.job.data.kind == "caller":
            self._threads.later(_FEEDER_SECONDS, f"feeder-{live.run}", lambda: self._check_feeder(live))

    def _check_feeder(self, live: LiveRun) -> None:
        if live.submission.attended or live.result is not None:
            return
        cause = f"{live.submission.submitter}, the process that submitted it and has the data, did not come back"
        self.handle(RunFailed(run=live.run, cause=cause, kind="ConnectionLost"))


def _live(journaled: JournaledRun, root: Path, bundle: Bundle | None) -> LiveRun:
    store = RunStore(root)
    written = _last_change(store.folder.metrics)  # before a torn line is cut off, which changes it
    lines = _whole_lines(store.folder.metrics)
    _whole_lines(store.folder.attempts)
    for events in store.folder.events.glob("*.jsonl"):
        with suppress(DataError):  # a run does not need its trace to continue
            _whole_lines(events)
    live = LiveRun(
        run=journaled.run,
        job=bundle.job if bundle is not None else _job(store.folder),
        store=store,
        records=RunRecords(store, lines=lines),
        submission=Submission(submitter=journaled.submitter, bundle=bundle),
        last_plan=_last_plan(store, journaled.plan) if journaled.attempts else None,
    )
    for after, message in read_history(root, lines):
        live.records.log.mark(message, after)
    times, elapsed = live.times, 0.0
    if live.job.checkpoint.resume and (steps := store.checkpoints.steps()):
        times.restore(steps[0])  # the checkpoint of another run that it resumed
        live.begin_at(steps[0])
    for record in store.folder.records() if lines else ():
        live.records.latest.take(record)
        if isinstance(record, StepRecord):
            times.restore(record.step + 1)
            elapsed = record.elapsed
        elif isinstance(record, RecoveryRecord):
            times.restore(record.step)
    if lines:
        away = max(wall_time() - written, 0.0)
        times.resume(journaled.attempts, elapsed, away, "the broker was killed and was started again")
    return live


def _last_change(path: Path) -> float:
    """Return when ``path`` was written last, in seconds since 1970 (0: there is no such file)."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _last_plan(store: RunStore, sha256: str) -> Plan | None:
    """Return the plan by which the workers retain states, so that states that stay in place need not move.

    The document on disk is another one if the broker died before the journal knew of a newer plan: see ``JournaledRun.plan``.
    """
    try:
        document = store.folder.plan.read_bytes()
        return Plan.from_json(document.decode()) if sha256 in ("", hashlib.sha256(document).hexdigest()) else None
    except (OSError, UnicodeDecodeError, FarflungError):  # it died before the plan was written, or while it was
        return None


def _job(folder: RunFolder) -> JobSpec:
    try:
        return job_from_json(folder.job.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {folder.job}: {error}") from None


def _whole_lines(path: Path) -> int:
    """Return the number of lines of ``path`` (0: it does not exist); cut off the rest of a line that a kill left."""
    try:
        with path.open("r+b") as file:
            count, end, place = 0, 0, 0
            while block := file.read(1 << 20):
                count += block.count(b"\n")
                if b"\n" in block:
                    end = place + block.rindex(b"\n") + 1
                place += len(block)
            file.truncate(end)
            os.fsync(file.fileno())
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise DataError(f"cannot read {path}: {error.strerror}") from None
    return count
