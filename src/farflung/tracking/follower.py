"""Reports a run to a tracker from the run's folder, while the run trains or afterwards.

The folder is the queue: whatever a tracker does, the run only writes its records there, as always. What is left unreported waits
on disk, with a cursor that says from where.
"""

from __future__ import annotations

import math
import os
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

from farflung.errors import DataError
from farflung.job import JobSpec, from_json
from farflung.job.spec import ReportSpec
from farflung.telemetry.folder import RunFolder
from farflung.telemetry.records import EvaluationRecord, Record, StepRecord, read_record
from farflung.tracking.base import MakeTracker, TrackedRun, Tracker
from farflung.tracking.cursor import Cursor, claimed, tracker_folder
from farflung.tracking.run_events import RunEvent, read_events
from farflung.tracking.values import evaluation_values, recovery_values, settings_of, step_values

__all__ = ["RunFollower", "read_job", "run_name"]

#: Seconds between two looks at the metrics file.
_POLL = 0.5
#: Bytes of records that are reported before the tracker is flushed.
_BATCH = 1 << 18


def _no_guard() -> AbstractContextManager[None]:
    return nullcontext()


def read_job(folder: Path) -> JobSpec:
    """Return the job of the run in ``folder``.

    Raises:
        DataError: the folder has no job.
    """
    path = RunFolder(folder).job
    try:
        return from_json(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}; is {folder} the folder of a run?") from None


def run_name(job: JobSpec, folder: Path, spec: ReportSpec) -> str:
    """Return the name of a run for people: of the job's ``[report]``, else of the job and of the run."""
    return spec.name or f"{job.name}-{folder.name.removeprefix('run-')}"


