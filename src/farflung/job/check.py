"""Rules between the fields of a job: what no single field can know."""

from __future__ import annotations

import math

from farflung.errors import InputError
from farflung.job.patterns import compile_pattern
from farflung.job.spec import CodecSpec, DataSpec, ImageSpec, JobSpec, LossScaleSpec, OpenSpec, OptimizerSpec, SyncSpec
from farflung.job.value_tables import read_values

__all__ = ["check_decided", "check_job", "decided"]


def check_job(job: JobSpec) -> None:
    """Refuse combinations that can't work or would be ignored in silence.

    Raises:
        InputError: a rule between fields is broken; the text says rule, values and remedy.
    """
    _check_run(job)
    _check_fed(job)
    _check_data(job.data)
    _check_optimizer(job.optimizer)
    _check_schedule(job)
    _check_weights(job)
    _check_codec(job)
    _check_sync(job)
    _check_helpers(job)
    _check_open(job)
    _check_verify(job)
    _check_loss_scale(job)
    _check_update(job)


def _check_update(job: JobSpec) -> None:
    """Parameters change in one place only: where the optimizer has their float32 copies."""
    update = job.optimizer.update
    rules = {
        f"sync.strategy = {job.sync.strategy!r}": (job.sync.strategy != "exact", "remove [sync]"),
        "optimizer.delayed = true": (job.optimizer.delayed, "remove it"),
    }
    for what, (broken, remedy) in rules.items():
        if broken and update != "plain":
            raise InputError(
                f"optimizer.update = {update!r} with {what}: only the optimizer may change parameters; {remedy}, or use 'plain'"
            )


def _check_loss_scale(job: JobSpec) -> None:
    """The scale is a power of 2: dividing by it is exact. ``sync.check_loss_scale`` says with which strategies it works."""
    given = job.loss_scale
    if job.precision != "fp16":
        if given != LossScaleSpec():
            raise InputError(f"[loss_scale] with precision = {job.precision!r}: it is for 'fp16' only; remove it")
        return
    for key in ("initial", "growth", "backoff"):
        if math.frexp(value := getattr(given, key))[0] != 0.5:
            raise InputError(f"loss_scale.{key} = {value:g} is no power of 2, so gradients would be rounded: set e.g. 2 or 0.5")
    if job.optimizer.clip_by == "previous":
        raise InputError(
            "precision = 'fp16' with optimizer.clip_by = 'previous': the norm of a step is known before its update, because it "
            "shows an overflow; remove clip_by"
        )
    if job.optimizer.delayed:
        raise InputError(
            "precision = 'fp16' with optimizer.delayed = true: after a step that overflows, no update is left to be delayed; "
            "remove it, or set 'bf16'"
        )
    if job.codec.memory in ("error_feedback", "both"):
        raise InputError(
            f"precision = 'fp16' with codec.memory = {job.codec.memory!r}: what a codec drops has the scale of its step; use "
            "'difference', or set 'bf16'"
        )


def _check_verify(job: JobSpec) -> None:
    """Bits can be compared where every micro-batch is added alone and arrives as it was sent."""
    if not job.verify.share:
        return
    rules = {
        f"plan.replicas = {job.plan.replicas}": (job.plan.replicas < 2, "set it to 3 or more"),
        f"sync.strategy = {job.sync.strategy!r}": (job.sync.strategy != "exact", "remove [sync]"),
        f"sync.order = {job.sync.order!r}": (job.sync.order != "job", "remove [sync]"),
        f"codec.name = {job.codec.name!r}": (job.codec.name != "identity", "set 'identity'"),
        f"virtual_replicas = {job.virtual_replicas}": (job.virtual_replicas not in (None, job.micro_batches), "remove it"),
        "plan.helpers = true": (job.plan.helpers, "remove it"),
        "data.kind = 'caller'": (job.data.kind == "caller", "let workers read the data"),
    }
    for what, (broken, remedy) in rules.items():
        if broken:
            raise InputError(
                f"verify.share = {job.verify.share:g} with {what}: replicas compare results of single micro-batches bit by bit; "
                f"{remedy}, or remove [verify]"
            )


