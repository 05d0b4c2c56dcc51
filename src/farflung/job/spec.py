"""The job: everything that decides what is computed, and nothing that decides where.

A job file is TOML; these models read it (unknown keys are refused by name) and travel as JSON. The same models serve
``farflung.train``, so that a file and a call mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from farflung.errors import InputError
from farflung.job.explain import explain
from farflung.units import Bytes, Quantity, Seconds

__all__ = [
    "CheckpointSpec",
    "CodecSpec",
    "DataSpec",
    "EvaluateSpec",
    "GenerateSpec",
    "GroupSpec",
    "JobSpec",
    "LimitSpec",
    "ModelSpec",
    "OpenSpec",
    "OptimizerSpec",
    "PlanSpec",
    "ReportSpec",
    "ScheduleSpec",
    "SyncSpec",
    "TrafficSpec",
    "WeightsSpec",
]

#: What is counted: more than 10^9 of anything is a slip of the pen, and no size that PyTorch takes.
Count = Annotated[int, Field(ge=1, le=10**9)]
Ratio = Annotated[float, Field(ge=1.0)]
#: A name that a person reads.
Label = Annotated[str, Field(min_length=1, max_length=128)]


def _read(quantity: type[Quantity]) -> Callable[[object], object]:
    """A text with a unit as a number of base units; what is none is left to be refused."""

    def read(value: object) -> object:
        try:
            return float(quantity.parse(value)) if isinstance(value, str) else value
        except InputError:
            return value

    return read


def _one_or_more(value: object) -> object:
    """A text as the only item of a tuple; what is no list is left to be refused."""
    if isinstance(value, str):
        return (value,)
    return tuple(value) if isinstance(value, list) else value


if TYPE_CHECKING:  # type checkers read the fields of the sections
    _Model = BaseModel
else:

    class _OneLine(type(BaseModel)):
        """Calls of a section raise the one clear line of a job file; sections inside of others are not called."""

        def __call__(cls, *args: Any, **values: Any) -> Any:
            try:
                return super().__call__(*args, **values)
            except ValidationError as error:
                raise InputError(f"{cls.__name__}: {explain(error, cls)}") from None

    class _Model(BaseModel, metaclass=_OneLine):
        """A section of a job file."""


class _Section(_Model):
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class ModelSpec(_Section):
    """Where the model comes from; resolved on the submitting machine only.

    ``recipe`` names a built-in recipe, or ``path/to/file.py:factory`` a user's own; ``args`` are passed to it
    (``folder`` among them is a path).
    """

    recipe: str
    args: dict[str, int | float | bool | str | list[int] | None] = {}


class DataSpec(_Section):
    """What a placeholder is filled with, and from which files on the machine that reads it.

    ``kind``: ``text`` (files of text, tokenized), ``array`` (.npy files), ``images`` (folder per class), ``caller`` (a Python
    function of the process that submits). ``path`` may hold ``{stdlib}`` for the Python standard library's folder.
    ``fields`` says which field of the data fills a placeholder where the usual names don't (placeholder -> field).
    """

    kind: Literal["text", "array", "images", "caller"] = "caller"
    path: str = ""
    glob: str = "**/*"
    tokenizer: str = "bytes"
    sequence: Count = 128
    labels: str = ""
    size: Count = 32
    fields: dict[str, str] = {}
    eval_path: str = ""
    eval_fraction: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.05


class GroupSpec(_Section):
    """Settings for the parameters whose name matches ``match`` (a regular expression of RE2, searched); the first match wins."""

    match: str
    lr: Annotated[float, Field(ge=0.0)] | None = None
    weight_decay: Annotated[float, Field(ge=0.0)] | None = None
    frozen: bool = False


class OptimizerSpec(_Section):
    """The inner optimizer; defaults are those of ``torch.optim``.

    ``clip_by``: the step whose norm ``clip_norm`` holds gradients by; ``previous`` is for sync strategies that do not know all
    gradients in time. ``delayed``: gradients are applied one step late (hybrid plans; it changes the result).
    """

    name: Literal["sgd", "adamw"] = "sgd"
    lr: Annotated[float, Field(ge=0.0)] = 1e-3
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    weight_decay: Annotated[float, Field(ge=0.0)] | None = None
    groups: tuple[GroupSpec, ...] = ()
    clip_norm: Annotated[float, Field(gt=0.0)] | None = None
    clip_by: Literal["this", "previous"] = "this"
    delayed: bool = False


class ScheduleSpec(_Section):
    """Learning rate over steps: linear warm-up, then constant, cosine or linear decay to ``final`` times the rate."""

    name: Literal["constant", "cosine", "linear"] = "constant"
    warmup: Annotated[int, Field(ge=0)] = 0
    final: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0


class CodecSpec(_Section):
    """How values are compressed on the links.

    ``name``: a codec of ``farflung.codecs`` for every link, also with all its parameters (``lowrank:rank=8,values=int4``, as in
    ``sync.settings.codec``); ``adatopk`` (equation (7): per link by its slowness), or ``auto`` (per link and direction what is
    soonest there, with a relative error of at most ``error``).
    ``where``: ``slow`` leaves links dense whose transfers are short beside what bounds a micro-batch.
    ``memory``: what the ends of a link remember of each sample, for samples that come again: ``difference``, the value that the
    receiver had, of which only the change is sent; ``error_feedback``, what was dropped of its gradient; or ``both``. The tables
    of a machine take at most ``memory_bytes``.
    ``phase``: for ``auto``, which bears more error in ``fine-tuning`` than from ``scratch``; ``auto``: fine-tuning if weights
    come from a file.
    """

    name: str = "identity"
    ratio: Ratio = 100.0
    values: Literal["float32", "float16", "bfloat16", "int8", "int4"] = "float32"
    overhead: Annotated[float, Field(gt=0.0)] | None = None
    error: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    rounding: Literal["nearest", "stochastic"] = "nearest"
    rotate: bool = False
    where: Literal["all", "slow"] = "all"
    memory: Literal["none", "difference", "error_feedback", "both"] = "none"
    memory_bytes: Annotated[float, BeforeValidator(_read(Bytes)), Field(ge=1.0)] = 1e9
    phase: Literal["auto", "scratch", "fine-tuning"] = "auto"

    @property
    def family(self) -> str:
        """The name without parameters."""
        return self.name.partition(":")[0].strip()


class PlanSpec(_Section):
    """Wishes for the planner; whatever they are, the result is the same (invariant 1).

    ``schedule``: a pipeline order by name; ``auto`` takes 1F1B, or an eager one where links make stages wait and memory is there.
    ``replicas``: how many devices share the micro-batches of each stage. ``helpers``: unreliable workers get no stage; they help
    those that have one, and may go at any time (hybrid plans). ``duplicates``: there, who has nothing to do also computes what
    another one takes long for. ``again``: while it runs, the broker looks for a better plan when a worker has joined, when a
    device or a link has drifted, and every minute; ``auto``: only while that can pay off, so short runs keep their plan.
    """

    planner: str = "op_fence"
    schedule: Literal["auto", "gpipe", "1f1b", "eager-2", "eager-3", "eager-4"] = "1f1b"
    recompute: Literal["auto", "always", "never"] = "auto"
    replicas: Count = 1
    helpers: bool = False
    duplicates: bool = False
    again: bool | Literal["auto"] = "auto"


class TrafficSpec(_Section):
    """What a gigabyte costs that goes from region ``source`` to region ``target`` (``*``: any other region)."""

    source: str = "*"
    target: str = "*"
    gigabyte: Annotated[float, Field(ge=0.0)]


class LimitSpec(_Section):
    """What a plan must keep to, whichever planner makes it (``planners.constraints``); memory is kept to anyway.

    ``exclude``: devices or regions that get nothing. ``stages``, ``replicas`` (of a stage): at most. ``unreliable``: devices
    marked as unreliable are used as others are (``any``), not at all (``avoid``), or only beside a copy of the same stage on a
    reliable device (``backed``). ``data``: the devices or regions that own the data; stages that read inputs or labels run there
    (empty: anywhere). ``prices`` of traffic, and ``traffic``: what that of one step may cost at most.
    """

    exclude: tuple[str, ...] = ()
    stages: Count | None = None
    replicas: Count | None = None
    unreliable: Literal["any", "avoid", "backed"] = "any"
    data: tuple[str, ...] = ()
    prices: tuple[TrafficSpec, ...] = ()
    traffic: Annotated[float, Field(ge=0.0)] | None = None


class SyncSpec(_Section):
    """How the replicas of a stage agree, where a plan has some.

    ``strategy``: ``exact`` (gradients are summed in the job's order in every step; the result is that of one machine), or one of
    ``farflung.sync``, whose ``settings`` these are: then replicas are members of pipelines that train alone between exchanges.
    ``order`` of the sums of ``exact``: ``job`` (that of the job, wherever it runs), or ``any``: by sharded servers, a ring or a
    tree, whichever is soonest over the links of a stage's replicas; the result then differs by rounding from plan to plan.
    ``patience``: seconds after which an exchange ends without members whose values have not come (0: all are waited for), but not
    before ``quorum`` of them have; the weights of those that have come are divided by their sum.
    """

    strategy: str = "exact"
    order: Literal["job", "any"] = "job"
    patience: Annotated[float, BeforeValidator(_read(Seconds)), Field(ge=0.0)] = 0.0
    quorum: Count = 1
    settings: dict[str, int | float | bool | str | list[list[int]]] = {}


class OpenSpec(_Section):
    """What the planner ``auto`` may decide though it changes results; a job that runs has decided it.

    ``micro_batches``: the samples of a step may be divided otherwise, into micro-batches that are at most as large as the job's
    largest. ``strategies``: of ``farflung.sync``, with their default settings, that replicas may use beside ``sync.strategy``.
    """

    micro_batches: bool = False
    strategies: tuple[str, ...] = ()

    @property
    def anything(self) -> bool:
        """Whether something is to be decided."""
        return self.micro_batches or bool(self.strategies)


class WeightsSpec(_Section):
    """Where the first weights come from.

    ``init``: the recorded initializers, replayed where the weights live. ``file``: a safetensors file; ``home`` says whether
    it lies on every worker (``workers``) or is sent from the submitting machine (``submitter``).
    """

    source: Literal["init", "file"] = "init"
    path: str = ""
    home: Literal["workers", "submitter"] = "submitter"
    strict: bool = True


class CheckpointSpec(_Section):
    """When checkpoints are written and how many are kept; ``resume`` names the run or folder to go on from.

    ``keep``: how many of the newest stay; those at multiples of ``keep_every`` steps stay for good (0: none does).

    ``recover_every``: seconds after which one more is written, to recover from (0: none); the pause between them grows with what
    they take.
    """

    every: Annotated[int, Field(ge=0)] = 0
    recover_every: Annotated[float, Field(ge=0.0)] = 60.0
    keep: Count = 2
    keep_every: Annotated[int, Field(ge=0)] = 0
    at_end: bool = True
    resume: str = ""


class EvaluateSpec(_Section):
    """Evaluation through the same stages: ``every`` steps (0: at the end only) over ``batches`` micro-batches."""

    every: Annotated[int, Field(ge=0)] = 0
    batches: Annotated[int, Field(ge=0)] = 0


class GenerateSpec(_Section):
    """Text generated at the end through the same stages (0 tokens: none)."""

    prompt: str = ""
    tokens: Annotated[int, Field(ge=0)] = 0
    temperature: Annotated[float, Field(ge=0.0)] = 0.8


class ReportSpec(_Section):
    """Experiment trackers to which a run is reported while it trains.

    ``to``: names of trackers (``csv``, ``tensorboard``, ``wandb``, ``mlflow``, ``trackio``, or a plug-in's). ``project``: a
    project of Weights & Biases or trackio, an experiment of MLflow. ``name``: of the run there (empty: the job's name and the
    run's). ``every``: of the training steps, every so many are reported. ``offline``: Weights & Biases writes to disk only.
    Keys and addresses of servers are no settings: trackers read them from the environment of the process that reports.
    """

    to: Annotated[tuple[str, ...], BeforeValidator(_one_or_more)] = ()
    project: Label = "farflung"
    name: Annotated[str, Field(max_length=128)] = ""
    group: Annotated[str, Field(max_length=128)] = ""
    tags: Annotated[tuple[Label, ...], Field(max_length=32)] = ()
    every: Count = 1
    offline: bool = False


class JobSpec(_Section):
    """A whole job.

    ``micro_batch_sizes``: samples of each micro-batch of a step (they may differ); gradients are the mean weighted by
    samples (``weighting="samples"``) or the plain mean over micro-batches (``"equal"``).
    ``virtual_replicas``: in how many runs of micro-batches gradients are summed before these sums are added up in order, an
    order that belongs to the job wherever it runs; replicas of a stage hold whole ones. None: as many as micro-batches, which
    is the order of a plain loop.
    ``threads``: intra-operator threads, part of invariant 1. ``on_nan``: what a loss that is not a number does.
    ``on_loss``: what the loss of a worker does: the run goes on from what the others hold, or its newest checkpoint; or it ends.
    ``recoveries``: how many losses in a row, without a new step between them, end the run all the same.
    ``copies``: how many other machines keep a copy of each stage's state (0: none; ``auto``: one for each stage without a
    replica, where there is memory for it). ``copy_every``: steps between copies (None: chosen from links, step time and
    ``mtbf_hours``, after how many hours one machine is expected to die).
    """

    name: str = "job"
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    steps: Count = 1
    micro_batch_sizes: tuple[Count, ...] = (1,)
    weighting: Literal["samples", "equal"] = "samples"
    virtual_replicas: Count | None = None
    precision: Literal["float32", "bf16"] = "float32"
    threads: Count = 1
    on_nan: Literal["stop", "skip", "rollback"] = "stop"
    on_loss: Literal["recover", "stop"] = "recover"
    recoveries: Count = 8
    copies: Annotated[int, Field(ge=0, le=8)] | Literal["auto"] = "auto"
    copy_every: Count | None = None
    mtbf_hours: Annotated[float, Field(gt=0.0)] = 4.0
    workers: Count | None = None
    model: ModelSpec | None = None
    data: DataSpec = DataSpec()
    weights: WeightsSpec = WeightsSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    codec: CodecSpec = CodecSpec()
    plan: PlanSpec = PlanSpec()
    limits: LimitSpec = LimitSpec()
    sync: SyncSpec = SyncSpec()
    open: OpenSpec = OpenSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    evaluate: EvaluateSpec = EvaluateSpec()
    generate: GenerateSpec = GenerateSpec()
    report: ReportSpec = ReportSpec()

    @property
    def most_recoveries(self) -> int:
        """Losses in a row that the run survives."""
        return self.recoveries if self.on_loss == "recover" else 0

    @property
    def recover_seconds(self) -> float:
        """Seconds between checkpoints that are written to recover from (0: none).

        A rollback goes back to the newest checkpoint, so there the clock must not decide when one is written.
        """
        return self.checkpoint.recover_every if self.on_loss == "recover" and self.on_nan != "rollback" else 0.0

    @property
    def micro_batches(self) -> int:
        """Micro-batches per step."""
        return len(self.micro_batch_sizes)

    @property
    def virtual_ends(self) -> tuple[int, ...]:
        """Where each virtual replica's micro-batches end (exclusive), ascending."""
        parts = self.virtual_replicas or self.micro_batches
        return tuple((index + 1) * self.micro_batches // parts for index in range(parts))

    def weight(self, micro_batch: int) -> float:
        """The factor of micro-batch ``micro_batch`` in the mean of losses and gradients."""
        if self.weighting == "equal":
            return 1.0 / self.micro_batches
        return self.micro_batch_sizes[micro_batch] / sum(self.micro_batch_sizes)
