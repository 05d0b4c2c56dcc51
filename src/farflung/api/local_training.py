"""Training on workers of this process."""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from farflung.api.argument_names import in_arguments
from farflung.api.batches import Batches, EvaluationBatches
from farflung.api.callbacks import Callbacks
from farflung.api.local_folder import LocalFolder
from farflung.api.planning import plan as make_plan
from farflung.api.result import Outcome
from farflung.broker.planning.planned import why_idle
from farflung.broker.progress import Progress, RecordList
from farflung.broker.records.report_limits import ReportLimits
from farflung.client.in_process import LocalHooks, LocalRun
from farflung.client.shared_batches import SharedBatches
from farflung.clock import MonotonicClock
from farflung.cluster import Topology
from farflung.engines import get_engine
from farflung.engines.base import Array
from farflung.graph.ir import Graph
from farflung.messages.conversions.step_reports import StepReport
from farflung.messages.submission import Bundle
from farflung.planners.finish import Problem
from farflung.step.run_setup import Committed, Phase, RunSetup
from farflung.telemetry.records import EvaluationRecord, RunResult, StepRecord
from farflung.transports.memory import MemoryHub

__all__ = ["LocalSettings", "train_here"]


@dataclass(frozen=True, kw_only=True)
class LocalSettings:
    """``topology``: each of its devices is a thread. ``folder``: where the run is written (None: nowhere).

    ``workers``: how many the caller asks for (None: the caller gives no number).
    """

    topology: Topology
    folder: Path | None = None
    workers: int | None = None


def train_here(
    bundle: Bundle,
    states: Mapping[str, Array],
    batches: Batches,
    evaluation: EvaluationBatches | None,
    callbacks: Callbacks,
    settings: LocalSettings,
) -> Outcome:
    """Train ``bundle`` on threads of this process; ``states`` are the first values of what has no recorded initializer.

    Raises:
        FarflungError: the first error of any worker.
        KeyboardInterrupt: the second Ctrl-C, which does not wait for the end of the step.
    """
    job = bundle.job
    topology = settings.topology
    plan = make_plan(bundle.graph, topology, planner=job.plan.planner, job=job)
    if settings.workers is not None and settings.workers > len(plan.devices):
        parts = len(Problem.of(bundle.graph, topology, job).runs)
        why = in_arguments(why_idle(plan, len(topology), parts, job.limits))
        callbacks.progress.note(bundle.run, f"workers={settings.workers}, of which {len(plan.devices)} get a stage: {why}")
    folder = LocalFolder(settings.folder, bundle, plan, topology)
    callbacks.planned(job, plan)
    setups = {
        device: RunSetup(
            run=bundle.run,
            device=device,
            job=job,
            plan=plan,
            graphs=bundle.graphs,
            eval_graph=bundle.eval_graph,
            first_step=folder.first_step,
            committed=folder.committed,
        )
        for device in plan.devices
    }
    listener = _Listener(folder, callbacks, bundle.graph)

    records = RecordList()

    def sink(record: StepRecord | EvaluationRecord) -> None:
        records(record)
        listener.take(record)
        run.wake()

    progress = Progress(ReportLimits(job), setups, MonotonicClock(), sink, None, folder.first_step)
    sources = _Sources(next(iter(setups.values())), batches, evaluation)
    hooks = {device: _Hooks(device, sources, states, progress, listener) for device in setups}
    run = LocalRun(setups, hooks, get_engine("torch"), MemoryHub().endpoint, job.threads)
    clock = MonotonicClock()
    begin = clock.now()

    def failed(kind: object, error: BaseException | None, trace: object) -> None:
        if error is None:
            return
        if folder.newest:
            error.add_note(f"the newest checkpoint is {folder.newest}; train(..., resume={folder.newest!r}) continues from it")
        folder.write_result(_result("failed", progress, folder, clock.now() - begin, str(error)))

    with ExitStack() as stack:
        stack.push(failed)
        run.run(listener.interrupt)
    steps = folder.first_step + progress.count
    folder.write_result(_result("finished" if steps == job.steps else "stopped", progress, folder, clock.now() - begin))
    return Outcome(
        plan=plan,
        records=tuple(records.steps),
        evaluations=tuple(records.evaluations),
        states=run.states(),
        steps=steps,
        error=listener.error,
        checkpoint=folder.newest,
        seconds=clock.now() - begin,
    )


def _result(status: str, progress: Progress, folder: LocalFolder, seconds: float, cause: str = "") -> RunResult:
    steps = folder.first_step + progress.count
    return RunResult(status=status, steps=steps, seconds=seconds, cause=cause.splitlines()[0] if cause else "")  # type: ignore[arg-type]


