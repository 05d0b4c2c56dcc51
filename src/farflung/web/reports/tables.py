"""The tables of a report as plain texts; ``page`` and ``markdown`` write them down."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from farflung.errors import InputError
from farflung.graph.ir import Graph, StateKind
from farflung.job import JobSpec
from farflung.plan import CodecChoice, Stage
from farflung.plan.synchronization import strategy_of
from farflung.units import Bytes, BytesPerSecond, Seconds, counted
from farflung.web.reports.run import Run

__all__ = [
    "NOTHING",
    "Table",
    "common_loss",
    "comparison",
    "evaluations",
    "headline",
    "links",
    "number",
    "recoveries",
    "relays",
    "settings",
    "stages",
    "status",
    "totals",
]

NOTHING = "–"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """A titled table; ``text_columns`` leading columns are text, the others numbers. ``note`` stands below;
    ``narrow``: half a page is wide enough.
    """

    title: str
    head: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]
    text_columns: int = 1
    note: str = ""
    narrow: bool = False


def status(run: Run) -> tuple[str, str]:
    """One word for how the run ended, and a sentence."""
    if run.result is None:
        return "cut short", "There is no result.json: the run was cut short, or still goes on."
    if run.result.status == "finished":
        return "finished", f"All {run.result.steps} steps are done." if run.result.steps != 1 else "Its one step is done."
    done = f"after {run.result.steps} of {counted(run.job.steps, 'step')}"
    if run.result.status == "stopped":
        return "stopped", f"Stopped {done}{f': {run.result.cause}' if run.result.cause else ' by request'}."
    return run.result.status, run.result.cause or f"The run ended {done}, and the broker recorded no cause."


def headline(run: Run) -> tuple[tuple[str, str], ...]:
    """The few figures that stand at the top: (what, value)."""
    steps = str(len(run.steps)) if len(run.steps) >= run.job.steps else f"{len(run.steps)} of {run.job.steps}"
    figures = [("steps", steps), ("time to the end of the last step", str(Seconds(run.seconds)))]
    if run.result is not None:
        figures.append(("time of the whole run", str(Seconds(run.result.seconds))))
    if run.steps:
        last = run.steps[-1]
        rate = ("tokens/s", last.tokens) if last.tokens else ("samples/s", last.samples)
        median = run.median_seconds or 0.0
        figures[1:1] = [
            ("loss of the last step", f"{last.loss:.4f}"),
            (f"loss, mean of the last {counted(min(run.loss_window, len(run.steps)), 'step')}", number(run.smooth_losses[-1])),
        ]
        figures.append(("step time, median", str(Seconds(median))))
        figures.append((rate[0], number(rate[1] / median) if median else NOTHING))
        figures.append(("over the links", str(Bytes(run.total_bytes))))
    if run.predicted_ratio:
        figures.append(("measured / predicted", f"{run.predicted_ratio:.2f}"))
    return tuple(figures)


def settings(job: JobSpec) -> Table:
    """The settings that differ from their defaults, by dotted name."""
    defaults = dict(_flatten(JobSpec().model_dump(mode="json")))
    rows = tuple(
        (key, _setting(value)) for key, value in _flatten(job.model_dump(mode="json")) if defaults.get(key, "?") != value
    )
    note = "Every other setting has its default."
    return Table(title="Settings", head=("setting", "value"), rows=rows, text_columns=2, note=note, narrow=True)


def stages(run: Run) -> Table:
    """Who computed what."""
    rows = tuple(_stage_row(run, stage) for stage in run.plan.stages)
    head = ("stage", "device", "region", "modules", "operators", "parameters read", "recompute", "busy per step", "share busy")
    sizes = _counts(run.plan.micro_batch_sizes)
    note = f"Planner {run.plan.planner}, schedule {run.plan.schedule}, samples of each micro-batch: {sizes}."
    if run.recoveries:
        note += " Busy: in the steps since the last recovery."
    return Table(title="Stages", head=head, rows=rows, text_columns=4, note=note)


def _stage_row(run: Run, stage: Stage) -> tuple[str, ...]:
    computed = [record for record in run.present_steps if stage.index in record.busy_seconds]
    busy = [record.busy_seconds[stage.index] for record in computed]
    shares = [record.busy_seconds[stage.index] / record.seconds for record in computed if record.seconds > 0]
    return (
        str(stage.index),
        stage.device,
        _region(run, stage.device),
        _modules(run.graph, stage) if run.graph else NOTHING,
        str(stage.stop - stage.start),
        _count(_parameters(run.graph, stage)) if run.graph else NOTHING,
        "yes" if stage.recompute else "no",
        str(Seconds(statistics.median(busy))) if busy else NOTHING,
        f"{statistics.median(shares):.0%}" if shares else NOTHING,
    )


def recoveries(run: Run) -> Table | None:
    """Who was lost, what was made again, and how long training stood still (None: nothing was lost)."""
    if not run.recoveries:
        return None
    rows = tuple(
        (record.cause, ", ".join(record.devices), str(record.step), str(record.replayed), str(Seconds(record.pause)))
        for record in run.recoveries
    )
    head = ("what was lost", "went on with", "from step", "steps made again", "pause")
    return Table(title="Recoveries", head=head, rows=rows, text_columns=2)


def relays(run: Run) -> Table | None:
    """Who carried what between devices that can't dial each other (None: nobody had to)."""
    used = set(run.plan.devices)
    via = {} if run.topology is None else {pair: names for pair, names in run.topology.via.items() if set(pair) <= used}
    carried: dict[tuple[str, str, str], int] = {}
    for record in run.relayed:
        way = (record.relay, record.source, record.target)
        carried[way] = carried.get(way, 0) + record.nbytes
    planned = [(names[0], *ends) for pair, names in sorted(via.items()) if names for ends in (pair, pair[::-1])]
    ways = list(dict.fromkeys([*planned, *carried]))
    if not ways:
        return None
    rows = tuple(_relay_row(run, way, carried.get(way)) for way in ways)
    head = ("relay", "from", "to", "latency", "bandwidth", "carried")
    note = "Carried: encrypted bytes with heartbeats, as the relay counted them; the two ends encrypt with each other."
    return Table(title="Relays", head=head, rows=rows, text_columns=3, note=note)


