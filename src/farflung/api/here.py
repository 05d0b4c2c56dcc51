"""Training on workers of this process."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from farflung.api.batches import Batches
from farflung.api.outcome import Outcome
from farflung.clock import MonotonicClock
from farflung.cluster import Topology
from farflung.engines import get_engine
from farflung.engines.base import Array
from farflung.planners import get_planner
from farflung.runtime.batches import SharedBatches
from farflung.runtime.bundle import Bundle
from farflung.runtime.local import LocalHooks, LocalRun
from farflung.runtime.progress import Progress
from farflung.runtime.setup import Phase, RunSetup, StepReport
from farflung.telemetry.records import EvaluationRecord, StepRecord
from farflung.transports.memory import MemoryHub

__all__ = ["run_here"]


def run_here(
    bundle: Bundle, states: Mapping[str, Array], batches: Batches, workers: int, tell: Callable[[StepRecord], None]
) -> Outcome:
    """Train ``bundle`` on ``workers`` threads; ``states`` are the first values of what has no recorded initializer.

    Raises:
        FarflungError: the first error of any worker.
    """
    job = bundle.job
    topology = Topology.preset(f"homogeneous-{workers}")
    plan = get_planner(job.plan.planner).plan(bundle.graph, topology, job=job)
    setups = {
        device: RunSetup(run=bundle.run, device=device, job=job, plan=plan, graphs=bundle.graphs) for device in plan.devices
    }
    pieces = next(iter(setups.values())).subgraphs
    shared = SharedBatches(batches, sum(1 for piece in pieces if piece.placeholders))

    def sink(record: StepRecord | EvaluationRecord) -> None:
        if isinstance(record, StepRecord):
            tell(record)

    progress = Progress(job, len(setups), MonotonicClock(), sink)
    hooks = {device: _Hooks(shared, states, progress) for device in setups}
    run = LocalRun(setups, hooks, get_engine("torch"), MemoryHub().endpoint, job.threads)
    run.run()
    return Outcome(plan=plan, records=tuple(progress.steps), states=run.states())


class _Hooks(LocalHooks):
    """A worker of this process: batches from the caller's function, weights from the caller's module."""

    def __init__(self, batches: SharedBatches, states: Mapping[str, Array], progress: Progress) -> None:
        self._batches = batches
        self._states = states
        self._progress = progress

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        return self._batches.get(step, micro_batch, names)

    def first_states(self, names: Sequence[str]) -> Mapping[str, Array] | None:
        return {name: self._states[name] for name in names if name in self._states}

    def on_step(self, report: StepReport) -> None:
        self._progress.report(report)

    def on_evaluation(self, step: int, outputs: Mapping[str, float]) -> None:
        self._progress.evaluation(step, outputs)
