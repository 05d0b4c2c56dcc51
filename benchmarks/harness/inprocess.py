"""In-process workers under a given plan; gradients, states and records of every worker are kept for comparison."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial

from farflung.broker.progress import Progress, RecordList
from farflung.broker.records.report_limits import ReportLimits
from farflung.client.in_process import LocalHooks, LocalRun
from farflung.client.shared_batches import SharedBatches
from farflung.clock import MonotonicClock
from farflung.engines import get_engine
from farflung.engines.base import Array, Engine
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.messages.conversions.step_reports import StepReport
from farflung.plan.model import Plan
from farflung.step.run_setup import Phase, RunSetup
from farflung.telemetry.records import EvaluationRecord, StepRecord
from farflung.transports.memory import MemoryHub

__all__ = ["InProcess", "PlannedRun", "run_planned"]

#: (step, micro-batch) -> arrays by placeholder name.
Batches = Callable[[int, int], Mapping[str, Array]]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """A graph with its plan and job, first states and batches. ``evaluation``: a second graph, fed by batches of step -1."""

    graph: Graph
    plan: Plan
    job: JobSpec
    states: Mapping[str, Array] = field(repr=False)
    batches: Batches
    evaluation: Graph | None = None
    rows: int = 1


@dataclass(frozen=True, kw_only=True)
class InProcess:
    """What ran: records; losses of each step's micro-batches; the last gradients (before clipping) of each worker; the states
    of each stage."""

    records: tuple[StepRecord, ...]
    evaluations: tuple[EvaluationRecord, ...]
    micro_losses: tuple[tuple[float, ...], ...]
    gradients: Sequence[Mapping[str, Array]] = field(repr=False)
    states: Sequence[Mapping[str, Array]] = field(repr=False)

    @property
    def losses(self) -> tuple[float, ...]:
        """One loss per step."""
        return tuple(record.loss for record in self.records)

    @property
    def merged_states(self) -> dict[str, Array]:
        """States of the whole model."""
        merged: dict[str, Array] = {}
        for states in self.states:
            merged |= states
        return merged


def run_planned(
    given: PlannedRun,
    *,
    engine: Engine | None = None,
    keep_gradients: bool = False,
    on_step: Callable[[StepReport], None] | None = None,
    on_record: Callable[[StepRecord | EvaluationRecord], None] | None = None,
) -> InProcess:
    """Run ``given`` on threads of this process, on ``engine`` (``None``: PyTorch). ``on_step`` is told each worker's
    report, ``on_record`` each whole record.

    Raises:
        FarflungError: the first error of any worker.
    """
    setups = {
        device: RunSetup(
            run="bench",
            device=device,
            job=given.job,
            plan=given.plan,
            graphs={given.rows: given.graph},
            eval_graph=given.evaluation,
        )
        for device in given.plan.devices
    }
    first = next(iter(setups.values()))
    shared = SharedBatches(given.batches, sum(1 for piece in first.subgraphs if piece.placeholders))
    records = RecordList()

    def sink(record: StepRecord | EvaluationRecord) -> None:
        records(record)
        if on_record is not None:
            on_record(record)

    progress = Progress(ReportLimits(given.job), setups, MonotonicClock(), sink)
    micro: list[tuple[float, ...]] = []

    def report(device: str, done: StepReport) -> None:
        progress.report(device, done)
        if done.losses:
            micro.append(done.losses)
        if on_step is not None:
            on_step(done)

    hooks = {device: _Hooks(given, shared, progress, partial(report, device)) for device in setups}
    threads = given.job.threads
    run = LocalRun(setups, hooks, engine or get_engine("torch"), MemoryHub().endpoint, threads, keep_gradients=keep_gradients)
    run.run()
    executors = run.executors.values()
    return InProcess(
        records=tuple(records.steps),
        evaluations=tuple(records.evaluations),
        micro_losses=tuple(micro),
        gradients=[executor.gradients for executor in executors],
        states=[runner.states() for executor in executors for runner in executor.stages.bases.values()],
    )


class _Hooks(LocalHooks):
    def __init__(
        self, given: PlannedRun, shared: SharedBatches, progress: Progress, on_step: Callable[[StepReport], None]
    ) -> None:
        self._given = given
        self._shared = shared
        self._progress = progress
        self._on_step = on_step

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        if phase is Phase.TRAIN:
            return self._shared.get(step, micro_batch, names)
        arrays = self._given.batches(-1, micro_batch)
        return {name: arrays[name] for name in names}

    def first_states(self, names: Sequence[str]) -> Mapping[str, Array] | None:
        return {name: self._given.states[name] for name in names if name in self._given.states}

    def on_step(self, report: StepReport) -> None:
        self._on_step(report)

    def on_evaluation(self, step: int, outputs: Mapping[str, float]) -> None:
        self._progress.evaluation(step, outputs)
