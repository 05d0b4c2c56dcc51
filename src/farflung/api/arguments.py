"""From the arguments of ``train`` to a job, with one clear error for whatever is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import NoneType
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from farflung.api.evaluation import Evaluation
from farflung.api.optimizers import Given
from farflung.api.reports import Targets
from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.foreign_text import shown
from farflung.job.check import check_job
from farflung.job.explain import explain
from farflung.job.optimizer_names import CAPTURED, NAMED
from farflung.job.spec import CheckpointSpec, CodecSpec, JobSpec, OptimizerSpec, PlanSpec, ReportSpec, ScheduleSpec, SyncSpec
from farflung.known_names import known_names
from farflung.sync import get_strategy

if TYPE_CHECKING:
    import torch

__all__ = [
    "DEFAULT_LR",
    "DEFAULT_WORKERS",
    "OptimizerFactory",
    "Schedule",
    "TrainArguments",
    "brought_by",
    "check_types",
    "job_of",
    "one_of",
    "topology_of",
]

#: ``factory(parameters)`` makes the optimizer, or several.
OptimizerFactory = Callable[[Any], "torch.optim.Optimizer | Sequence[torch.optim.Optimizer]"]

#: ``schedule(step)`` is a factor of the learning rates, or ``schedule(optimizer)`` makes a scheduler.
Schedule = Callable[[Any], Any]

DEFAULT_LR = 1e-3
DEFAULT_WORKERS = 3
_FUNCTIONS = {
    "model": "a torch.nn.Module, or a function that makes one",
    "module": "a torch.nn.Module, or a function that makes one",
    "on_step": "a function of a StepRecord",
}
#: Fields of ``JobSpec`` that no other argument of ``train`` sets.
_FURTHER = (
    "copies",
    "copy_every",
    "limits",
    "loss_scale",
    "mtbf_hours",
    "name",
    "on_loss",
    "on_nan",
    "recoveries",
    "virtual_replicas",
)


@dataclass(frozen=True, kw_only=True)
class TrainArguments:
    """The settings of a call of ``train``, as the caller gave them (see there)."""

    steps: int
    micro_batches: int
    optimizer: str | OptimizerSpec | OptimizerFactory | torch.optim.Optimizer
    lr: float | None
    lr_schedule: str | ScheduleSpec | Schedule
    clip_norm: float | None
    precision: str
    workers: int | None
    ticket: str | None
    planner: str | PlanSpec
    codec: str | CodecSpec
    replicas: int | None
    sync: str | SyncSpec
    seed: int
    evaluation: Evaluation | None
    folder: str | Path | None
    checkpoint: CheckpointSpec | None
    resume: str | Path | None
    job: JobSpec | None
    topology: Topology | str | Path | None = None
    report: Targets = field(default_factory=Targets)


#: Argument -> types that it may have, and how an error names them. Numbers and texts are checked with the job.
_TYPES: dict[str, tuple[tuple[type, ...], str]] = {
    "ticket": ((str, NoneType), "the text of a ticket"),
    "planner": ((str, PlanSpec), "a name or a PlanSpec"),
    "codec": ((str, CodecSpec), "a name or a CodecSpec"),
    "sync": ((str, SyncSpec), "a name or a SyncSpec"),
    "topology": ((str, Path, Topology, NoneType), "a Topology, the name of a preset, or the path of a file"),
    "folder": ((str, Path, NoneType), "a path"),
    "checkpoint": ((CheckpointSpec, NoneType), "a CheckpointSpec, such as CheckpointSpec(every=100)"),
    "resume": ((str, Path, NoneType), "the name or the path of a run"),
    "job": ((JobSpec, NoneType), 'a JobSpec, such as JobSpec(on_nan="skip")'),
}


def check_types(given: TrainArguments, functions: Mapping[str, object]) -> None:
    """Whether each argument has a type that ``train`` takes; ``functions``: those that are called, by name.

    Raises:
        InputError: one has another type.
    """
    for name, function in functions.items():
        if not callable(function):
            raise InputError(f"{name}={shown(function)} can't be called: pass {_FUNCTIONS[name]}")
    for name, (types, wanted) in _TYPES.items():
        value = getattr(given, name)
        if not isinstance(value, types):
            raise InputError(f"{name}={shown(value)} is of the type {type(value).__name__}: pass {wanted}")
    if not isinstance(given.lr_schedule, (str, ScheduleSpec)) and not callable(given.lr_schedule):
        raise InputError(
            f"lr_schedule={shown(given.lr_schedule)} is of the type {type(given.lr_schedule).__name__}: pass a name, a "
            "ScheduleSpec, a function of the step, or a function of the optimizer that makes a scheduler"
        )
    for name, number in (("lr", given.lr), ("clip_norm", given.clip_norm)):
        if number is not None and (isinstance(number, bool) or not isinstance(number, (int, float))):
            raise InputError(f"{name}={number!r:.80}: must be a number")


def one_of(name: str, value: Any, other: str, former: Any, default: Any = None) -> Any:
    """The value of an argument that has two names.

    Raises:
        InputError: both are given.
    """
    if value is not None and former is not None:
        raise InputError(f"{other} is another name of {name}, and both are given: remove {other}")
    found = former if value is None else value
    return default if found is None else found


def brought_by(given: TrainArguments) -> Given:
    """What the caller passed that no job can name."""
    named = isinstance(given.optimizer, (str, OptimizerSpec))
    schedule = given.lr_schedule
    return Given(
        optimizer=None if named else given.optimizer,
        schedule=None if isinstance(schedule, (str, ScheduleSpec)) else schedule,
    )


def job_of(given: TrainArguments, threads: int) -> JobSpec:
    """The job that ``given`` describes; its micro-batches have one sample until the first batch is known.

    Raises:
        InputError: an argument is out of range or unknown, or two arguments exclude each other.
    """
    for name, value in (("steps", given.steps), ("micro_batches", given.micro_batches)):
        _at_least_one(name, value)
    for name, count in (("workers", given.workers), ("replicas", given.replicas)):
        if count is not None:
            _at_least_one(name, count)
    document = _further(given.job)
    document |= {
        "name": document.get("name", "train"),
        "seed": given.seed,
        "steps": given.steps,
        "micro_batch_sizes": (1,) * given.micro_batches,
        "weighting": "equal",
        "precision": given.precision,
        "threads": threads,
        "workers": given.workers if given.ticket is not None else None,
        "optimizer": _optimizer(given),
        "schedule": {} if callable(given.lr_schedule) else _spec(given.lr_schedule, "name"),
        "codec": _spec(given.codec, "name"),
        "plan": _plan(given),
        "sync": _spec(given.sync, "strategy"),
        "checkpoint": _checkpoint(given),
        "report": given.report.spec
        if given.ticket is None
        else ReportSpec(),  # with a ticket this process reports, not the broker
    }
    try:
        job = JobSpec.model_validate(document)
    except ValidationError as error:
        raise InputError(explain(error, JobSpec)) from None
    if job.sync.strategy != "exact":
        get_strategy(job.sync.strategy)  # an unknown name is said before what it needs
    check_job(job)
    return job


def _at_least_one(name: str, value: object) -> None:
    if type(value) is not int:
        raise InputError(f"{name} must be a whole number, got {value!r}")
    if value < 1:
        raise InputError(f"{name} must be at least 1, got {value}")


def topology_of(given: TrainArguments) -> Topology:
    """The devices and links of a training in this process.

    Raises:
        InputError: ``topology`` is no preset and no topology file, or excludes another argument.
    """
    chosen = given.topology
    if chosen is None:
        return Topology.preset(f"homogeneous-{given.workers or DEFAULT_WORKERS}")
    if given.workers is not None:
        raise InputError(f"workers={given.workers} beside topology, which has its own machines: remove workers")
    if given.ticket is not None:
        raise InputError("topology with a ticket: the broker measures the links of its workers; remove topology")
    if isinstance(chosen, Topology):
        return chosen
    text = str(chosen)
    return Topology.from_toml(text) if text.endswith((".toml", ".json")) or "/" in text else Topology.preset(text)


def _further(job: JobSpec | None) -> dict[str, Any]:
    if job is None:
        return {}
    wrong = sorted(job.model_fields_set - set(_FURTHER))
    if wrong:
        raise InputError(
            f"job=JobSpec({wrong[0]}=...) is not allowed here: job takes only settings that train has no argument for, such as "
            f"on_nan; pass {wrong[0]} as an argument of train"
        )
    return {name: getattr(job, name) for name in job.model_fields_set}


def _optimizer(given: TrainArguments) -> dict[str, Any]:
    optimizer, lr, clip_norm = given.optimizer, given.lr, given.clip_norm
    if isinstance(optimizer, OptimizerSpec):
        if lr is not None:
            raise InputError(
                f"lr={lr:g} beside optimizer=OptimizerSpec(...), which has its own lr ({optimizer.lr:g}): set it there, as in "
                f"OptimizerSpec(name={optimizer.name!r}, lr={lr:g}), and remove lr"
            )
        found = optimizer.model_dump(exclude_unset=True)
        if clip_norm is not None and optimizer.clip_norm is not None:
            raise InputError(
                f"clip_norm={clip_norm:g} beside OptimizerSpec(clip_norm={optimizer.clip_norm:g}): remove one of them"
            )
    elif isinstance(optimizer, str):
        if optimizer not in NAMED:
            known = known_names(optimizer, sorted(NAMED))
            raise InputError(f"unknown optimizer {optimizer!r}: {known}; or pass a function that makes one")
        found = {"name": optimizer, "lr": DEFAULT_LR if lr is None else lr}
    elif callable(optimizer) or hasattr(optimizer, "param_groups"):
        if lr is not None:
            raise InputError(f"lr={lr:g} beside an optimizer that has its own: set it there, and remove lr")
        found = {"name": CAPTURED}
    else:
        raise InputError(
            f"optimizer={shown(optimizer)} can't be used: pass a name, an OptimizerSpec, or a function that makes one"
        )
    return found if clip_norm is None else {**found, "clip_norm": clip_norm}


def _spec(value: object, key: str) -> object:
    """A name as the spec with this name; a spec as it is."""
    return {key: value} if isinstance(value, str) else value


def _plan(given: TrainArguments) -> dict[str, Any]:
    if isinstance(given.planner, str):
        return {"planner": given.planner, "replicas": given.replicas or 1}
    found = given.planner.model_dump(exclude_unset=True)
    if given.replicas is not None:
        if "replicas" in found:
            raise InputError(f"replicas={given.replicas} beside PlanSpec(replicas={given.planner.replicas}): remove one of them")
        found["replicas"] = given.replicas
    return {"planner": "equal_compute", **found}


def _checkpoint(given: TrainArguments) -> dict[str, Any]:
    found: dict[str, Any] = {} if given.checkpoint is None else given.checkpoint.model_dump(exclude_unset=True)
    if given.resume is not None:
        if not str(given.resume):
            remedy = "that run wrote none: pass folder=... to it" if given.ticket is None else "pass the name of a run"
            raise InputError(f"resume={given.resume!r} names no checkpoint; {remedy}")
        if found.get("resume"):
            raise InputError(f"resume={str(given.resume)!r} beside CheckpointSpec(resume=...): remove one of them")
        found["resume"] = str(given.resume)
    if given.ticket is not None:
        if given.folder is not None:
            raise InputError(
                f"folder={str(given.folder)!r} with a ticket: the broker keeps the run's folder on its machine; remove folder "
                "(checkpoint=CheckpointSpec(every=...) says when it writes checkpoints)"
            )
        return {**found, "at_end": True}  # the broker's last checkpoint is where the result comes from
    if given.folder is None and found.get("every"):
        raise InputError(
            f"checkpoint=CheckpointSpec(every={found['every']}) without a folder: add folder='runs/name', where checkpoints go"
        )
    return found
