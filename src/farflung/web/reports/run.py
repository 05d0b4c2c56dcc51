"""A finished, stopped or still growing run, read from its folder (``telemetry.folder`` says which file holds what)."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TypeVar

from farflung.cluster import Topology
from farflung.errors import DataError, FarflungError
from farflung.graph import Graph
from farflung.graph.cut import cut
from farflung.job import JobSpec
from farflung.job import from_json as read_job
from farflung.plan import Plan
from farflung.plan.traffic import tied_exchanges
from farflung.telemetry import EvaluationRecord, RecoveryRecord, RelayedRecord, RunFolder, RunResult, StepRecord

__all__ = ["Run", "load_run"]

T = TypeVar("T")

#: Stands for the steps of a plan under which no step was finished.
_NO_STEP = StepRecord(step=0, loss=0.0, seconds=0.0, elapsed=0.0, samples=0)


@dataclass(frozen=True, kw_only=True)
class Run:
    """What the dashboard knows of one run.

    ``steps`` has the records that count, in the order of writing: of a step that was made again after a loss, the last.
    """

    label: str
    job: JobSpec
    plan: Plan
    graph: Graph | None = None
    topology: Topology | None = None
    steps: tuple[StepRecord, ...] = ()
    evaluations: tuple[EvaluationRecord, ...] = ()
    recoveries: tuple[RecoveryRecord, ...] = ()
    result: RunResult | None = None
    relayed: tuple[RelayedRecord, ...] = ()

    @cached_property
    def clock(self) -> tuple[float, ...]:
        """Seconds of training at the end of each record; goes on where a resumed run began to count anew."""
        offset, previous, times = 0.0, 0.0, []
        for record in self.steps:
            if record.elapsed < previous:
                offset += previous
            previous = record.elapsed
            times.append(offset + record.elapsed)
        return tuple(times)

    @cached_property
    def traffic(self) -> tuple[int, ...]:
        """Bytes on all links from the beginning to the end of each record."""
        total, totals = 0, []
        for record in self.steps:
            total += record.total_bytes
            totals.append(total)
        return tuple(totals)

    @property
    def loss_window(self) -> int:
        """Of how many losses ``smooth_losses`` are means."""
        return max(1, min(10, self.job.steps // 4))

    @cached_property
    def smooth_losses(self) -> tuple[float, ...]:
        """At each record the mean of the last losses: a quarter of the job's steps, at most 10; what is no number is left out.

        From 40 steps on the window is the same for all runs: a shorter one finds lower losses by luck.
        """
        losses, width = [record.loss for record in self.steps], self.loss_window
        windows = ([x for x in losses[max(0, i + 1 - width) : i + 1] if math.isfinite(x)] for i in range(len(losses)))
        return tuple(statistics.fmean(window) if window else math.nan for window in windows)

    @cached_property
    def present_steps(self) -> tuple[StepRecord, ...]:
        """The steps under ``plan``: a recovery makes a new plan, and stage numbers of earlier steps belong to an older one."""
        since = self.recoveries[-1].step if self.recoveries else 0
        return tuple(record for record in self.steps if record.step >= since)

    @cached_property
    def links(self) -> tuple[tuple[int, int], ...]:
        """All links (source stage, target stage) of ``plan`` that carried bytes, in ascending order."""
        return tuple(sorted({link for record in self.present_steps for link in record.link_bytes}))

    @cached_property
    def median_seconds(self) -> float | None:
        """Median step time (None: no step was finished)."""
        return statistics.median(record.seconds for record in self.steps) if self.steps else None

    @cached_property
    def predicted_seconds(self) -> float | None:
        """The latest prediction of the step time."""
        return next((r.predicted_seconds for r in reversed(self.steps) if r.predicted_seconds is not None), None)

    @cached_property
    def predicted_ratio(self) -> float | None:
        """Median over the steps of measured time by the prediction of the step's own plan (None: nothing was predicted)."""
        ratios = [r.seconds / r.predicted_seconds for r in self.steps if r.predicted_seconds]
        return statistics.median(ratios) if ratios else None

    @cached_property
    def plan_medians(self) -> tuple[float, ...]:
        """For each record the median step time of the plan that it ran under: each recovery makes a new plan."""
        plans = [max((i for i, one in enumerate(self.recoveries, 1) if one.step <= r.step), default=0) for r in self.steps]
        seconds: dict[int, list[float]] = {}
        for plan, record in zip(plans, self.steps, strict=True):
            seconds.setdefault(plan, []).append(record.seconds)
        medians = {plan: statistics.median(values) for plan, values in seconds.items()}
        return tuple(medians[plan] for plan in plans)

    @property
    def resumed_after(self) -> int:
        """How many steps other runs took before this one resumed from their checkpoint (0: it began at the start)."""
        return self.steps[0].step if self.steps else 0

    @property
    def seconds(self) -> float:
        """Seconds of training."""
        return self.clock[-1] if self.clock else 0.0

    @property
    def total_bytes(self) -> int:
        """Bytes on all links."""
        return self.traffic[-1] if self.traffic else 0

    @property
    def dense_bytes(self) -> int:
        """What all links would have carried without codecs."""
        return sum(sum(record.dense_bytes.values()) for record in self.steps)

    def link_mean(self, link: tuple[int, int], *, dense: bool = False) -> float:
        """Mean bytes per step on ``link`` under ``plan``: replicas may exchange in some steps only."""
        return statistics.fmean(
            (r.dense_bytes if dense else r.link_bytes).get(link, 0) for r in self.present_steps or (_NO_STEP,)
        )

    @cached_property
    def tied_links(self) -> frozenset[tuple[int, int]]:
        """The links that carry gradients of tied parameters (none are known without a graph)."""
        if self.graph is None or not self.graph.tied or len(self.plan.stages) < 2:
            return frozenset()
        return frozenset((source, target) for source, target, _ in tied_exchanges(self.graph, cut(self.graph, self.plan.bounds)))

    @cached_property
    def slowest_link(self) -> tuple[int, int] | None:
        """The link whose bytes of a mean step take longest by the topology (without one: the one with most bytes)."""
        if not self.links:
            return None
        return max(self.links, key=lambda link: (self._link_seconds(link), self.link_mean(link)))

    def _link_seconds(self, link: tuple[int, int]) -> float:
        ends = [self.device(stage) for stage in link]
        if self.topology is None or not set(ends) <= set(self.topology.names):
            return 0.0
        return self.topology.seconds(ends[0], ends[1], self.link_mean(link))

    def device(self, stage: int) -> str:
        """The device of ``stage`` (empty: the plan has no such stage)."""
        return self.plan.stages[stage].device if stage < len(self.plan.stages) else ""

    def first_below(self, loss: float) -> int | None:
        """Index of the first record whose smoothed loss is at most ``loss``."""
        return next((i for i, value in enumerate(self.smooth_losses) if value <= loss), None)


