"""Runs of a broker's earlier life, from its journal and their folders: what was over is shown, what was not goes on."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from farflung.broker.helper_assignment import unreliable_of
from farflung.broker.live_run import LiveRun, older_records
from farflung.broker.records.journal import Journal, KeptRun
from farflung.broker.records.run_log import RunLog
from farflung.broker.records.run_store import RunStore
from farflung.broker.run_manager import Runs
from farflung.checkpoint.store import write_file
from farflung.errors import ConnectionLost, DataError, FarflungError
from farflung.job import JobSpec
from farflung.job import from_json as job_from_json
from farflung.messages.submission import Bundle
from farflung.plan import Plan
from farflung.protocol.events import RunRestored, WaitedEnough
from farflung.telemetry import RecoveryRecord, RunFolder, RunResult, StepRecord
from farflung.telemetry.faults import fault_point
from farflung.units import counted
from farflung.wire.frames import Frame, decode_frame, encode_frame

__all__ = ["keep_bundle", "read_bundle", "restore"]

#: Seconds for the workers of a run to come back, before it goes on with those that are there.
_RETURN_SECONDS = 30.0
#: Seconds for the process that has the data to come back.
_FEEDER_SECONDS = 120.0
_BUNDLE = "bundle.frame"
_OUTCOMES = {"finished": "done", "stopped": "stopped", "failed": "failed"}


def keep_bundle(root: Path, bundle: Bundle) -> None:
    """Write the whole job with its graphs, from which a run can begin again."""
    write_file(root / _BUNDLE, [bytes(piece) for piece in encode_frame(bundle.to_frame("submit"))])


def restore(journal: Journal, folder: Path, runs: Runs, say: Callable[[str], None]) -> None:
    """Give ``runs`` what the ``journal`` and the runs' folders below ``folder`` say; before anybody is served."""
    if journal.runs:
        fault_point("broker.before_replay")
    for kept in journal.runs:
        root = folder / kept.run
        try:
            _restore(kept, root, runs, say)
        except FarflungError as error:
            say(f"run {kept.run}: its files cannot be used, so the run does not resume: {error}")


def _restore(kept: KeptRun, root: Path, runs: Runs, say: Callable[[str], None]) -> None:
    result = RunFolder(root).read_result()  # written before the journal says so
    if result is None and kept.outcome:
        raise DataError(f"{root} has no result.json, although the run is over")
    bundle = None if result is not None else read_bundle(root)
    live = _live(kept, root, bundle)
    if result is not None:
        live.result, live.attempt = result, kept.attempts
        live.log.mark(Frame("result", {"result": result.to_json(), "kind": _kind(kept, result)}))
        over = RunRestored(
            run=kept.run,
            workers=live.job.workers,
            attempts=kept.attempts,
            outcome=_OUTCOMES[result.status],
            cause=result.cause,
            kind=_kind(kept, result),
            named=live.last_plan.devices if live.last_plan is not None else (),
        )
        runs.restore(live, over)
        return
    hoped = kept.devices if kept.attempts else 0
    if hoped:
        runs.take_up(live, hoped)
    needed = counted(hoped or live.job.workers or 1, "worker")
    cause = f"{live.lost}; " if live.lost else ""
    say(f"run {kept.run}: {cause}waiting for {needed} to resume from the state of the workers, or from its newest checkpoint")
    event = RunRestored(
        run=kept.run,
        workers=live.job.workers,
        recoveries=live.job.most_recoveries,
        attempts=kept.attempts,
        hoped=hoped,
        named=live.last_plan.devices if hoped and live.last_plan is not None else (),
        helped=live.job.plan.helpers,
        unreliable=unreliable_of(live.job, None if bundle is None else bundle.topology),
        stopping=kept.stopping,
    )
    runs.restore(live, event)
    _later(_RETURN_SECONDS, lambda: runs.handle(WaitedEnough(run=kept.run)))
    if live.job.data.kind == "caller":
        _later(_FEEDER_SECONDS, lambda: _miss_feeder(runs, live))


def _last_plan(store: RunStore) -> Plan | None:
    """The newest plan that was written down: who computed by it holds states, and what it places need not move."""
    try:
        return Plan.from_json(store.folder.plan.read_text(encoding="utf-8"))
    except (OSError, FarflungError):  # it died before, or while it was written
        return None


def _kind(kept: KeptRun, result: RunResult) -> str:
    return kept.kind or ("TrainingError" if result.status == "failed" else "")


def read_bundle(root: Path) -> Bundle:
    """What ``keep_bundle`` wrote.

    Raises:
        DataError: it is not there.
    """
    try:
        data = (root / _BUNDLE).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {root / _BUNDLE}: {error.strerror}") from None
    return Bundle.from_frame(decode_frame(data))


def _live(kept: KeptRun, root: Path, bundle: Bundle | None) -> LiveRun:
    store = RunStore(root)
    job = bundle.job if bundle is not None else _job(store.folder)
    lines = _whole_lines(store.folder.metrics)
    for events in store.folder.events.glob("*.jsonl"):
        with suppress(DataError):  # a trace never keeps a run from going on
            _whole_lines(events)
    live = LiveRun(
        run=kept.run,
        job=job,
        store=store,
        log=RunLog(older_records(store), records=lines),
        submitter=kept.submitter,
        bundle=bundle,
        last_plan=_last_plan(store) if kept.attempts else None,
    )
    elapsed = 0.0
    if live.job.checkpoint.resume and (steps := store.checkpoints.steps()):
        live.first_step = live.recorded = live.furthest = steps[0]  # the checkpoint of another run that it goes on from
    for record in store.folder.records() if lines else ():
        live.latest.take(record)
        if isinstance(record, StepRecord):
            live.recorded = record.step + 1
            live.furthest = max(live.furthest, live.recorded)
            elapsed = record.elapsed
        elif isinstance(record, RecoveryRecord):
            live.recorded = record.step
    if lines:
        away = max(time.time() - store.folder.metrics.stat().st_mtime, 0.0)
        live.go_on(kept.attempts, elapsed, away, "the broker was killed and was started again")
    return live


def _job(folder: RunFolder) -> JobSpec:
    try:
        return job_from_json(folder.job.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {folder.job}: {error}") from None


def _whole_lines(path: Path) -> int:
    """How many lines ``path`` has (0: it is not there); what a kill left of another one is cut off."""
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


def _miss_feeder(runs: Runs, live: LiveRun) -> None:
    if live.attended or live.result is not None:
        return
    runs.fail(live.run, ConnectionLost(f"{live.submitter}, the process that submitted it and has the data, did not come back"))


def _later(seconds: float, act: Callable[[], None]) -> None:
    timer = threading.Timer(seconds, act)
    timer.daemon = True
    timer.start()
