"""The job: everything that decides what is computed, and nothing that decides where.

A job file is TOML; these models read it (unknown keys are refused by name) and travel as JSON. The same models serve
``farflung.train``, so that a file and a call mean the same. ``scripts/reference.py`` writes ``docs/reference/job.md`` from
the docstring of each section and the comment ``#:`` above each key.
"""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from farflung.job.data_spec import DataSpec, ImageSpec, MixtureSpec
from farflung.job.engine_ranges import engine_range
from farflung.job.optimizer_names import OptimizerName
from farflung.job.section import Count, Label, Ratio, Section, one_or_more, quantity
from farflung.units import Bytes, Seconds

__all__ = [
    "CheckpointSpec",
    "CodecSpec",
    "CurveSpec",
    "DataSpec",
    "EvaluateSpec",
    "GenerateSpec",
    "GroupSpec",
    "ImageSpec",
    "JobSpec",
    "LimitSpec",
    "LossScaleSpec",
    "MixtureSpec",
    "ModelSpec",
    "OpenSpec",
    "OptimizerSpec",
    "PlanSpec",
    "ReportSpec",
    "ScheduleSpec",
    "Setting",
    "SyncSpec",
    "TrafficSpec",
    "WeightsSpec",
]


class ModelSpec(Section):
    """The model. Only the submitting machine reads this section."""

    #: A built-in recipe, or `path/to/file.py:function` for a model of your own.
    recipe: str
    #: Arguments of the recipe. `folder` is a path.
    args: dict[str, int | float | bool | str | list[int] | None] = {}


#: Settings of an optimizer beside those with a key of their own.
OptimizerSettings = dict[str, int | float | bool | str | list[int | float] | None]


class GroupSpec(Section):
    """Settings for some parameters. The first group that matches a parameter applies."""

    #: A regular expression in RE2's syntax. It is searched in the names of parameters.
    match: str = ""
    #: The names of the parameters, instead of `match`.
    names: tuple[str, ...] = ()
    #: The learning rate of these parameters.
    lr: Annotated[float, Field(ge=0.0)] | None = None
    #: The weight decay of these parameters.
    weight_decay: Annotated[float, Field(ge=0.0)] | None = None
    #: Do not train these parameters.
    frozen: bool = False
    #: Another optimizer for these parameters. Without a value: that of `optimizer.name`, with its settings.
    name: OptimizerName | None = None
    #: Settings of these parameters' optimizer.
    settings: OptimizerSettings = {}


class OptimizerSpec(Section):
    """The optimizer. Defaults are those of `torch.optim`."""

    #: The algorithm. `captured` is the optimizer that the caller's own code made.
    name: OptimizerName = "sgd"
    #: Learning rate.
    lr: Annotated[float, Field(ge=0.0)] = 1e-3
    #: Momentum of `sgd`.
    momentum: Annotated[float, Field(ge=0.0, lt=1.0)] = 0.0
    #: Nesterov momentum of `sgd`.
    nesterov: bool = False
    #: Decay rates of the moments of `adamw`.
    betas: tuple[float, float] = (0.9, 0.999)
    #: Added to the denominator of `adamw`.
    eps: Annotated[float, Field(gt=0.0)] = 1e-8
    #: Weight decay. Without a value: the default of PyTorch for this optimizer.
    weight_decay: Annotated[float, Field(ge=0.0)] | None = None
    #: Further settings of the optimizer, by PyTorch's names (`{rho = 0.9}` for `adadelta`).
    settings: OptimizerSettings = {}
    #: Settings for some of the parameters.
    groups: tuple[GroupSpec, ...] = ()
    #: The precision of optimizer state between steps. `bf16` halves its memory, and `8bit` leaves a quarter of it. Both round the
    #: state after each step.
    state: Literal["float32", "bf16", "8bit"] = "float32"
    #: How parameters in bfloat16 or float16 are updated. `plain`: in their own type, as `torch.optim` does. `master`: as float32
    #: copies that the optimizer stores. `stochastic`: in float32, then rounded up or down at random (bfloat16 only).
    update: Literal["plain", "master", "stochastic"] = "plain"
    #: The largest global norm of the gradients, over all stages.
    clip_norm: Annotated[float, Field(gt=0.0)] | None = None
    #: The step whose norm is compared with `clip_norm`. Some sync strategies know only the norm of the `previous` step in time.
    clip_by: Literal["this", "previous"] = "this"
    #: Apply gradients one step late. This hides the transfer of parameters to helpers, and changes the result.
    delayed: bool = False
    #: The update as data. The submitting process writes it.
    rules: Annotated[str, Field(max_length=1 << 20)] = ""

    def __hash__(self) -> int:  # settings are not hashable
        return hash((self.name, self.lr, self.rules, self.state, len(self.groups)))