def load_run(folder: str | Path, label: str | None = None) -> Run:
    """Read the run in ``folder``; job.json, plan.json and metrics.jsonl must be there, the other files may.

    Raises:
        DataError: a file is missing, unreadable or damaged; the text names it.
    """
    files = RunFolder(Path(folder))
    missing = [path.name for path in (files.job, files.plan, files.metrics) if not path.is_file()]
    if missing:
        raise DataError(
            f"{files.root} is not a complete run folder, it lacks {', '.join(missing)}; "
            "name the folder of a run that has begun its first step"
        )
    job = _read(files.job, read_job)
    records = files.committed()
    return Run(
        label=label if label is not None else job.name,
        job=job,
        plan=_read(files.plan, Plan.from_json),
        graph=_read(files.graph, Graph.from_json) if files.graph.is_file() else None,
        topology=_read(files.topology, Topology.from_json) if files.topology.is_file() else None,
        steps=tuple(record for record in records if isinstance(record, StepRecord)),
        evaluations=tuple(record for record in records if isinstance(record, EvaluationRecord)),
        recoveries=tuple(record for record in records if isinstance(record, RecoveryRecord)),
        result=files.read_result(),
        relayed=tuple(files.read_relayed()),
    )


def _read(path: Path, parse: Callable[[str], T]) -> T:
    try:
        return parse(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise DataError(f"cannot read {path}: {error}") from None
    except FarflungError as error:
        raise DataError(f"{path}: {error}") from None