def _check_open(job: JobSpec) -> None:
    if job.open.anything and job.plan.planner != "auto":
        raise InputError(
            f"[open] leaves something to the planner auto, this job's is {job.plan.planner!r}: set plan.planner = 'auto', "
            "or remove [open]"
        )


def decided(job: JobSpec, sizes: tuple[int, ...], sync: SyncSpec) -> JobSpec:
    """``job`` with what a plan decided of what it left open: micro-batches of ``sizes``, and a strategy."""
    virtual = job.virtual_replicas
    changed: dict[str, object] = {"open": OpenSpec(), "sync": sync}
    changed |= {"micro_batch_sizes": sizes, "virtual_replicas": None if virtual is None else min(virtual, len(sizes))}
    if "auto" not in (job.codec.name, sync.settings.get("codec")):  # these were for the exchanges of another strategy
        changed["codec"] = job.codec.model_copy(update={"error": CodecSpec().error, "phase": "auto"})
    return job.model_copy(update=changed)


def check_decided(job: JobSpec) -> None:
    """Whether a job can run: nothing is open.

    Raises:
        InputError: something is; the text says how to decide it.
    """
    if job.open.anything:
        raise InputError(
            "the job leaves [open] to the planner, and a run needs it decided: run farflung plan with --topology, put what it "
            "decides into the job, and remove [open]"
        )


def _check_sync(job: JobSpec) -> None:
    sync = job.sync
    if job.optimizer.clip_by == "previous" and (sync.strategy == "exact" or job.optimizer.clip_norm is None):
        raise InputError(
            "optimizer.clip_by = 'previous' is for sync strategies that do not know all gradients in time, with a clip_norm; "
            f"here strategy = {sync.strategy!r} and clip_norm = {job.optimizer.clip_norm}: remove clip_by"
        )
    if sync.order == "any":
        _check_any_order(job)
    if sync.strategy == "exact":
        if sync.settings:
            raise InputError(f"sync.settings.{min(sync.settings)} means nothing with strategy = 'exact': remove it")
        if sync.patience:
            raise InputError(
                f"sync.patience = {sync.patience:g} with strategy = 'exact': its result is that of one machine, so every replica "
                "counts; set it to 0, or choose another strategy"
            )
        return
    if job.plan.replicas == 1:
        raise InputError(
            f"sync.strategy = {sync.strategy!r} needs replicas to agree, and plan.replicas = 1: set it to 2 or more, "
            "or remove [sync]"
        )
    if job.virtual_replicas is not None:
        raise InputError(
            f"virtual_replicas = {job.virtual_replicas} orders the sums of strategy = 'exact' only, this is {sync.strategy!r}: "
            "remove it"
        )
    if job.on_nan != "stop":
        raise InputError(
            f"on_nan = {job.on_nan!r} with sync.strategy = {sync.strategy!r}: replicas that train alone can't leave out a step "
            "or go back together; set it to 'stop'"
        )


def _check_helpers(job: JobSpec) -> None:
    if job.plan.duplicates and not job.plan.helpers:
        raise InputError("plan.duplicates = true goes with helpers only: set plan.helpers = true, or leave duplicates out")
    if job.optimizer.delayed and not job.plan.helpers:
        raise InputError(
            "optimizer.delayed = true hides the way of parameters to helpers, so it goes with helpers only: set "
            "plan.helpers = true, or leave delayed out"
        )
    if not job.plan.helpers:
        return
    if job.sync.strategy != "exact" or job.sync.order != "job":
        way = f"order = {job.sync.order!r}" if job.sync.strategy == "exact" else f"strategy = {job.sync.strategy!r}"
        raise InputError(
            f"plan.helpers with sync.{way}: helpers' gradients are summed in the job's order in every step; remove [sync], or "
            "set plan.helpers = false"
        )
    if job.plan.schedule == "zb-h1" or job.plan.schedule.startswith("interleaved-"):
        raise InputError(
            f"plan.helpers with plan.schedule = {job.plan.schedule!r}: helpers compute whole backwards of one stage; set "
            "schedule = '1f1b', or plan.helpers = false"
        )
    if job.codec.memory != "none":
        raise InputError(
            f"plan.helpers with codec.memory = {job.codec.memory!r}: slices come in any order, and both ends of a link change "
            "their memory in one order; set codec.memory = 'none', or plan.helpers = false"
        )