#: Settings of an optimizer that a schedule can set.
Setting = Literal["lr", "momentum", "weight_decay"]


class CurveSpec(Section):
    """A value over the steps, as factors of the optimizer's value: a linear warm-up, then the curve."""

    #: The curve. `wsd` stays constant and decays linearly in its last steps. `one_cycle` rises during `warmup` along a cosine and
    #: then falls along a cosine. `inverse_sqrt` falls with the root of the step.
    name: Literal["constant", "cosine", "linear", "wsd", "one_cycle", "inverse_sqrt"] = "constant"
    #: Steps of warm-up. For `one_cycle`, 0 stands for 30 % of the steps.
    warmup: Annotated[int, Field(ge=0)] = 0
    #: The factor at the last step.
    final: Annotated[float, Field(ge=0.0)] = 0.0
    #: The last steps, in which `wsd` decays. 0: a tenth of the steps.
    decay: Annotated[int, Field(ge=0)] = 0


class ScheduleSpec(Section):
    """The learning rate over the steps: a linear warm-up, then the curve. Momentum and weight decay can have curves as well."""

    #: The curve. `wsd` stays constant and decays linearly in its last steps. `one_cycle` rises during `warmup` along a cosine and
    #: then falls along a cosine. `inverse_sqrt` falls with the root of the step. `values`: set by a call of `farflung.train`.
    name: Literal["constant", "cosine", "linear", "wsd", "one_cycle", "inverse_sqrt", "values"] = "constant"
    #: Steps of linear warm-up. For `one_cycle`, 0 stands for 30 % of the steps.
    warmup: Annotated[int, Field(ge=0)] = 0
    #: The factor of the learning rate at the last step.
    final: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0
    #: The last steps, in which `wsd` decays. 0: a tenth of the steps.
    decay: Annotated[int, Field(ge=0)] = 0
    #: The momentum over the steps (the first of `betas` of optimizers that have them).
    momentum: CurveSpec | None = None
    #: The weight decay over the steps.
    weight_decay: CurveSpec | None = None
    #: Values of each step and group. The submitting process writes them.
    values: dict[Setting, Annotated[str, Field(max_length=8 << 20)]] = {}


class LossScaleSpec(Section):
    """The factor of the loss with `precision = "fp16"`, as in `torch.amp.GradScaler`. The factors are powers of 2."""

    #: The first factor.
    initial: Annotated[float, Field(ge=1.0, le=2.0**24)] = 65536.0
    #: Multiplies the factor after `every` steps without an overflow.
    growth: Annotated[float, Field(ge=1.0, le=2.0**16)] = 2.0
    #: Multiplies the factor after an overflow. The step is skipped.
    backoff: Annotated[float, Field(ge=2.0**-16, lt=1.0)] = 0.5
    #: Steps in a row without an overflow after which the factor grows.
    every: Count = 2000


