"""``farflung.train``: a user's own module, trained by workers of this process or by the workers of a ticket."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from farflung.api.argument_names import in_arguments, in_typed_names, known_arguments
from farflung.api.arguments import (
    OptimizerFactory,
    Schedule,
    TrainArguments,
    brought_by,
    check_types,
    job_of,
    one_of,
    topology_of,
)
from farflung.api.batches import DataSettings, Inputs, batch_rows, call_order, evaluation_order, read_inputs
from farflung.api.callbacks import Callbacks, EarlyStop, Listeners, StopTraining, listed
from farflung.api.evaluation import Evaluation
from farflung.api.local_folder import check_folders
from farflung.api.local_training import LocalSettings, train_here
from farflung.api.optimizers import with_given_optimizer, with_named_optimizer
from farflung.api.remote_training import train_there
from farflung.api.reports import ReportArgument, Reports, targets_of
from farflung.api.result import Outcome, TrainResult
from farflung.api.submission import check_names, freeze
from farflung.cluster import Topology
from farflung.errors import DataError, FarflungError, GraphError, InputError
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

    from farflung.frontends.caller import Objective

__all__ = ["train"]

#: ``batch_fn(step, micro_batch)`` gives the module's arguments: a tuple (positional) or a dict (by name) of tensors or arrays.
BatchFunction = Callable[[int, int], Sequence[Any] | Mapping[str, Any]]
#: ``function(outputs, target)`` gives a scalar.
Scored = Callable[[Any, Any], Any]
#: Names, or functions by name.
Metrics = str | Sequence[str] | Mapping[str, Scored]


@known_arguments
def train(
    model: nn.Module | Callable[[], nn.Module] | None = None,
    data: BatchFunction | Iterable[Any] | None = None,
    *,
    steps: int | None = None,
    epochs: float | None = None,
    batch_size: int | None = None,
    loss: Scored | None = None,
    accumulate: int | None = None,
    optimizer: str | OptimizerSpec | OptimizerFactory | torch.optim.Optimizer = "sgd",
    lr: float | None = None,
    schedule: str | ScheduleSpec | Schedule | None = None,
    clip_norm: float | None = None,
    precision: str = "float32",
    evaluate: Evaluation | Iterable[Any] | None = None,
    metrics: Metrics | None = None,
    callbacks: Sequence[Any] = (),
    early_stop: int | EarlyStop | None = None,
    on_step: Callable[[StepRecord], None] | None = None,
    workers: int | None = None,
    ticket: str | None = None,
    topology: Topology | str | Path | None = None,
    planner: str | PlanSpec = "equal_compute",
    codec: str | CodecSpec = "identity",
    replicas: int | None = None,
    sync: str | SyncSpec = "exact",
    seed: int = 0,
    folder: str | Path | None = None,
    checkpoint: CheckpointSpec | None = None,
    resume: str | Path | None = None,
    job: JobSpec | None = None,
    report: ReportArgument = None,
    module: nn.Module | Callable[[], nn.Module] | None = None,
    batch_fn: BatchFunction | None = None,
    micro_batches: int | None = None,
    lr_schedule: str | ScheduleSpec | Schedule | None = None,
    evaluation: Evaluation | None = None,
) -> TrainResult:
    """Train ``model`` for ``steps`` optimizer steps. The model itself is not changed.

    With a lossless codec the result is the same, bit for bit, for any number of workers. ``docs/python.md`` shows each argument
    in use.

    Args:
        model: a module with real weights (training starts from them), a module on the meta device, or a function that makes a
            module (the initializers run where the weights live).
        data: a ``DataLoader``; a dataset with ``batch_size``; an iterable of batches; or a function ``batch_fn(step,
            micro_batch)``. A batch is a tuple or a dict of the model's arguments. Data stay in this process.
        steps: optimizer steps. A run that resumes counts the steps before it, too.
        epochs: instead of ``steps``, how often all data are read.
        batch_size: samples of a batch, if ``data`` is a dataset of single samples.
        loss: a function of the model's outputs and the target, which is the last element of a batch or its entry ``labels``.
            Without it, the model returns the loss.
        accumulate: batches per step (default 1); gradients are their mean.
        optimizer: a name such as ``"adamw"``, with PyTorch's defaults; an ``OptimizerSpec``; a function of the module's
            parameters that returns an optimizer or a list of optimizers; or an optimizer that has not stepped yet.
        lr: learning rate of a named optimizer, 1e-3 by default. All others have their own.
        schedule: a name such as ``"cosine"`` (default ``"constant"``); a ``ScheduleSpec`` with warm-up; a function of the step
            that returns a factor of the learning rates; or a function of an optimizer that returns a scheduler of
            ``torch.optim.lr_scheduler``.
        clip_norm: largest norm of all gradients together (None: no clipping).
        precision: ``"float32"``, or ``"bf16"`` or ``"fp16"`` for autocast. ``"fp16"`` scales the loss.
        evaluate: data for evaluation, or an ``Evaluation``, which also says when to evaluate.
        metrics: names (``"accuracy"``, ``"mse"``, ``"mae"``), or functions of outputs and target by name. An evaluation reports
            their means.
        callbacks: functions of a ``StepRecord``, or objects with ``on_step`` or ``on_evaluation``. They may raise
            ``StopTraining``.
        early_stop: how many evaluations without an improvement end the training, or an ``EarlyStop``.
        on_step: one more callback of each step.
        workers: without a ticket, how many threads of this process train (default 3). With a ticket, how many workers take part
            (default: all that are idle).
        ticket: a broker's submit ticket, or ``"@FILE"``.
        topology: without a ticket, devices and links to plan for; each device is a thread of this process.
        planner: decides which operators run where; a name or a ``PlanSpec``.
        codec: compresses values on links; a name or a ``CodecSpec``.
        replicas: workers that share the micro-batches of each stage (default 1).
        sync: how replicas agree: ``"exact"``, a strategy's name, or a ``SyncSpec``.
        seed: key of all random numbers (dropout, initializers, the order of a dataset).
        folder: without a ticket, where the run is written: metrics, result, checkpoints. With a ticket the broker keeps it.
        checkpoint: when checkpoints are written, and how many are kept. By default one is written after the last step.
        resume: the run to continue: without a ticket a run's folder or a single checkpoint, with a ticket a run's name.
        job: further settings of a job file, for example ``JobSpec(on_nan="skip")``.
        report: experiment trackers: ``"tensorboard"``, ``"wandb"``, ``"mlflow"``, ``"trackio"`` or ``"csv"``, a ``ReportSpec``,
            an object with the methods of ``farflung.integrations.trackers.Tracker``, or a list of these. Without ``folder``
            the run's records go to ``runs/RUN``.
        module: another name of ``model``.
        batch_fn: another name of ``data``.
        micro_batches: another name of ``accumulate``.
        lr_schedule: another name of ``schedule``.
        evaluation: another name of ``evaluate``.

    Returns:
        The result. After ``StopTraining`` it holds the steps so far.

    Raises:
        CaptureError: the module can't become a graph; the text says what to change.
        InputError: an argument is out of range or unknown, or two arguments exclude each other.
        FarflungError: anything else that ends the training.
        KeyboardInterrupt: after Ctrl-C, at the end of the current step. Its attribute ``result`` is the result so far.
            A second Ctrl-C ends the training at once, without a result.
        Exception: what a callback raised, at the end of a step. Its attribute ``result`` is the result so far.
    """
    trained = one_of("model", model, "module", module)
    source = one_of("data", data, "batch_fn", batch_fn)
    batches = one_of("accumulate", accumulate, "micro_batches", micro_batches, 1)
    rates = one_of("schedule", schedule, "lr_schedule", lr_schedule, "constant")
    held_out = one_of("evaluate", evaluate, "evaluation", evaluation)
    functions = {"module" if model is None else "model": trained} | ({} if on_step is None else {"on_step": on_step})
    given = TrainArguments(
        steps=1 if steps is None else steps,
        micro_batches=batches,
        optimizer=optimizer,
        lr=lr,
        lr_schedule=rates,
        clip_norm=clip_norm,
        precision=precision,
        workers=workers,
        ticket=ticket,
        planner=planner,
        codec=codec,
        replicas=replicas,
        sync=sync,
        seed=seed,
        evaluation=held_out if isinstance(held_out, Evaluation) else None,
        folder=folder,
        checkpoint=checkpoint,
        resume=resume,
        job=job,
        topology=topology,
        report=targets_of(report),
    )
    typed = {"accumulate": accumulate, "schedule": schedule, "evaluate": evaluate, "epochs": epochs}
    asked = _Asked(
        model=trained,
        data=source,
        steps=steps,
        epochs=epochs,
        batch_size=batch_size,
        evaluate=held_out,
        scores=(loss, metrics),
        callbacks=(callbacks, on_step),
        early_stop=early_stop,
        names=("data" if module is None else "batch_fn", "evaluate" if evaluation is None else "evaluation"),
    )
    try:
        check_types(given, functions)
        return _delivered(*_run(asked, given))
    except FarflungError as error:
        text = in_arguments(str(error))
        error.args = (in_typed_names(text, [name for name, value in typed.items() if value is not None]), *error.args[1:])
        raise


@dataclass(frozen=True, kw_only=True)
class _Asked:
    """The arguments of ``train`` that no job has.

    ``scores``: loss and metrics. ``callbacks``: these and ``on_step``. ``names``: of data and evaluate, as typed.
    """

    model: Any
    data: Any
    steps: int | None
    epochs: float | None
    batch_size: int | None
    evaluate: Any
    scores: tuple[Scored | None, Metrics | None]
    callbacks: tuple[Any, Callable[[StepRecord], None] | None]
    early_stop: int | EarlyStop | None
    names: tuple[str, str]


@dataclass(frozen=True, kw_only=True)
class _Trainable:
    """What is trained on what."""

    model: Any
    objective: Objective
    inputs: Inputs
    run: str


def _run(asked: _Asked, given: TrainArguments) -> tuple[TrainResult, Outcome, TrainArguments, Callbacks]:
    from farflung.frontends.caller import Objective
    from farflung.frontends.torch.ambient import intra_op_threads

    job = job_of(given, intra_op_threads())
    check_names(job)
    objective = Objective.of(*asked.scores)
    settings = DataSettings(
        accumulate=given.micro_batches,
        batch_size=asked.batch_size,
        seed=given.seed,
        data=asked.names[0],
        evaluate=asked.names[1],
    )
    inputs = read_inputs(
        asked.data, asked.evaluate, settings, steps=asked.steps, epochs=asked.epochs, repeats=given.ticket is not None
    )
    if objective.metrics and inputs.evaluation is None:
        raise InputError(f"metrics are computed by evaluations, and there is none: pass {settings.evaluate}, too")
    given = replace(given, steps=inputs.steps, evaluation=inputs.evaluation)
    listeners = Listeners.of(listed(*asked.callbacks), asked.early_stop, inputs.evaluation, objective.metrics)
    name = new_id("run")
    reports = Reports(given.report, name, None if given.folder is None else Path(given.folder))
    with closing(inputs), TrainingProgress(inputs.steps) as progress:
        callbacks = Callbacks(listeners, progress, reports)
        with reports.of(callbacks):
            trainable = _Trainable(model=asked.model, objective=objective, inputs=inputs, run=name)
            bundle, outcome = _train(trainable, job_of(given, job.threads), given, callbacks)
            reports.end("finished" if outcome.steps == inputs.steps else "stopped", outcome.steps)
    result = TrainResult(
        losses=tuple(record.loss for record in outcome.records),
        records=outcome.records,
        evaluations=outcome.evaluations,
        planned=outcome.plan,
        captured=bundle.graph,
        aliases={state.name: state.aliases for state in bundle.graph.states},
        states=outcome.states,
        seconds=outcome.seconds,
        steps=outcome.steps,
        stopped=outcome.error is not None and outcome.steps < inputs.steps,
        run=bundle.run,
        checkpoint=outcome.checkpoint,
        source=asked.model,
        seed=given.seed,
    )
    return result, outcome, given, callbacks


def _train(trainable: _Trainable, job: JobSpec, given: TrainArguments, callbacks: Callbacks) -> tuple[Bundle, Outcome]:
    from farflung.frontends.torch.ambient import capture_trainee

    if given.ticket is None:
        check_folders(given.folder, job.checkpoint.resume or None)
    topology = topology_of(given)
    inputs = trainable.inputs
    first = inputs.example()
    trainee = capture_trainee(
        trainable.objective.around(trainable.model, first.batch),
        first,
        inputs.held_out_example(tuple(trainable.objective.metrics)),
    )
    callbacks.progress.captured()
    brought = brought_by(given)
    job = with_given_optimizer(job, brought, trainee.module, trainee.graph)
    graph = freeze(trainee.graph, job)
    job = with_named_optimizer(_with_samples(job, graph, inputs.evaluation), graph, brought.schedule)
    bundle = Bundle(run=trainable.run, job=job, graphs={job.micro_batch_sizes[0]: graph}, eval_graph=trainee.evaluation)
    batches = call_order(inputs.training, graph, first.batch)
    side = None
    if inputs.held_out is not None and trainee.evaluation is not None:
        side = evaluation_order(inputs.held_out, trainee.evaluation)
    try:
        if given.ticket is not None:
            return bundle, train_there(bundle, trainee.states, batches, side, callbacks, given.ticket)
        folder = None if given.folder is None else Path(given.folder)
        settings = LocalSettings(topology=topology, folder=folder, workers=given.workers)
        return bundle, train_here(bundle, trainee.states, batches, side, callbacks, settings)
    except (GraphError, DataError) as error:
        error.args = (str(error) + _batch_text(error, graph, trainee.evaluation, inputs),)
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
        update["evaluate"] = EvaluateSpec(
            every=evaluation.every, every_batches=evaluation.every_batches, batches=evaluation.batches or 1
        )
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


def _batch_text(error: GraphError | DataError, graph: Graph, evaluation: Graph | None, inputs: Inputs) -> str:
    """Describe the batch of a failed computation; its shapes are the graph's. Empty if the text of ``error`` names the batch."""
    from farflung.frontends.torch.ambient import describe_batch

    failed = error.batch
    source = evaluation if failed is not None and failed.evaluates else graph
    if failed is None or source is None:
        return ""
    held_out = inputs.held_out if failed.evaluates else None
    origin = inputs.training.origin(failed.step, failed.index) if held_out is None else held_out.origin(failed.index)
    if f"{origin} returned" in str(error) or f"{origin} did not" in str(error):
        return ""  # the batch was refused before anything was computed
    weights = {state.spec.dtype for state in source.parameters}
    given = {op.name: (op.outputs[0].dtype, op.outputs[0].shape) for op in source.placeholders}
    return f"; {describe_batch(weights, given, origin, str(error))}"