def _check_any_order(job: JobSpec) -> None:
    sync = job.sync
    if sync.strategy != "exact":
        raise InputError(
            f"sync.order = 'any' with strategy = {sync.strategy!r}: it is for the sums of strategy = 'exact', others "
            "add in the order of replicas; remove order, or strategy"
        )
    if "codec" in sync.settings:
        raise InputError(
            f"sync.settings.codec = {sync.settings['codec']!r} with order = 'any': sums are passed on and added to, so a codec "
            "would blur them once more at each replica; remove it (codec.name still counts between stages), or set strategy = "
            "'ssgd' with this codec, which encodes each replica's gradients once"
        )
    if job.virtual_replicas is not None:
        raise InputError(
            f"virtual_replicas = {job.virtual_replicas} orders sums, and sync.order = 'any' leaves their order to the plan: "
            "remove one of them"
        )


def _check_run(job: JobSpec) -> None:
    if not job.micro_batch_sizes:
        raise InputError("micro_batch_sizes = []: a step needs at least one micro-batch, e.g. [4, 4]")
    if job.virtual_replicas is not None and job.virtual_replicas > job.micro_batches:
        raise InputError(
            f"virtual_replicas = {job.virtual_replicas} with {job.micro_batches} micro-batches: a virtual replica needs at least "
            "one; make it smaller, or add micro-batches"
        )
    if job.on_nan == "rollback" and job.checkpoint.every == 0:
        raise InputError("on_nan = 'rollback' goes back to a checkpoint, but checkpoint.every = 0 writes none: set it above 0")
    _check_evaluation(job)
    if job.generate.tokens:
        if job.data.kind != "caller" and not job.data.tokenized:
            raise InputError(f"generate.tokens = {job.generate.tokens} needs a tokenizer, data.kind = {job.data.kind!r} has none")
        if not job.generate.prompt:
            raise InputError(f"generate.tokens = {job.generate.tokens} needs a text to go on from: set generate.prompt")
    elif job.generate.prompt:
        raise InputError("generate.prompt is set but generate.tokens = 0 generates nothing: set tokens")


def _check_evaluation(job: JobSpec) -> None:
    given = [f"evaluate.{name} = {value}" for name in ("every", "every_batches") if (value := getattr(job.evaluate, name))]
    if len(given) > 1:
        raise InputError(f"{' and '.join(given)} exclude each other: remove one of them")
    if given and not job.evaluate.batches:
        raise InputError(f"{given[0]} with evaluate.batches = 0 evaluates nothing: set batches")


def _check_fed(job: JobSpec) -> None:
    """The submitting process feeds training and evaluation only."""
    if job.data.kind == "caller" and job.generate.tokens:
        raise InputError(
            f"generate.tokens = {job.generate.tokens}, but data.kind = 'caller' feeds no prompt: remove it, or set "
            "data.kind to text"
        )


def _check_data(data: DataSpec) -> None:
    if data.kind == "caller":
        if data.path or data.eval_path:
            raise InputError(
                "data.path is set but data.kind = 'caller' reads no files: set kind to text, array, images or dataset"
            )
        return
    _check_dataset(data)
    if data.image != ImageSpec() and data.kind not in ("images", "dataset"):
        raise InputError(
            f"data.image is for data.kind = 'images' and for images of a 'dataset', this is {data.kind!r}: remove it"
        )
    if not data.path and not data.mixture:
        raise InputError(f"data.kind = {data.kind!r} needs data.path: name the folder or file that every reading machine has")
    for name, field in data.fields.items():
        if not field.isidentifier():
            raise InputError(f"data.fields.{name} = {field!r}: a field is a plain name such as 'inputs'")
    if data.kind == "text" and not data.tokenizer:
        raise InputError("data.tokenizer is empty: write 'bytes', 'chars' or the path of a tokenizer.json")
    if data.labels and data.kind != "array":
        raise InputError(f"data.labels = {data.labels!r} is for data.kind = 'array' only: remove it")
    if data.kind == "array" and data.path.endswith(".npy") and not data.labels:
        raise InputError(f"data.path = {data.path!r} is one array file: name the file of the labels in data.labels")