class CodecSpec(Section):
    """The compression of values on the links between stages. A key that has no meaning for the codec is an error."""

    #: A codec, also with parameters (`lowrank:rank=8`). `adatopk`: top-k, with a ratio by link. `auto`: the fastest by link.
    name: str = "identity"
    #: Elements for each element that `topk`, `randomk` or `adatopk` sends. For `adatopk`: before the factor of equation (7).
    ratio: Ratio = 100.0
    #: The widest type of the values that top-k and random-k send.
    values: Literal["float32", "float16", "bfloat16", "int8", "int4"] = "float32"
    #: How top-k sends positions. `compact`: entropy-coded. `paper`: 8 bytes for each element, as in FusionLLM.
    format: Literal["compact", "paper"] = "compact"
    #: Words for each element that top-k sends, in equation (7). Without a value: measured. The paper uses 3.
    overhead: Annotated[float, Field(gt=0.0)] | None = None
    #: The largest relative error (2-norm) of a codec that `auto` may choose for forward values, from scratch.
    error: Annotated[float, Field(ge=0.0, le=1.0)] = 0.2
    #: The rounding of quantizers. `stochastic` is unbiased.
    rounding: Literal["nearest", "stochastic"] = "nearest"
    #: Spread outliers before quantization.
    rotate: bool = False
    #: Where values are encoded. `device`: where they are computed, if the engine has the codec. `host`: on the CPU, while the
    #: stage computes on. `auto`: `device` on an accelerator, else `host`. The payloads are the same.
    encoder: Literal["auto", "host", "device"] = "auto"
    #: `slow`: compress only links whose transfers take more than half of the time that bounds a micro-batch.
    where: Literal["all", "slow"] = "all"
    #: The sample cache of a link. `difference`: send only the change of a sample's value since the last epoch. `error_feedback`:
    #: add what the codec dropped from a sample's gradient to its next gradient.
    memory: Literal["none", "difference", "error_feedback", "both"] = "none"
    #: The largest sample cache of one machine, in bytes or as `"2 GB"`.
    memory_bytes: Annotated[float, BeforeValidator(quantity(Bytes)), Field(ge=1.0)] = 1e9
    #: For `auto`. `fine-tuning` tolerates more error than training from `scratch`. `auto`: fine-tuning with weights of a file.
    phase: Literal["auto", "scratch", "fine-tuning"] = "auto"

    @property
    def family(self) -> str:
        """The name without parameters."""
        return self.name.partition(":")[0].strip()


class PlanSpec(Section):
    """Settings of the planner. Only `shard = "tensor"`, and several replicas with a sync strategy, change the result."""

    #: The planner.
    planner: str = "op_fence"
    #: The order of a pipeline's actions. `eager-N`: more forwards ahead, with up to N times the activations of `1f1b`.
    #: `interleaved-N`: each device has N stages, which shortens the start and the end of a step and sends N times the values.
    #: `zb-h1`: backwards return the gradients of values before they compute those of parameters. `auto`: `1f1b` or the eager
    #: order with the shortest predicted step that fits into memory.
    schedule: Literal[
        "auto", "gpipe", "1f1b", "eager-2", "eager-3", "eager-4", "interleaved-2", "interleaved-3", "interleaved-4", "zb-h1"
    ] = "auto"
    #: Compute the forward of a stage again in its backward, to save memory. `auto`: where memory requires it.
    recompute: Literal["auto", "always", "never"] = "auto"
    #: Store optimizer states on the disks that workers offer, and read them for each update. `auto`: where memory requires it.
    offload: Literal["auto", "none", "optimizer"] = "auto"
    #: Divide the parameters of a stage among the ranks of its site, which collect those of a block before it computes. `auto`:
    #: where memory requires it. `tensor`: the ranks compute each micro-batch together (tensor parallelism). Results then differ
    #: by rounding.
    shard: Literal["auto", "none", "parameters", "tensor"] = "auto"
    #: The number of devices that share the micro-batches of each stage. With 1, some planners decide themselves.
    replicas: Count = 1
    #: Give unreliable workers no stage. They help the workers that have one, and may leave at any time.
    helpers: bool = False
    #: With `helpers`: idle workers also compute what a slow helper has not finished.
    duplicates: bool = False
    #: Look for a better plan during the run. `auto`: only while at least 30 s of the run remain.
    again: bool | Literal["auto"] = "auto"

    @property
    def base_schedule(self) -> str:
        """The schedule that planners place stages for: ``schedule``, or ``1f1b`` if that is ``auto``."""
        return "1f1b" if self.schedule == "auto" else self.schedule


class TrafficSpec(Section):
    """The price of traffic between two regions."""

    #: The sending region. `*`: any other region.
    source: str = "*"
    #: The receiving region. `*`: any other region.
    target: str = "*"
    #: The price of a gigabyte.
    gigabyte: Annotated[float, Field(ge=0.0)]


