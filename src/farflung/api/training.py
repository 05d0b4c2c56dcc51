"""``farflung.train``: a user's own module, trained by workers of this process or by the workers of a ticket."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farflung.api.argument_names import in_arguments
from farflung.api.arguments import DEFAULT_WORKERS, OptimizerFactory, Schedule, TrainArguments, brought_by, check_types, job_of
from farflung.api.batches import batch_rows, call_order, evaluation_order
from farflung.api.callbacks import Callbacks, StopTraining
from farflung.api.evaluation import Evaluation
from farflung.api.local_folder import check_folders
from farflung.api.local_training import LocalSettings, train_here
from farflung.api.optimizers import with_given_optimizer, with_named_optimizer
from farflung.api.remote_training import train_there
from farflung.api.reports import ReportArgument, Reports, targets_of
from farflung.api.result import Outcome, TrainResult
from farflung.api.submission import check_names, freeze
from farflung.errors import FailedBatch, FarflungError, GraphError
from farflung.graph.ir import Graph
from farflung.ids import new_id
from farflung.job.spec import CheckpointSpec, CodecSpec, EvaluateSpec, JobSpec, OptimizerSpec, PlanSpec, ScheduleSpec, SyncSpec
from farflung.messages.submission import Bundle
from farflung.telemetry.activity import TrainingProgress
from farflung.telemetry.records import StepRecord
from farflung.units import counted

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["train"]

#: ``batch_fn(step, micro_batch)`` gives the module's arguments: a tuple (positional) or a dict (by name) of tensors or arrays.
BatchFunction = Callable[[int, int], Sequence[Any] | Mapping[str, Any]]


def train(
    module: nn.Module | Callable[[], nn.Module],
    batch_fn: BatchFunction,
    *,
    steps: int,
    micro_batches: int = 1,
    optimizer: str | OptimizerSpec | OptimizerFactory | torch.optim.Optimizer = "sgd",
    lr: float | None = None,
    lr_schedule: str | ScheduleSpec | Schedule = "constant",
    clip_norm: float | None = None,
    precision: str = "float32",
    workers: int | None = None,
    ticket: str | None = None,
    planner: str | PlanSpec = "equal_compute",
    codec: str | CodecSpec = "identity",
    replicas: int | None = None,
    sync: str | SyncSpec = "exact",
    seed: int = 0,
    on_step: Callable[[StepRecord], None] | None = None,
    evaluation: Evaluation | None = None,
    folder: str | Path | None = None,
    checkpoint: CheckpointSpec | None = None,
    resume: str | Path | None = None,
    job: JobSpec | None = None,
    report: ReportArgument = None,
) -> TrainResult:
    """Train ``module`` for ``steps`` optimizer steps. The module itself is not changed.

    ``module(*batch_fn(step, micro_batch))`` is the scalar loss. Gradients are the mean over the micro-batches of a step, so
    ``micro_batches`` is gradient accumulation. With a lossless codec the result is the same, bit for bit, for any number of
    workers. ``docs/python.md`` shows each argument in use.

    Args:
        module: a module with real weights (training starts from them), a module on the meta device, or a function that makes a
            module (the initializers run where the weights live).
        batch_fn: returns the arguments of the module for one micro-batch: a tuple or a dict by name. It runs in this process,
            once per micro-batch, in order.
        steps: optimizer steps. A run that resumes counts the steps before it, too.
        micro_batches: micro-batches per step.
        optimizer: a name such as ``"adamw"``, with PyTorch's defaults; an ``OptimizerSpec``; a function of the module's
            parameters that returns an optimizer or a list of optimizers; or an optimizer that has not stepped yet.
        lr: learning rate of a named optimizer, 1e-3 by default. All others have their own.
        lr_schedule: a name such as ``"cosine"``; a ``ScheduleSpec`` with warm-up; a function of the step that returns a factor of
            the learning rates; or a function of an optimizer that returns a scheduler of ``torch.optim.lr_scheduler``.
        clip_norm: largest norm of all gradients together (None: no clipping).
        precision: ``"float32"``, or ``"bf16"`` for autocast to bfloat16.
        workers: without a ticket, how many threads of this process train (default 3). With a ticket, how many workers take part
            (default: all that are idle).
        ticket: a broker's submit ticket.
        planner: decides which operators run where; a name or a ``PlanSpec``.
        codec: compresses values on links; a name or a ``CodecSpec``.
        replicas: workers that share the micro-batches of each stage (default 1).
        sync: how replicas agree: ``"exact"``, a strategy's name, or a ``SyncSpec``.
        seed: key of all random numbers (dropout, initializers).
        on_step: called with the record of each step. It may raise ``StopTraining``.
        evaluation: batches for evaluation, and when to evaluate.
        folder: without a ticket, where the run is written: metrics, result, checkpoints. With a ticket the broker keeps it.
        checkpoint: when checkpoints are written, and how many are kept. By default one is written after the last step.
        resume: the run to continue: without a ticket a run's folder or a single checkpoint, with a ticket a run's name.
        job: further settings of a job file, for example ``JobSpec(on_nan="skip")``.
        report: experiment trackers: ``"tensorboard"``, ``"wandb"``, ``"mlflow"``, ``"trackio"`` or ``"csv"``, a ``ReportSpec``,
            an object with the methods of ``farflung.integrations.trackers.Tracker``, or a list of these. Without ``folder``
            the run's records go to ``runs/RUN``.

    Returns:
        The result. After ``StopTraining`` it holds the steps so far.

    Raises:
        CaptureError: the module can't become a graph; the text says what to change.
        InputError: an argument is out of range or unknown, or two arguments exclude each other.
        FarflungError: anything else that ends the training.
        KeyboardInterrupt: after Ctrl-C, at the end of the current step. Its attribute ``result`` is the result so far.
            A second Ctrl-C ends the training at once, without a result.
        Exception: what ``on_step`` raised, at the end of a step. Its attribute ``result`` is the result so far.
    """
    given = TrainArguments(
        steps=steps,
        micro_batches=micro_batches,
        optimizer=optimizer,
        lr=lr,
        lr_schedule=lr_schedule,
        clip_norm=clip_norm,
        precision=precision,
        workers=workers,
        ticket=ticket,
        planner=planner,
        codec=codec,
        replicas=replicas,
        sync=sync,
        seed=seed,
        evaluation=evaluation,
        folder=folder,
        checkpoint=checkpoint,
        resume=resume,
        job=job,
        report=targets_of(report),
    )
    functions = {"module": module, "batch_fn": batch_fn}
    check_types(given, functions if on_step is None else {**functions, "on_step": on_step})
    try:
        with TrainingProgress(steps) as progress:
            name = new_id("run")
            reports = Reports(given.report, name, None if folder is None else Path(folder))
            callbacks = Callbacks(on_step, None if evaluation is None else evaluation.on_result, progress, reports)
            with reports.of(callbacks):
                bundle, outcome = _train(module, batch_fn, given, callbacks, name)
                reports.end("finished" if outcome.steps == steps else "stopped", outcome.steps)
    except FarflungError as error:
        error.args = (in_arguments(str(error)), *error.args[1:])
        raise
    result = TrainResult(
        losses=tuple(record.loss for record in outcome.records),
        records=outcome.records,
        evaluations=outcome.evaluations,
        plan=outcome.plan,
        graph=bundle.graph,
        states=outcome.states,
        steps=outcome.steps,
        stopped=outcome.error is not None and outcome.steps < steps,
        run=bundle.run,
        checkpoint=outcome.checkpoint,
        source=module,
        seed=seed,
    )
    return _delivered(result, outcome, given, callbacks)


def _train(
    module: nn.Module | Callable[[], nn.Module], batch_fn: BatchFunction, given: TrainArguments, callbacks: Callbacks, run: str
) -> tuple[Bundle, Outcome]:
    from farflung.frontends.torch.ambient import capture_trainee, intra_op_threads

    job = job_of(given, intra_op_threads())
    check_names(job)
    if given.ticket is None:
        check_folders(given.folder, job.checkpoint.resume or None)
    evaluation = given.evaluation
    first = batch_fn(0, 0)
    trainee = capture_trainee(module, first, None if evaluation is None else evaluation.batch_fn(0))
    callbacks.progress.captured()
    brought = brought_by(given)
    job = with_given_optimizer(job, brought, trainee.module, trainee.graph)
    graph = freeze(trainee.graph, job)
    job = with_named_optimizer(_with_samples(job, graph, evaluation), graph, brought.schedule)
    bundle = Bundle(run=run, job=job, graphs={job.micro_batch_sizes[0]: graph}, eval_graph=trainee.evaluation)
    batches = call_order(batch_fn, graph, first)
    side = None
    if evaluation is not None and trainee.evaluation is not None:
        side = evaluation_order(evaluation.batch_fn, trainee.evaluation)
    try:
        if given.ticket is not None:
            return bundle, train_there(bundle, trainee.states, batches, side, callbacks, given.ticket)
        settings = LocalSettings(
            workers=given.workers or DEFAULT_WORKERS, folder=None if given.folder is None else Path(given.folder)
        )
        return bundle, train_here(bundle, trainee.states, batches, side, callbacks, settings)
    except GraphError as error:
        error.args = (str(error) + _batch_text(error.batch, graph, trainee.evaluation),)
        raise
    except KeyboardInterrupt as error:
        # the same exception, without the threads among which it was raised
        where = "its workers have ended" if given.ticket is None else f"{bundle.run} ends after its current step"
        plain = KeyboardInterrupt(f"{_interrupted(callbacks, given)}; {str(error) or where}")
        for note in getattr(error, "__notes__", ()):
            plain.add_note(note)
        raise plain from None


def _with_samples(job: JobSpec, graph: Graph, evaluation: Evaluation | None) -> JobSpec:
    """``job`` with the samples of a micro-batch: the first dimension of its arrays, where all have the same one."""
    update: dict[str, object] = {"micro_batch_sizes": (batch_rows(graph),) * job.micro_batches}
    if evaluation is not None:
        update["evaluate"] = EvaluateSpec(every=evaluation.every, batches=evaluation.batches)
    return job.model_copy(update=update)


def _delivered(result: TrainResult, outcome: Outcome, given: TrainArguments, callbacks: Callbacks) -> TrainResult:
    """Return ``result``, or raise what ended the run early with the result attached.

    Raises:
        BaseException: what a callback raised, or Ctrl-C.
    """
    error = outcome.error
    if error is None or isinstance(error, StopTraining):
        return result
    if isinstance(error, KeyboardInterrupt):  # also one that was raised while a callback ran
        text = f"{_interrupted(callbacks, given)}; its workers have ended"
        raise _with_result(KeyboardInterrupt(text), result) from None
    raise _with_result(error, result)


def _with_result(error: BaseException, result: TrainResult) -> BaseException:
    error.__dict__["result"] = result
    if result.checkpoint and isinstance(error, KeyboardInterrupt):
        error.add_note(f"train(..., resume={result.checkpoint!r}) continues from the newest checkpoint")
    error.add_note(f"the result so far, after {counted(result.steps, 'step')}, is in the attribute 'result' of this exception")
    return error


def _interrupted(callbacks: Callbacks, given: TrainArguments) -> str:
    return f"training was interrupted after {callbacks.steps} of {counted(given.steps, 'step')}"


def _batch_text(failed: FailedBatch | None, graph: Graph, evaluation: Graph | None) -> str:
    """Describe the batch of a failed computation; its shapes are the graph's, as every batch is checked."""
    from farflung.frontends.torch.ambient import describe_batch

    source = evaluation if failed is not None and failed.evaluates else graph
    if failed is None or source is None:
        return ""
    origin = f"Evaluation.batch_fn({failed.index})" if failed.evaluates else f"batch_fn({failed.step}, {failed.index})"
    weights = {state.spec.dtype for state in source.parameters}
    given = {op.name: (op.outputs[0].dtype, op.outputs[0].shape) for op in source.placeholders}
    return f"; {describe_batch(weights, given, origin)}"
