"""An estimate as text tables for people (``Estimate.to_dict`` is for programs)."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.plan.estimation.results import Estimate
from farflung.units import Bytes, Flops, Seconds

__all__ = ["count", "device_rows", "explain", "link_rows", "rate", "saving_lines", "stage_rows", "table"]

Rows = list[tuple[str, ...]]

_STAGES = "forward, backward: work and time per micro-batch. in flight: micro-batches whose activations are stored at once."
_DEVICES = "used: share of the memory limit. busy: share of the step in which the device computes."
_LINKS = "dense, sent, time: per micro-batch, activations forward / gradients backward. sent: bytes after the codec."

_COPIES = "stage 0 (2 to 3): the replica of stage 0 that computes micro-batches 2 to 3."
_FIRST = "Devices and times are those of the first replica of each stage. The links of other replicas carry the same values."


def stage_rows(estimate: Estimate) -> Rows:
    """Head and one row per copy of a stage: where it runs, what it holds, what it costs per micro-batch.

    Where stages have replicas, the micro-batches of each stand behind the stage's number.
    """
    rows: Rows = [("stage", "device", "ops", "modules", "params", "forward", "backward", "in flight", "memory")]
    several = len(estimate.replicas) > len(estimate.stages)
    for stage in estimate.replicas:
        first, end = stage.micro_batches
        rows.append(
            (
                f"{stage.index} ({first} to {end - 1})" if several else str(stage.index),
                stage.device,
                str(stage.operators),
                stage.modules,
                count(stage.parameters),
                f"{Flops(stage.forward_flops)}, {Seconds(stage.forward_seconds)}",
                f"{Flops(stage.backward_flops)}, {Seconds(stage.backward_seconds)}",
                f"{stage.in_flight}{' (recomputes)' if stage.recompute else ''}",
                f"{Bytes(stage.memory_bytes)}{' (divided)' if stage.sharded_bytes else ''}",
            )
        )
    return rows


def device_rows(estimate: Estimate) -> Rows:
    """Head and one row per device: memory of its limit, busy share of the step."""
    rows: Rows = [("device", "memory", "limit", "used", "busy")]
    for device in estimate.devices:
        share = device.busy_seconds / estimate.step_seconds if estimate.step_seconds else 0.0
        used = f"{device.memory_bytes / device.memory_limit:.0%}"
        rows.append((device.device, str(Bytes(device.memory_bytes)), str(Bytes(device.memory_limit)), used, f"{share:.0%}"))
    return rows


def link_rows(estimate: Estimate) -> Rows:
    """Head and one row per link: bytes and seconds per micro-batch after the codec, forward / backward."""
    rows: Rows = [("link", "devices", "codec", "dense", "sent", "time")]
    for link in estimate.links:
        same = link.activations == link.gradients
        rows.append(
            (
                f"{link.source} -> {link.target}",
                f"{link.source_device} -> {link.target_device}" + (f" through {link.relay}" if link.relay else ""),
                link.activations if same else f"{link.activations} / {link.gradients}",
                f"{Bytes(link.forward_dense_bytes)} / {Bytes(link.backward_dense_bytes)}",
                f"{Bytes(link.forward_bytes)} / {Bytes(link.backward_bytes)}",
                f"{Seconds(link.forward_seconds)} / {Seconds(link.backward_seconds)}",
            )
        )
    return rows


def explain(estimate: Estimate) -> str:
    """The whole estimate as plain text."""
    several = len(estimate.replicas) > len(estimate.stages)
    stages = f"{_STAGES} {_COPIES}" if several else _STAGES
    lines = [table(stage_rows(estimate)), stages, "", table(device_rows(estimate)), _DEVICES, ""]
    if estimate.links:
        lines += [table(link_rows(estimate)), f"{_LINKS} {_FIRST}" if several else _LINKS, ""]
    served = max((stage.memory.get("serving", 0.0) for stage in estimate.replicas), default=0.0)
    if served:
        lines.append(f"memory for helpers: up to {Bytes(served)} per stage (inputs, states and waiting gradients)")
    lines += [text for _, text in saving_lines(estimate)]
    tied = estimate.exchange_bytes - estimate.replica_bytes
    if estimate.replica_bytes:
        usual = "" if estimate.exchanged == "gradients" else " on average"
        lines.append(f"{estimate.exchanged} exchanged between replicas: {Bytes(estimate.replica_bytes)} per step{usual}")
    if tied > 0:
        lines.append(f"gradients of tied parameters exchanged between devices: {Bytes(tied)} per step")
    lines += [
        f"forward of one micro-batch through all stages: {Seconds(estimate.latency_seconds)} (FusionLLM, equation 2)",
        (
            f"forwards of all micro-batches of a step: {Seconds(estimate.pipeline_seconds)} without codecs (equation 3), "
            f"{Seconds(estimate.compressed_seconds)} with codecs (equation 8)"
        ),
        f"throughput of the forwards without codecs: {rate(estimate.throughput)} (equation 4)",
        f"predicted step with backwards and updates: {Seconds(estimate.step_seconds)}, {rate(estimate.step_throughput)}",
        f"bottleneck: {estimate.bound_by}, busy for {estimate.bound_share:.0%} of the step",
    ]
    return "\n".join(lines)


def saving_lines(estimate: Estimate) -> Rows:
    """Return what saving memory costs, as label and text: optimizer states on disks, and parameters that ranks divide.

    Also that ranks compute micro-batches together, because results then differ by rounding.
    """
    kinds = (("disk", "optimizer states on disk", estimate.offload), ("sites", "parameters divided among ranks", estimate.shard))
    rows: Rows = []
    for label, way, found in kinds:
        if found is not None:
            slower = f"{found.factor:.2g} x slower" if found.factor >= 1.005 else "not slower"
            rows.append((label, f"{'fits only with ' if found.needed else ''}{way}: {slower} ({Bytes(found.nbytes)})"))
    shared = [stage for stage in estimate.replicas if stage.together]
    if shared:
        part = sum(stage.together * stage.parameters for stage in shared) / max(sum(stage.parameters for stage in shared), 1)
        rows.append(
            ("sites", f"ranks compute each micro-batch together: results differ by rounding ({part:.0%} of parameters divided)")
        )
    return rows


def rate(samples_per_second: float) -> str:
    """Return a throughput for people."""
    digits = f"{samples_per_second:,.0f}" if samples_per_second >= 99.95 else f"{samples_per_second:.3g}"
    return f"{digits} samples/s"


def count(number: float) -> str:
    """Return a number of parameters for people, e.g. ``1.3 G``."""
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale:
            return f"{number / scale:.3g} {letter}"
    return f"{number:g}"


def table(rows: Sequence[Sequence[str]]) -> str:
    """Return rows in aligned columns; the first row is the head."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