class LimitSpec(Section):
    """Limits of a plan, for every planner. The memory of devices is always a limit."""

    #: Devices or regions that get no work.
    exclude: tuple[str, ...] = ()
    #: Engines that get work, each perhaps with a range of versions, such as `torch==2.13.*`. Empty: all.
    engines: tuple[Annotated[str, AfterValidator(engine_range)], ...] = ()
    #: The largest number of stages.
    stages: Count | None = None
    #: The largest number of devices that share a stage.
    replicas: Count | None = None
    #: Unreliable devices: use them like others (`any`), not at all (`avoid`), or only beside a reliable one (`backed`).
    unreliable: Literal["any", "avoid", "backed"] = "any"
    #: Devices or regions that own the data. Stages that read inputs or labels run there.
    data: tuple[str, ...] = ()
    #: Prices of traffic between regions. The most specific entry counts.
    prices: tuple[TrafficSpec, ...] = ()
    #: The largest price of the traffic of one step.
    traffic: Annotated[float, Field(ge=0.0)] | None = None


class SyncSpec(Section):
    """The synchronization of the replicas of a stage, if `plan.replicas` is above 1."""

    #: `exact`: sum gradients in the job's order in every step. Others: replicas are pipelines that exchange what they define.
    strategy: str = "exact"
    #: The order of the sums of `exact`. `any`: servers, a ring or a tree, whichever is fastest. Results then differ by rounding.
    order: Literal["job", "any"] = "job"
    #: The time after which an exchange ends without the missing members, in seconds or as `"2 s"`. 0: wait for all members.
    patience: Annotated[float, BeforeValidator(quantity(Seconds)), Field(ge=0.0)] = 0.0
    #: The smallest number of members in an exchange.
    quorum: Count = 1
    #: Settings of the strategy.
    settings: dict[str, int | float | bool | str | list[list[int]]] = {}


class OpenSpec(Section):
    """Questions that the planner `auto` may decide although they change results. `farflung submit` accepts no open question."""

    #: Divide the samples of a step into other micro-batches, at most as large as the job's largest one.
    micro_batches: bool = False
    #: Sync strategies that replicas may use beside `sync.strategy`, with their default settings.
    strategies: tuple[str, ...] = ()

    @property
    def anything(self) -> bool:
        """Whether something is to be decided."""
        return self.micro_batches or bool(self.strategies)


class WeightsSpec(Section):
    """The initial weights."""

    #: `init`: replay the initializers of the model where the weights live. `file`: read safetensors.
    source: Literal["init", "file"] = "init"
    #: A safetensors file, or a folder with such files, or its URL (`https://...`, `s3://...`).
    path: str = ""
    #: `submitter`: the submitting machine sends the file. `workers`: every worker reads its own copy.
    home: Literal["workers", "submitter"] = "submitter"
    #: Refuse a file that lacks weights. If false, initialize the missing weights.
    strict: bool = True
    #: How states are made from tensors of the files. The submitting process writes it.
    sources: Annotated[str, Field(max_length=16 << 20)] = ""


class CheckpointSpec(Section):
    """Checkpoints."""

    #: Steps between checkpoints. 0: none except the last.
    every: Annotated[int, Field(ge=0)] = 0
    #: Seconds between checkpoints for recovery. 0: none. The pause grows to 33 times the time that a checkpoint takes.
    recover_every: Annotated[float, Field(ge=0.0)] = 60.0
    #: The number of checkpoints to keep.
    keep: Count = 2
    #: Also keep checkpoints at multiples of this number of steps. 0: none.
    keep_every: Annotated[int, Field(ge=0)] = 0
    #: Write a checkpoint at the end of the run.
    at_end: bool = True
    #: Continue from this run, or from this folder on the broker's machine.
    resume: str = ""


class EvaluateSpec(Section):
    """Evaluation, through the same stages."""

    #: Steps between evaluations. 0: only at the end.
    every: Annotated[int, Field(ge=0)] = 0
    #: In place of `every`: micro-batches of training between evaluations, such as those of an epoch. 0: use `every`.
    every_batches: Annotated[int, Field(ge=0)] = 0
    #: Micro-batches of each evaluation. 0: no evaluation.
    batches: Annotated[int, Field(ge=0)] = 0


class GenerateSpec(Section):
    """Text that the model generates at the end of the run, through the same stages."""

    #: The beginning of the text.
    prompt: str = ""
    #: The number of tokens. 0: no text.
    tokens: Annotated[int, Field(ge=0)] = 0
    #: Divides the logits. 0: always take the most likely token.
    temperature: Annotated[float, Field(ge=0.0)] = 0.8


