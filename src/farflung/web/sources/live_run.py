"""A run as pages see it: the files of its folder, read again when they change."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

from farflung.cluster import Topology
from farflung.errors import DataError, FarflungError
from farflung.graph import Graph
from farflung.job import JobSpec
from farflung.job import from_json as read_job
from farflung.plan import Plan
from farflung.telemetry import RunFolder, RunResult, StepRecord
from farflung.telemetry.log_file import LogTail
from farflung.telemetry.records import read_record
from farflung.web.sources.run_series import RunSeries

__all__ = ["LiveRun"]

Content = TypeVar("Content")

#: Bytes at the end of the metrics in which the last step is looked for.
_TAIL = 1 << 20


@dataclass(slots=True)
class _File(Generic[Content]):
    """A file and what it says, read again when its time or size changes."""

    path: Path
    parse: Callable[[str], Content]
    content: Content | None = None
    problem: str = ""
    seen: tuple[int, int] | None = None

    def read(self) -> bool:
        """Returns whether the content is new."""
        try:
            found = self.path.stat()
        except OSError:
            return False
        seen = (found.st_mtime_ns, found.st_size)
        if seen == self.seen:
            return False
        self.seen = seen
        try:
            self.content, self.problem = self.parse(self.path.read_text(encoding="utf-8")), ""
        except (OSError, UnicodeDecodeError, FarflungError) as error:
            self.problem = f"{self.path.name}: {error}"
        return True


class LiveRun:
    """One run. ``refresh`` runs on one thread at a time; pages on the event loop only look."""

    def __init__(self, folder: Path, name: str = "") -> None:
        """``name``: what pages call it (default: the folder's name)."""
        self.folder = RunFolder(folder)
        self.name = name or folder.name
        self.series = RunSeries(self.folder.metrics)
        self._job: _File[JobSpec] = _File(self.folder.job, read_job)
        self._plan: _File[Plan] = _File(self.folder.plan, Plan.from_json)
        self._topology: _File[Topology] = _File(self.folder.topology, Topology.from_json)
        self._result: _File[RunResult] = _File(self.folder.result, RunResult.from_json)
        self._final_loss: float | None = None

    def refresh(self) -> bool:
        """Read what is new. Returns whether there is more to read at once.

        Raises:
            DataError: the metrics can't be read.
        """
        self.refresh_summary()
        self._plan.read()
        self._topology.read()
        return self.series.read()

    def refresh_summary(self) -> None:
        """Read job and result if they have changed, and the last loss of a run that is over."""
        self._job.read()
        if self._result.read() and self.result is not None:
            self._final_loss = _last_loss(self.folder)

    @property
    def loss(self) -> float | None:
        """The newest loss, ``None`` before the first step, and while only the summary of a run in progress is read."""
        count = len(self.series)
        return self.series.columns["loss"][count - 1] if count else self._final_loss

    @property
    def job(self) -> JobSpec | None:
        """The job, ``None`` before the broker has written it."""
        return self._job.content

    @property
    def plan(self) -> Plan | None:
        """The plan in force."""
        return self._plan.content

    @property
    def topology(self) -> Topology | None:
        """Devices and links that the plan was made for."""
        return self._topology.content

    @property
    def result(self) -> RunResult | None:
        """How the run ended, ``None`` while it has not."""
        return self._result.content

    @property
    def problems(self) -> list[str]:
        """What can't be read of this run."""
        found = [one.problem for one in (self._job, self._plan, self._topology, self._result) if one.problem]
        return [*found, *([f"metrics.jsonl: {self.series.damaged} damaged lines"] if self.series.damaged else [])]

    def graph(self) -> Graph | None:
        """Read the graph, which can be large. Takes time; call it on a thread."""
        try:
            return Graph.from_json(self.folder.graph.read_text(encoding="utf-8"))
        except (OSError, UnicodeDecodeError, FarflungError):
            return None

    def log(self, lines: int) -> LogTail:
        """The last ``lines`` of the run's log, for one reader."""
        return LogTail(self.folder.root / "run.log", lines)


def _last_loss(folder: RunFolder) -> float | None:
    """Return the loss of the last step, from the end of the metrics."""
    try:
        with folder.metrics.open("rb") as file:
            file.seek(max(0, folder.metrics.stat().st_size - _TAIL))
            lines = file.read(_TAIL).split(b"\n")
    except OSError:
        return None
    for line in reversed(lines):
        with suppress(DataError):
            record = read_record(line.decode("utf-8", "replace"))
            if isinstance(record, StepRecord):
                return record.loss
    return None