class _Listener:
    """Takes the records of the run and says after each of them whether the run ends."""

    def __init__(self, folder: LocalFolder, callbacks: Callbacks, graph: Graph) -> None:
        self.folder, self._callbacks, self._graph = folder, callbacks, graph
        #: The newest training step, and evaluation, that the callbacks have seen, and whether the run ends after it. All workers
        #: must get this answer, and a checkpoint may be shown to the callbacks between their questions.
        self._seen = {Phase.TRAIN: (-1, False), Phase.EVAL: (-1, False)}
        self._interrupted = threading.Event()

    @property
    def error(self) -> BaseException | None:
        """What ended the run early: the callbacks' exception, or Ctrl-C."""
        if self._callbacks.error is not None:
            return self._callbacks.error
        return KeyboardInterrupt() if self._interrupted.is_set() else None

    @property
    def interrupted(self) -> bool:
        """Whether Ctrl-C was pressed."""
        return self._interrupted.is_set()

    def interrupt(self) -> None:
        """Make the run end after the current step."""
        self._interrupted.set()
        self._callbacks.progress.interrupted()

    def take(self, record: StepRecord | EvaluationRecord) -> None:
        """Write ``record``, and show it to the callbacks."""
        self.folder.write_record(record)
        self._callbacks(record)
        phase = Phase.TRAIN if isinstance(record, StepRecord) else Phase.EVAL
        self._seen[phase] = record.step, self._callbacks.error is not None

    def saved(self, step: int) -> None:
        """Show the checkpoint after ``step`` steps to the callbacks."""
        self._callbacks.saved(step, self._graph, self.folder.reader())

    def ends_after(self, phase: Phase, step: int) -> bool | None:
        """Whether the run ends (None: the callbacks have not seen the record yet)."""
        if not self._callbacks.given:
            return False
        seen, ends = self._seen[phase]
        return None if seen < step else ends


class _Sources:
    """The caller's batches, called for once however many stages read them."""

    def __init__(self, setup: RunSetup, batches: Batches, evaluation: EvaluationBatches | None) -> None:
        readers = sum(1 for piece in setup.subgraphs if piece.placeholders)
        self._training = SharedBatches(batches, readers)
        self._evaluation: SharedBatches | None = None
        if evaluation is not None and setup.eval_graph is not None:
            readers = sum(1 for _, piece in setup.side_cut(setup.eval_graph) if piece.placeholders)
            self._evaluation = SharedBatches(lambda step, index: evaluation(index), readers)

    def get(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        """The arrays of the placeholders ``names``."""
        source = self._evaluation if phase is Phase.EVAL else self._training
        assert source is not None  # only a job with an evaluation evaluates
        return source.get(step, micro_batch, names)


class _Hooks(LocalHooks):
    """A worker of this process: batches from the caller's functions, weights from the caller's module or a checkpoint."""

    def __init__(
        self, device: str, sources: _Sources, states: Mapping[str, Array], progress: Progress, listener: _Listener
    ) -> None:
        self._device, self._sources, self._states = device, sources, states
        self._progress, self._listener = progress, listener

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        return self._sources.get(phase, step, micro_batch, names)

    def first_states(self, names: Sequence[str]) -> Mapping[str, Array] | None:
        given = {name: self._states[name] for name in names if name in self._states}
        return {**given, **self._listener.folder.states(names)}

    def first_optimizer(self, parameters: Sequence[str]) -> Mapping[str, Array]:
        return self._listener.folder.optimizer(parameters, self._device)

    def stop_requested(self) -> bool:
        return self._listener.interrupted

    def ends_after(self, phase: Phase, step: int) -> bool | None:
        return self._listener.ends_after(phase, step)

    def on_step(self, report: StepReport) -> None:
        self._progress.report(self._device, report)

    def on_checkpoint(self, step: int, committed: Committed, states: Mapping[str, Array], optimizer: Mapping[str, Array]) -> None:
        if self._listener.folder.write_share(step, self._device, committed, states, optimizer):
            self._listener.saved(step)

    def on_copy(self, step: int, device: str, states: Mapping[str, Array], optimizer: Mapping[str, Array]) -> None:
        return  # all workers are this process

    def on_copied(self, step: int, hashes: Mapping[str, str]) -> None:
        return  # as above

    def on_evaluation(self, step: int, outputs: Mapping[str, float]) -> None:
        self._progress.evaluation(step, outputs)
