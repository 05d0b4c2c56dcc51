"""A job under faults, against the same job left in peace: what ``farflung chaos`` runs."""

from __future__ import annotations

import queue
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from farflung.chaos.faults import KINDS, ChaosReport, Fault, Recovery, draw_faults, judge
from farflung.chaos.kills import BROKER, Say, differing_tensors, may_die, play
from farflung.chaos.local_cluster import LocalCluster
from farflung.chaos.saboteur import ORDERS
from farflung.chaos.wild_cluster import WildCluster
from farflung.client.connection import Client
from farflung.clock import monotonic
from farflung.errors import InputError, TrainingError
from farflung.messages.submission import Bundle
from farflung.messages.watching import Planned, RecordLine
from farflung.telemetry import FAULT_POINTS, RecoveryRecord, RunFolder, StepRecord, read_record
from farflung.telemetry.records import Record
from farflung.units import Seconds, counted

__all__ = ["Trial", "TrialSettings", "plan_faults", "run_trial"]

#: Seconds after which what came of a fault can be seen: reports were under way when it struck.
_UNDER_WAY = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class TrialSettings:
    """``faults`` of ``kinds`` on ``workers`` workers and (``broker``) their broker, drawn from ``seed``.

    ``moment``: all happen at this point of the victim's work. ``hold``: seconds that stops, cuts and full disks last;
    ``jump``: by how many seconds clocks are set forward.
    """

    workers: int = 3
    faults: int = 6
    kinds: tuple[str, ...] = ("kill",)
    seed: int = 0
    moment: str = ""
    broker: bool = True
    hold: float = 8.0
    jump: float = 3600.0

    @property
    def names(self) -> list[str]:
        """The workers."""
        return [f"worker-{index}" for index in range(self.workers)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Trial:
    """What came of it. ``missed``: faults whose moment never came. ``seconds``: undisturbed, and under faults."""

    settings: TrialSettings
    report: ChaosReport
    missed: tuple[Fault, ...]
    differing: tuple[str, ...]
    seconds: tuple[float, float]

    @property
    def kept(self) -> float:
        """The share of the undisturbed throughput that was kept."""
        return self.seconds[0] / self.seconds[1]

    def document(self) -> dict[str, Any]:
        """As one JSON object."""
        told = self.settings
        return {
            "settings": {name: getattr(told, name) for name in type(told).__dataclass_fields__},
            **self.report.document(),
            "faults_missed": len(self.missed),
            "tensors_differing": list(self.differing),
            "seconds_undisturbed": self.seconds[0],
            "seconds_under_faults": self.seconds[1],
            "throughput_kept": self.kept,
        }

    def text(self) -> str:
        """For people."""
        found = self.document()
        lines = [f"{'fault':12} {'times':>5} {'p50 s':>8} {'p95 s':>8} {'max s':>8}"]
        for name, row in found["recovery_seconds"].items():
            times = " ".join(f"{'-' if row[key] is None else format(row[key], '.2f'):>8}" for key in ("p50", "p95", "max"))
            lines.append(f"{name:12} {row['count']:5} {times}")
        same = "bit-equal to the undisturbed run" if not self.differing else f"{len(self.differing)} tensors differ"
        lines.append(
            f"samples lost {self.report.lost}, counted twice {self.report.repeated}; {self.report.replayed} steps made again"
        )
        lines.append(f"weights and optimizer: {same}")
        lines.append(
            f"throughput kept {self.kept:.0%} ({Seconds(self.seconds[0])} undisturbed, {Seconds(self.seconds[1])} under faults)"
        )
        if self.missed:
            lines.append(f"{len(self.missed)} faults did not happen: their moment never came")
        return "\n".join(lines)


def plan_faults(settings: TrialSettings, steps: int) -> tuple[Fault, ...]:
    """The faults of a trial over ``steps`` steps.

    Raises:
        InputError: a kind or the moment is unknown, or the run is too short.
    """
    unknown = [kind for kind in settings.kinds if kind not in KINDS]
    if unknown or not settings.kinds:
        raise InputError(f"unknown kind of fault {', '.join(unknown)!r}: known are {', '.join(KINDS)}")
    if settings.moment and settings.moment not in FAULT_POINTS:
        raise InputError(f"unknown moment {settings.moment!r}: known are {', '.join(FAULT_POINTS)}")
    if settings.moment and not set(settings.kinds) <= set(ORDERS):
        raise InputError(f"at a named moment only {', '.join(ORDERS)} can happen, not {', '.join(settings.kinds)}")
    if settings.faults * 2 > steps:
        raise InputError(f"{settings.faults} faults need a job of at least {settings.faults * 2} steps, this one has {steps}")
    lasts = {"stop": settings.hold, "partition": settings.hold, "one_way": settings.hold, "full_disk": settings.hold}
    kinds = [(kind, {**lasts, "clock_jump": settings.jump}.get(kind, 0.0)) for kind in settings.kinds]
    at_broker = settings.moment.startswith(("broker.", "checkpoint.before_manifest", "checkpoint.after_manifest", "disk."))
    workers = [] if at_broker else settings.names
    victims = [*workers, *([BROKER] if at_broker or (settings.broker and not settings.moment) else [])]
    faults = draw_faults(settings.seed, settings.faults, steps, victims, kinds)
    return tuple(replace(fault, moment=settings.moment) for fault in faults)


def run_trial(bundle: Bundle, base: Path, settings: TrialSettings, say: Say) -> Trial:
    """Run ``bundle``, whose data lie in ``base``, in peace and under faults.

    Raises:
        TrainingError: a run failed, or was over before all faults had happened.
        InputError: as ``plan_faults``.
    """
    faults = plan_faults(settings, bundle.job.steps)
    with tempfile.TemporaryDirectory(prefix="farflung-chaos-") as place:
        folder = Path(place)
        say(f"{counted(settings.workers, 'worker')}, undisturbed")
        with LocalCluster(folder / "calm", settings.names, data=base) as calm:
            truth, undisturbed, _ = play(calm, bundle, (), say)
        say(f"{counted(settings.workers, 'worker')}, {counted(len(faults), 'fault')}")
        with WildCluster(folder / "wild", settings.names, data=base) as wild:
            watched = _Watched(wild, faults, say)
            found, seconds = watched.play(bundle)
        samples = sum(bundle.job.micro_batch_sizes)
        report = judge(list(RunFolder(found).records()), watched.recoveries, steps=bundle.job.steps, samples=samples)
        differing = tuple(differing_tensors(truth, found))
    return Trial(
        settings=settings, report=report, missed=tuple(watched.missed), differing=differing, seconds=(undisturbed, seconds)
    )


class _Watched:
    """A run that is followed, and struck."""

    def __init__(self, cluster: WildCluster, faults: Sequence[Fault], say: Say) -> None:
        self._cluster, self._left, self._say = cluster, list(faults), say
        self._over: queue.SimpleQueue[float | None] = queue.SimpleQueue()
        self.recoveries: list[Recovery] = []
        self.missed: list[Fault] = []
        self._devices: list[str] = []
        #: The fault under way, when it struck, and whether a new plan was made since.
        self._fault: Fault | None = None
        self._struck: float | None = None
        self._replanned = False
        #: When the last step was on record, and the longest time since the fault without one.
        self._last = self._stood = 0.0

    def play(self, bundle: Bundle) -> tuple[Path, float]:
        """The run's folder, and the seconds that it took."""
        client = self._cluster.client()
        client.patience = Seconds(120.0)
        try:
            root = Path(client.submit(bundle)["folder"])
            begin = monotonic()
            for message in client.watch(bundle.run):
                match message:
                    case Planned(addresses=addresses):
                        self._devices = list(addresses)
                    case RecordLine(line=line):
                        self._take(read_record(line), monotonic(), client)
            seconds = monotonic() - begin
        finally:
            client.close()
        result = RunFolder(root).read_result()
        if result is None or result.status != "finished":
            raise TrainingError(f"the run under faults failed: {'it left no result' if result is None else result.cause}")
        if self._fault is not None:
            if self._struck is None:
                self._struck = self._over.get(timeout=float(client.patience))
            self._ended(self._fault)  # whatever it did, the run went on to its end
        if self._left:
            happened = len(self.recoveries) + len(self.missed)
            raise TrainingError(
                f"the run was over after {happened} of {happened + len(self._left)} faults: give the job more steps"
            )
        return root, seconds

    def _take(self, record: Record | None, now: float, client: Client) -> None:
        if isinstance(record, RecoveryRecord):
            self._replanned = True
            return
        if not isinstance(record, StepRecord):
            return
        fault = self._fault
        if fault is not None:
            self._look(fault, now)
        ready = self._fault is None and bool(self._left) and record.step >= self._left[0].after_step
        if ready and may_die(self._left[0].victim, self._cluster, client):
            fault = self._left.pop(0)
            if fault.victim not in (*self._devices, BROKER):  # one without a part in the plan would not be missed
                fault = replace(fault, victim=self._devices[fault.after_step % len(self._devices)])
            self._fault = fault
            self._struck, self._replanned, self._last, self._stood = None, False, now, 0.0
            self._cluster.strike(fault, self._over.put)

    def _look(self, fault: Fault, now: float) -> None:
        """A step is on record while ``fault`` is under way: does training go on, and is all well again?"""
        if self._struck is None:
            try:
                self._struck = self._over.get_nowait()
            except queue.Empty:
                self._pause(now)
                return
            if self._struck is None:
                self._ended(fault)
                return
        self._pause(now)
        if now < self._struck + _UNDER_WAY or (fault.kind == "kill" and not self._replanned):
            return
        self._ended(fault)

    def _ended(self, fault: Fault) -> None:
        self._fault = None
        if self._struck is None:
            self.missed.append(fault)
            self._say(f"{fault.kind} of {fault.victim}: its moment ({fault.moment}) did not come")
        else:
            self.recoveries.append(Recovery(fault=fault, seconds=self._stood))
            self._say(f"{fault.kind} of {fault.victim} after step {fault.after_step}: {self._stood:.2f} s")

    def _pause(self, now: float) -> None:
        self._stood, self._last = max(self._stood, now - self._last), now