def _relay_row(run: Run, way: tuple[str, str, str], carried: int | None) -> tuple[str, ...]:
    latency = bandwidth = NOTHING
    if run.topology is not None and set(way[1:]) <= set(run.topology.names):
        link = run.topology.link(*way[1:])
        latency, bandwidth = str(Seconds(link.latency)), str(BytesPerSecond(link.bandwidth))
    return (*way, latency, bandwidth, NOTHING if carried is None else str(Bytes(carried)))


def links(run: Run) -> Table:
    """What went over each link, one row for each direction."""
    planned = [(link.source, link.target, link.activations, "activations") for link in run.plan.links]
    planned += [(link.target, link.source, link.gradients, "gradients") for link in run.plan.links]
    ways = {(source, target): (str(codec), what) for source, target, codec, what in planned}
    for pair in sorted(run.tied_links & set(ways)):
        ways[pair] = ways[pair][0], f"{ways[pair][1]}, gradients of tied parameters"
    for pair in run.links:
        ways.setdefault(pair, _unplanned(run, *pair))
    rows = tuple(_link_row(run, *pair, *ways[pair]) for pair in sorted(ways))
    head = ("from", "to", "carries", "codec", "latency", "bandwidth", "bytes per step", "without codec", "smaller by", "total")
    coding = ("encode per step", "decode per step", "measured error")
    notes = ["Bytes per step: payload, the mean of all steps, over all pipelines."]
    if earlier := len(run.steps) - len(run.present_steps):
        notes[0] = "Bytes per step: payload, the mean over all pipelines and over the steps since the last recovery."
        notes.append(f"{counted(earlier, 'earlier step')} ran under another plan, with other links.")
    if run.tied_links & set(ways):
        notes.append("Gradients of tied parameters travel without a codec.")
    return Table(title="Links", head=(*head, *coding), rows=rows, text_columns=4, note=" ".join(notes))


def _unplanned(run: Run, source: int, target: int) -> tuple[str, str]:
    """Codec and what is carried between stages to which the plan gives no link for values."""
    if source != target:
        return str(CodecChoice()), "gradients of tied parameters"
    sync = run.plan.sync
    if sync is None:
        return str(CodecChoice()), "gradients of replicas"
    codec = str(dict(sync.settings).get("codec", CodecChoice().name))
    try:
        return codec, f"{strategy_of(run.plan).traits.sent.value} of replicas"
    except InputError:  # a strategy of a package that is not here
        return codec, f"{sync.strategy} of replicas"