class ReportSpec(Section):
    """Experiment trackers that receive the metrics of a run while it trains.

    Keys and server addresses are no settings. Trackers read them from the environment of the reporting process.
    """

    #: The trackers: `csv`, `tensorboard`, `wandb`, `mlflow`, `trackio`, or the name of a plug-in.
    to: Annotated[tuple[str, ...], BeforeValidator(one_or_more)] = ()
    #: The project of Weights & Biases or trackio, or the experiment of MLflow.
    project: Label = "farflung"
    #: The name of the run in the tracker. Without a value: the names of job and run.
    name: Annotated[str, Field(max_length=128)] = ""
    #: The group of the run in the tracker.
    group: Annotated[str, Field(max_length=128)] = ""
    #: Tags of the run in the tracker.
    tags: Annotated[tuple[Label, ...], Field(max_length=32)] = ()
    #: Report one of this number of training steps, and every evaluation.
    every: Count = 1
    #: Weights & Biases writes to disk only. `wandb sync` sends the run later.
    offline: bool = False


class VerifySpec(Section):
    """Verification: replicas compute a share of the work of other replicas again and compare it bit by bit."""

    #: The share of the work that is computed again. 0: none.
    share: Annotated[float, Field(ge=0.0, le=1.0)] = 0.0


class JobSpec(Section):
    """A whole job."""

    #: A name for people.
    name: str = "job"
    #: The key of every random number, together with the step, the micro-batch and the operator.
    seed: Annotated[int, Field(ge=0, lt=2**63)] = 0
    #: Optimizer steps.
    steps: Count = 1
    #: Samples in each micro-batch of a step, 4096 micro-batches at most. The sizes may differ.
    micro_batch_sizes: Annotated[tuple[Count, ...], Field(max_length=4096)] = (1,)
    #: Gradients are the mean over all samples of a step (`samples`), or the mean of the micro-batches (`equal`).
    weighting: Literal["samples", "equal"] = "samples"
    #: The number of groups of consecutive micro-batches. Gradients are summed inside a group, then group by group. Each replica
    #: gets whole groups. Without a value: one group for each micro-batch, which is the order of a plain loop.
    virtual_replicas: Count | None = None
    #: `bf16`, `fp16`: multiply in bfloat16 or float16 under autocast. Weights and optimizer stay float32. `fp16` scales the loss.
    precision: Literal["float32", "bf16", "fp16"] = "float32"
    #: Threads inside an operator, on every worker, 1024 at most. Bit-equal results need equal threads.
    threads: Annotated[int, Field(ge=1, le=1024)] = 1
    #: If the loss is not a number: end the run (`stop`), drop the step (`skip`), or return to the last checkpoint and continue
    #: with the data of the next step (`rollback`).
    on_nan: Literal["stop", "skip", "rollback"] = "stop"
    #: If a worker is lost: continue without it (`recover`), or end the run (`stop`).
    on_loss: Literal["recover", "stop"] = "recover"
    #: The run fails after more than this number of consecutive worker losses without a completed step.
    recoveries: Count = 8
    #: Other machines of the plan that store a copy of each stage's state. `auto`: one, if memory allows and it has no replica.
    copies: Annotated[int, Field(ge=0, le=8)] | Literal["auto"] = "auto"
    #: Steps between two copies. Without a value: chosen from links, step time and `mtbf_hours`.
    copy_every: Count | None = None
    #: Default mean time between failures of a machine, in hours.
    mtbf_hours: Annotated[float, Field(gt=0.0)] = 4.0
    #: The number of workers to wait for and to use. Without a value: all idle workers.
    workers: Count | None = None
    model: ModelSpec | None = None
    data: DataSpec = DataSpec()
    weights: WeightsSpec = WeightsSpec()
    optimizer: OptimizerSpec = OptimizerSpec()
    schedule: ScheduleSpec = ScheduleSpec()
    loss_scale: LossScaleSpec = LossScaleSpec()
    codec: CodecSpec = CodecSpec()
    plan: PlanSpec = PlanSpec()
    limits: LimitSpec = LimitSpec()
    sync: SyncSpec = SyncSpec()
    open: OpenSpec = OpenSpec()
    checkpoint: CheckpointSpec = CheckpointSpec()
    evaluate: EvaluateSpec = EvaluateSpec()
    generate: GenerateSpec = GenerateSpec()
    report: ReportSpec = ReportSpec()
    verify: VerifySpec = VerifySpec()

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