class RunFollower:
    """Reports the run in ``folder`` to the tracker ``name``. One thread uses it."""

    def __init__(
        self,
        folder: Path,
        name: str,
        make: MakeTracker,
        *,
        spec: ReportSpec | None = None,
        guard: Callable[[], AbstractContextManager[None]] = _no_guard,
    ) -> None:
        """``spec``: the settings (default: those of the run's job). ``guard`` is entered around each call of the tracker.

        Raises:
            DataError: the folder has no job.
        """
        self._folder, self._name, self._make, self._guard = RunFolder(folder), name, make, guard
        self._job = read_job(folder)
        self._spec = spec or self._job.report
        self.cursor = Cursor.load(folder, name)
        #: Of a run that is read again: the step of the newest recovery that the tracker has.
        self._recovered = -1

    @property
    def complete(self) -> bool:
        """Whether the whole run is reported, up to its end. A run that was resumed in its folder has more to report."""
        metrics, cursor = self._folder.metrics, self.cursor
        try:
            found = metrics.stat()
        except OSError:  # it ended before its first step
            return cursor.complete and self._folder.result.is_file()
        whole = (found.st_ino, found.st_size) == (cursor.file, cursor.offset)
        return cursor.complete and whole and self._folder.result.is_file()

    def follow(self, wait: Callable[[float], bool]) -> bool:
        """Report until the run is over, or until ``wait`` says so. Return whether the whole run is reported.

        ``wait`` waits for at most so many seconds, and returns whether to end after what is there already.

        Raises:
            TrackerBusy: another process reports the run to this tracker.
            Exception: whatever the tracker raises. What it has stored is not reported again.
        """
        if self.complete:
            return True
        with claimed(self._folder.root, self._name):
            self.cursor = Cursor.load(self._folder.root, self._name)  # another process may have been there
            with self._guard():
                tracker = self._make(self._spec)
                stored = tracker.begin(self._run())
            if stored is not None:
                self._believe(stored)
            self._save()
            ends = settled = False
            while True:
                over = self._folder.result.is_file()  # before the read: no record follows it
                more = self._report(tracker, over=over)
                if more:
                    continue
                if ends or (over and (settled or not self._watched)):
                    break
                settled, ends = over, wait(_POLL)
            if not over:
                return False
            self._end(tracker)
            return True

    @property
    def _watched(self) -> bool:
        """Whether the run has events. The broker writes the last ones at about the time of the result."""
        return (self._folder.root / "watch.log").is_file()

    def _run(self) -> TrackedRun:
        spec, root = self._spec, self._folder.root
        self.cursor.run = self.cursor.run or root.name
        return TrackedRun(
            id=self.cursor.run,
            name=run_name(self._job, root, spec),
            folder=tracker_folder(root, self._name),
            project=spec.project,
            group=spec.group,
            tags=spec.tags,
            offline=spec.offline,
            settings=settings_of(self._job, self._folder),
        )

    def _believe(self, stored: Mapping[str, int]) -> None:
        """Continue after what the tracker has ``stored``. It may be less than what it was given: then the run is read again."""
        cursor, train, evaluation = self.cursor, stored.get("train/loss", 0), stored.get("eval/loss", -1)
        if not cursor.offset or train < cursor.train or evaluation < cursor.evaluation:
            cursor.offset, cursor.furthest, cursor.attempt, cursor.records = 0, 0, 1, 0
            cursor.events = cursor.events if stored else 0
            self._recovered = stored.get("events/recoveries", -1)
        cursor.train, cursor.evaluation = train, evaluation

    def _report(self, tracker: Tracker, *, over: bool) -> bool:
        """Report some more records, and the events between them. Return whether there were any. ``over``: no record follows."""
        lines = self._read()
        events = deque(read_events(self._folder.root, self.cursor.events))
        if not lines and not (events and (over or events[0].records <= self.cursor.records)):
            return False
        with self._guard():
            for line in lines:
                self._tell(tracker, events, self.cursor.records)
                self.cursor.records += 1
                if (record := read_record(line.decode("utf-8", "replace"))) is not None:
                    self._take(tracker, record)
            self._tell(tracker, events, math.inf if over and not lines else self.cursor.records)
            tracker.flush()
        self.cursor.offset += sum(len(line) for line in lines)
        self._save()
        return True

    def _tell(self, tracker: Tracker, events: deque[RunEvent], records: float) -> None:
        """Report the first of ``events``, those after at most ``records`` records."""
        while events and events[0].records <= records:
            event = events.popleft()
            tracker.text(self.cursor.furthest, event.name, event.text)
            self.cursor.events = event.end

    def _read(self) -> list[bytes]:
        """Return the next whole lines of the metrics file."""
        try:
            with self._folder.metrics.open("rb") as file:
                number = os.fstat(file.fileno()).st_ino
                if number != self.cursor.file:  # a resumed run writes its first records anew
                    self.cursor.file, self.cursor.offset, self.cursor.furthest, self.cursor.records = number, 0, 0, 0
                file.seek(self.cursor.offset)
                lines = file.readlines(_BATCH)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise DataError(f"cannot read {self._folder.metrics}: {error.strerror}") from None
        return lines if not lines or lines[-1].endswith(b"\n") else lines[:-1]

    def _take(self, tracker: Tracker, record: Record) -> None:
        """Report ``record`` unless it was made again after a loss."""
        cursor, every = self.cursor, self._spec.every
        if isinstance(record, StepRecord):
            step = record.step + 1
            cursor.furthest = max(cursor.furthest, step)
            if step > cursor.train:
                cursor.train = step
                if step % every == 0 or step in (1, self._job.steps):
                    tracker.log(step, step_values(record))
        elif isinstance(record, EvaluationRecord):
            if record.step > cursor.evaluation:
                cursor.evaluation = record.step
                tracker.log(record.step, evaluation_values(record))
        elif record.attempt > cursor.attempt:
            cursor.attempt, step = record.attempt, cursor.furthest
            if step > self._recovered:
                tracker.log(step, recovery_values(record))
                tracker.text(step, "events/recovery", f"{record.cause}; {record}" if record.cause else str(record))

    def _end(self, tracker: Tracker) -> None:
        result = self._folder.read_result()
        assert result is not None  # its file is there
        with self._guard():
            if result.sample:
                tracker.text(result.steps, "samples/generated", result.sample)
            if result.cause:
                tracker.text(result.steps, "events/end", result.cause)
            tracker.flush()
            tracker.end(result.status)
        self.cursor.complete = True
        self._save()

    def _save(self) -> None:
        self.cursor.trouble, self.cursor.refused = "", False
        self.cursor.save(self._folder.root, self._name)