def _link_row(run: Run, source: int, target: int, codec: str, what: str) -> tuple[str, ...]:
    ends = (run.device(source), run.device(target))
    latency = bandwidth = NOTHING
    if run.topology is not None and ends[0] != ends[1] and set(ends) <= set(run.topology.names):
        link = run.topology.link(*ends)
        latency, bandwidth = str(Seconds(link.latency)), str(BytesPerSecond(link.bandwidth))
    names = tuple(f"{stage} ({device})" for stage, device in zip((source, target), ends, strict=True))
    if source == target and source < len(run.plan.stages):
        names = (f"{source} ({', '.join(run.plan.stages[source].devices)})", "each other")
    if run.topology is not None and (relay := run.topology.relay(*ends)):
        names = (names[0], f"{names[1]} through {relay}")
    if not run.present_steps:
        return (*names, what, codec, latency, bandwidth, *[NOTHING] * 7)
    sent, dense = run.link_mean((source, target)), run.link_mean((source, target), dense=True)
    total = sum(record.link_bytes.get((source, target), 0) for record in run.present_steps)
    return (
        *names,
        what,
        codec,
        latency,
        bandwidth,
        str(Bytes(sent)),
        str(Bytes(dense)) if dense else NOTHING,
        _times(dense, sent),
        str(Bytes(total)),
        *_coding(run, (source, target)),
    )


def _coding(run: Run, link: tuple[int, int]) -> tuple[str, str, str]:
    """Median seconds of a step's encoding and decoding, and the mean of the errors that were measured."""
    uses = [record.codecs[link] for record in run.present_steps if link in record.codecs]
    errors = [use.error for use in uses if use.error is not None]
    if not uses:
        return NOTHING, NOTHING, NOTHING
    seconds = [Seconds(statistics.median(getattr(use, name) for use in uses)) for name in ("encode_seconds", "decode_seconds")]
    return str(seconds[0]), str(seconds[1]), f"{statistics.fmean(errors):.2%}" if errors else NOTHING


def totals(run: Run) -> Table:
    """What the whole run took."""
    predicted = "step time, predicted by the last plan" if run.recoveries else "step time, predicted"
    samples, tokens = sum(r.samples for r in run.steps), sum(r.tokens for r in run.steps)
    skipped = sum(r.skipped for r in run.steps)
    rows = [
        ("optimizer steps", str(len(run.steps) - skipped)),
        ("steps skipped (loss not a number)", str(skipped)),
        ("samples", f"{samples:,}"),
        ("tokens", f"{tokens:,}" if tokens else NOTHING),
        ("time to the end of the last step", str(Seconds(run.seconds))),
        ("step time, median", str(Seconds(run.median_seconds)) if run.median_seconds is not None else NOTHING),
        (predicted, str(Seconds(run.predicted_seconds)) if run.predicted_seconds is not None else NOTHING),
        ("bytes over the links", str(Bytes(run.total_bytes))),
        ("bytes without codecs", str(Bytes(run.dense_bytes)) if run.dense_bytes else NOTHING),
        ("smaller by", _times(run.dense_bytes, run.total_bytes)),
        ("last checkpoint", run.result.checkpoint if run.result and run.result.checkpoint else NOTHING),
    ]
    return Table(title="Totals", head=("what", "value"), rows=tuple(rows), narrow=True)


def evaluations(run: Run) -> Table:
    """The evaluations in order, the last twelve."""
    rows = tuple(
        (
            str(record.step),
            number(record.loss),
            NOTHING if record.perplexity is None else number(record.perplexity),
            NOTHING if record.accuracy is None else f"{record.accuracy:.1%}",
            str(Seconds(record.elapsed)),
        )
        for record in run.evaluations[-12:]
    )
    return Table(title="Evaluations", head=("after step", "loss", "perplexity", "accuracy", "at"), rows=rows, text_columns=0)


def comparison(runs: Sequence[Run]) -> Table:
    """One row for each run; times and bytes to the lowest smoothed loss that every run reached."""
    common = common_loss(runs)
    base = runs[0]
    rows = tuple(_comparison_row(run, base, common) for run in runs)
    target = NOTHING if common is None else number(common)
    ways = ("bytes", "slowest link, per step", f"time to {target}", f"bytes to {target}")
    head = ("run", "codec", "replicas by", "steps", "loss", "evaluation", "step time", "faster by", *ways)
    note = (
        f"Loss is the smoothed training loss at the end. Faster: median step time against {base.label}. Codec: between stages. "
        "Bytes per step: the mean, since replicas may exchange in some steps only."
    )
    for run in runs:
        if run.resumed_after:
            note += f" {run.label} resumed after step {run.resumed_after}: its time and bytes to a loss are unknown."
    return Table(title="Comparison", head=head, rows=rows, text_columns=3, note=note)