def _check_dataset(data: DataSpec) -> None:
    if data.kind != "dataset":
        for key in ("mixture", "text", "messages"):
            if getattr(data, key):
                raise InputError(f"data.{key} is for data.kind = 'dataset' only, this is {data.kind!r}: remove it")
        return
    if data.path and data.mixture:
        raise InputError(f"data.path = {data.path!r} beside data.mixture: name the file or folder in one of them")
    if data.mixture and data.eval_path:
        raise InputError(f"data.eval_path = {data.eval_path!r} beside data.mixture: set data.eval_fraction instead")
    for part in data.parts:
        _check_part(part)
        if part.tokenized != data.parts[0].tokenized:
            first = data.parts[0].path
            raise InputError(
                f"data.mixture: {part.path!r} and {first!r} must both have text or messages, or neither: set data.text"
            )


def _check_part(part: DataSpec) -> None:
    if part.text and part.messages:
        raise InputError(f"data.text = {part.text!r} beside data.messages = {part.messages!r}: a dataset has one of them")
    if part.messages and part.tokenizer in ("bytes", "chars"):
        raise InputError(
            f"data.messages with data.tokenizer = {part.tokenizer!r}: chats need the folder of a tokenizer with a chat template"
        )
    if part.tokenized and part.tokenizer == "chars":
        raise InputError("data.tokenizer = 'chars' is for data.kind = 'text': set 'bytes', or the path of a tokenizer")


def _check_optimizer(optimizer: OptimizerSpec) -> None:
    if optimizer.name == "adamw" and (optimizer.momentum or optimizer.nesterov):
        raise InputError("optimizer.momentum and nesterov belong to 'sgd': with 'adamw' set optimizer.betas")
    if optimizer.name == "sgd" and optimizer.nesterov and not optimizer.momentum:
        raise InputError("optimizer.nesterov = true needs optimizer.momentum above 0")
    if not all(0.0 <= beta < 1.0 for beta in optimizer.betas):
        raise InputError(f"optimizer.betas = {list(optimizer.betas)}: both must be at least 0 and less than 1")
    for index, group in enumerate(optimizer.groups):
        where = f"optimizer.groups[{index}]"
        if bool(group.match) == bool(group.names):
            raise InputError(f"{where}: needs either match or names, to say which parameters it is for")
        try:
            compile_pattern(group.match)
        except InputError as error:
            raise InputError(f"{where}.match = {group.match!r:.80} {error}") from None
        if group.frozen and (group.settings or any(item is not None for item in (group.lr, group.weight_decay, group.name))):
            raise InputError(f"{where}: frozen parameters take no lr, weight_decay, name or settings: remove them or frozen")


def _check_schedule(job: JobSpec) -> None:
    schedule = job.schedule
    for where, curve in (("schedule", schedule), ("momentum", schedule.momentum), ("weight_decay", schedule.weight_decay)):
        if curve is None:
            continue
        path = where if where == "schedule" else f"schedule.{where}"
        if curve.warmup > job.steps:
            raise InputError(f"{path}.warmup = {curve.warmup} is longer than steps = {job.steps}: shorten it")
        if curve.name in ("constant", "inverse_sqrt") and curve.final:
            raise InputError(f"{path}.final = {curve.final} means nothing with name = {curve.name!r}: use 'cosine' or 'linear'")
        if curve.decay and curve.name != "wsd":
            raise InputError(f"{path}.decay = {curve.decay} means nothing with name = {curve.name!r}: use 'wsd'")
        if curve.decay > job.steps:
            raise InputError(f"{path}.decay = {curve.decay} is longer than steps = {job.steps}: shorten it")
    if (schedule.name == "values") != ("lr" in schedule.values):
        raise InputError("schedule.name = 'values' needs the values that a call of farflung.train writes: choose another name")
    for text in schedule.values.values():
        read_values(text, len(job.optimizer.groups) + 1)


