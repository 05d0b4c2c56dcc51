"""``report`` of ``train``: the run's records in a folder, and the experiment trackers that read them there."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Literal, Protocol

from farflung.clock import monotonic
from farflung.errors import FarflungError, InputError
from farflung.foreign_text import shown
from farflung.job import JobSpec, to_json
from farflung.job.spec import ReportSpec
from farflung.plan.model import Plan
from farflung.telemetry.folder import RunFolder
from farflung.telemetry.records import Record, RunResult
from farflung.thread_group import ThreadGroup
from farflung.tracking import RunFollower, Tracker, TrackerProcesses, check_installed, check_names
from farflung.tracking.secrets import one_line

__all__ = ["ReportArgument", "Reports", "Targets", "targets_of"]

ReportArgument = str | ReportSpec | Tracker | Sequence[str | ReportSpec | Tracker] | None

_LOG = logging.getLogger("farflung")
#: Where runs without a folder have their records, as TensorBoard's users expect.
_FOLDER = Path("runs")
#: Seconds that the end of a training waits for trackers.
_END_SECONDS = 30.0
#: Seconds until a tracker of the caller that failed is called again.
_PAUSE = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Targets:
    """To what a training is reported: trackers by name, with settings, and trackers of the caller."""

    spec: ReportSpec = field(default_factory=ReportSpec)
    objects: tuple[Tracker, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.spec.to or self.objects)


def targets_of(report: ReportArgument) -> Targets:
    """Read the argument ``report``.

    Raises:
        InputError: it is something else, a tracker is unknown, or its library is not installed.
    """
    found = Targets()
    for item in () if report is None else report if isinstance(report, (list, tuple)) else (report,):
        if isinstance(item, str):
            found = replace(found, spec=found.spec.model_copy(update={"to": (*found.spec.to, item)}))
        elif isinstance(item, ReportSpec):
            found = replace(found, spec=item.model_copy(update={"to": (*found.spec.to, *item.to)}))
        elif isinstance(item, Tracker) and not isinstance(item, type):
            found = replace(found, objects=(*found.objects, item))
        else:
            raise InputError(
                f"report={shown(item)}: pass the name of a tracker, a ReportSpec, or an object with the methods begin, log, "
                "text, flush and end (farflung.integrations.trackers.Tracker)"
            )
    check_names(found.spec.to, "report")
    for name in found.spec.to:
        check_installed(name, "here")
    return found


class StepCount(Protocol):
    """Knows how many steps were made."""

    steps: int


class Reports:
    """The trackers of one training. ``take`` and ``begin`` never wait for a tracker, and raise nothing.

    Threads: "tracker-*" for each tracker of the caller; trackers by name have processes.
    """

    def __init__(self, targets: Targets, run: str, folder: Path | None) -> None:
        """``folder``: where ``train`` writes the run's files itself (None: they are written here, for the trackers)."""
        self._targets = targets
        self._folder = RunFolder(folder or _FOLDER / run)
        self._writes = folder is None
        self._begun, self._started = False, monotonic()
        self._ending = threading.Event()
        self._threads = ThreadGroup()
        self._processes = TrackerProcesses(self._warn)

    def begin(self, job: JobSpec, plan: Plan) -> None:
        """Training begins, or continues by another plan."""
        if not self._targets:
            return
        try:
            if self._writes:
                self._folder.root.mkdir(parents=True, exist_ok=True)
                self._folder.job.write_text(to_json(job.model_copy(update={"report": self._targets.spec})), encoding="utf-8")
                self._folder.plan.write_text(plan.to_json(), encoding="utf-8")
        except OSError as error:
            self._give_up(f"cannot write {self._folder.root}: {error.strerror}")
            return
        if self._begun:
            return
        self._begun = True
        self._processes.begin(self._folder.root.name, self._folder.root, self._targets.spec.to)
        names: list[str] = []
        for tracker in self._targets.objects:
            kind = type(tracker).__name__
            names.append(kind if kind not in names else f"{kind}-{len(names) + 1}")
            self._threads.spawn(f"tracker-{names[-1]}", self._serve, names[-1], tracker)

    def take(self, record: Record) -> None:
        """Take a record of the run, in the order of the run."""
        if not (self._begun and self._writes):
            return
        try:
            self._folder.append(record)
        except FarflungError as error:
            self._give_up(str(error))

    def end(
        self, status: Literal["finished", "stopped", "failed"], steps: int, cause: str = "", seconds: float = _END_SECONDS
    ) -> None:
        """The run is over after ``steps`` steps, because of ``cause``. Wait at most ``seconds`` for the trackers."""
        if not self._begun:
            return
        if self._writes:
            result = RunResult(status=status, steps=steps, seconds=monotonic() - self._started, cause=cause)
            try:
                self._folder.result.write_text(result.to_json(), encoding="utf-8")
            except OSError as error:
                self._give_up(f"cannot write {self._folder.result}: {error.strerror}")
        self._ending.set()
        for name in self._processes.wait(seconds):
            self._missing(name)
        self._threads.join(seconds)
        for thread in self._threads.running:
            self._missing(thread.name.removeprefix("tracker-"))
        self._begun = False

    @contextmanager
    def of(self, callbacks: StepCount) -> Iterator[None]:
        """The block trains. If it raises, the run has failed after the steps that ``callbacks`` have seen."""
        try:
            yield
        except BaseException as error:
            seconds = 0.0 if isinstance(error, KeyboardInterrupt) else _END_SECONDS
            self.end("failed", callbacks.steps, one_line(error), seconds)
            raise
        finally:
            self._ending.set()
            self._processes.close()

    def _serve(self, name: str, tracker: Tracker) -> None:
        """Report to a tracker of the caller, again after a failure."""
        warned = False
        while True:
            last = self._ending.is_set()
            try:
                RunFollower(self._folder.root, name, lambda spec: tracker, spec=self._targets.spec).follow(self._ending.wait)
            except Exception as error:  # noqa: BLE001 - the caller's tracker may raise anything, and training goes on
                if not warned or last:
                    warned = True
                    self._warn("", f"warning: {name} gets no report: {one_line(error)}; training is not affected")
                if last:
                    return
                self._ending.wait(_PAUSE)
            else:
                return

    def _missing(self, name: str) -> None:
        known = name in self._targets.spec.to
        later = f"; farflung report --to {name} {self._folder.root} sends the rest" if known else ""
        self._warn("", f"warning: {name} does not have the whole run{later}")

    def _give_up(self, cause: str) -> None:
        self._warn("", f"warning: the run is not reported any more: {cause}; training is not affected")
        self._writes, self._begun = False, False

    @staticmethod
    def _warn(run: str, text: str) -> None:
        del run
        with suppress(Exception):  # a handler of the caller: a log must not end a training
            _LOG.warning("%s", text)