def common_loss(runs: Sequence[Run]) -> float | None:
    """The lowest smoothed loss that every run reached (None: a run has no finite loss)."""
    bests = [min((loss for loss in run.smooth_losses if loss < float("inf")), default=None) for run in runs]
    found = [best for best in bests if best is not None]
    return max(found) if found and len(found) == len(runs) else None


def _comparison_row(run: Run, base: Run, common: float | None) -> tuple[str, ...]:
    reached = run.first_below(common) if common is not None and not run.resumed_after else None
    evaluation = run.evaluations[-1].loss if run.evaluations else None
    return (
        run.label,
        _codec(run) if run.plan.links else NOTHING,
        _replicas(run),
        str(len(run.steps)),
        number(run.smooth_losses[-1]) if run.steps else NOTHING,
        NOTHING if evaluation is None else number(evaluation),
        NOTHING if run.median_seconds is None else str(Seconds(run.median_seconds)),
        _times(base.median_seconds or 0.0, run.median_seconds or 0.0),
        str(Bytes(run.total_bytes)),
        NOTHING if run.slowest_link is None else str(Bytes(run.link_mean(run.slowest_link))),
        NOTHING if reached is None else str(Seconds(run.clock[reached])),
        NOTHING if reached is None else str(Bytes(run.traffic[reached])),
    )


def _codec(run: Run) -> str:
    spec = run.job.codec
    if "topk" not in spec.name or spec.family != spec.name:
        return spec.name
    return f"{spec.name} {spec.ratio:g}" + ("" if spec.values == "float32" else f", {spec.values}")


def _replicas(run: Run) -> str:
    """By which strategy, codec and memory replicas agree (a dash: there are none)."""
    if not run.plan.replicated:
        return NOTHING
    if run.plan.sync is None:
        return "exact"
    settings = dict(run.plan.sync.settings)
    parts = [run.plan.sync.strategy, *(str(settings[name]) for name in ("codec", "memory") if name in settings)]
    return ", ".join(part for part in parts if part not in ("identity", "none"))


def _flatten(value: Any, prefix: str = "") -> list[tuple[str, Any]]:
    if isinstance(value, dict) and value:
        return [pair for key, item in value.items() for pair in _flatten(item, f"{prefix}.{key}" if prefix else str(key))]
    return [(prefix, value)]


def _setting(value: Any) -> str:
    if isinstance(value, list) and value and all(isinstance(item, int) for item in value):
        return _counts(value)
    return str(value)


def _counts(sizes: Sequence[int]) -> str:
    """``8 x 4, 6``: runs of equal numbers are folded."""
    parts: list[list[int]] = []
    for size in sizes:
        if parts and parts[-1][1] == size:
            parts[-1][0] += 1
        else:
            parts.append([1, size])
    return ", ".join(f"{count} × {size}" if count > 1 else str(size) for count, size in parts)


def _region(run: Run, device: str) -> str:
    if run.topology is None or device not in run.topology.names:
        return NOTHING
    return run.topology.device(device).region or NOTHING


def _modules(graph: Graph, stage: Stage) -> str:
    paths = list(dict.fromkeys(op.module for op in graph.ops[stage.start : stage.stop] if op.module))
    if not paths:
        return NOTHING
    return paths[0] if len(paths) == 1 else f"{paths[0]} … {paths[-1]}"


def _parameters(graph: Graph, stage: Stage) -> int:
    names = {name for op in graph.ops[stage.start : stage.stop] for name in op.states()}
    return sum(graph.state[name].spec.numel for name in names if graph.state[name].kind is StateKind.PARAMETER)


def _count(number: int) -> str:
    for suffix, scale in ((" G", 1e9), (" M", 1e6), (" k", 1e3)):
        if number >= scale:
            return f"{number / scale:.3g}{suffix}"
    return str(number)


def number(value: float) -> str:
    """A figure as people read it: four digits, or whole thousands."""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.4g}"


def _times(before: float, after: float) -> str:
    return f"{before / after:.3g}×" if before and after else NOTHING