def _check_weights(job: JobSpec) -> None:
    weights = job.weights
    if weights.source == "file" and not weights.path:
        raise InputError("weights.source = 'file' needs weights.path: name a safetensors file or a folder that holds one")
    if weights.source == "init" and weights.path:
        raise InputError(f"weights.path = {weights.path!r} is not read with weights.source = 'init': set source = 'file'")


#: Keys of [codec] that are for some codecs alone, and which.
_SPARSE, _LEVELS = ("topk", "randomk", "adatopk"), ("int8", "int4", "int2", "quantized")
_CODEC_KEYS = {
    "ratio": _SPARSE,
    "values": _SPARSE,
    "format": ("topk", "adatopk"),
    "overhead": ("adatopk",),
    "error": ("auto",),
    "rounding": _LEVELS,
    "rotate": _LEVELS,
    "encoder": ("topk", "adatopk", *_LEVELS, "auto"),
}
#: Codecs of which it is known here which keys they have; of others the codec says it.
_OURS = frozenset((*_SPARSE, *_LEVELS, "identity", "cast", "fp16", "bf16", "sign", "lowrank", "auto"))


def _check_codec_keys(codec: CodecSpec, chosen: object) -> None:
    """``chosen``: the codec of exchanges."""
    written = ":" in codec.name
    if written and codec.family in ("adatopk", "auto"):
        raise InputError(
            f"codec.name = {codec.name!r}: {codec.family} has keys of [codec] for its settings; set codec.name = "
            f"{codec.family!r} and the keys"
        )
    plain = CodecSpec()
    for key, families in _CODEC_KEYS.items():
        value = getattr(codec, key)
        if value == getattr(plain, key) or (key == "error" and chosen == "auto"):
            continue
        is_parameter = key in ("ratio", "values", "format", "rounding", "rotate")
        shown = "true" if value is True else repr(value)
        if written and is_parameter:
            text = f"{value:g}" if type(value) is float else shown.strip("'")
            raise InputError(
                f"codec.{key} = {shown} beside parameters in codec.name = {codec.name!r}: write it there if the codec has it, "
                f"as {key}={text}, or remove it"
            )
        if codec.family not in families and (codec.family in _OURS or key not in ("rounding", "rotate")):
            raise InputError(
                f"codec.{key} = {shown} means nothing with codec.name = {codec.name!r}, it is for {', '.join(families)}: "
                "remove it"
                + (" (parameters of other codecs go into the name, as in 'lowrank:rank=8,ratio=10')" if is_parameter else "")
            )


def _check_codec(job: JobSpec) -> None:
    codec, chosen = job.codec, job.sync.settings.get("codec")
    if codec.name == "auto" and codec.where != "all":
        raise InputError(
            f"codec.where = {codec.where!r} is not for codec.name = 'auto', which weighs every link itself: remove it"
        )
    if codec.phase != "auto" and "auto" not in (codec.name, chosen):
        raise InputError(
            f"codec.phase = {codec.phase!r} is for codec.name or sync.settings.codec = 'auto', here codec.name = {codec.name!r}"
            f"{'' if chosen is None else f' and sync.settings.codec = {chosen!r}'}: remove it"
        )
    _check_codec_keys(codec, chosen)
    if codec.memory != "none" and codec.family in ("identity", "lowrank"):
        raise InputError(
            f"codec.memory = {codec.memory!r} with codec.name = {codec.name!r}: it needs a codec that drops something of each "
            "sample apart, e.g. 'int4'; remove memory, or choose another codec"
        )
