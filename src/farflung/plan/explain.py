"""An estimate as text tables for people (``Estimate.to_dict`` is for programs)."""

from __future__ import annotations

from collections.abc import Sequence

from farflung.plan.estimate import Estimate
from farflung.units import Bytes, Flops, Seconds

__all__ = ["device_rows", "explain", "link_rows", "stage_rows"]

Rows = list[tuple[str, ...]]

_STAGES = "forward, backward: work and seconds of one micro-batch; in flight: micro-batches whose values are kept at once"
_DEVICES = "used: of the memory limit; busy: the share of the step in which the device computes"
_LINKS = "dense, sent, seconds: of one micro-batch, values on the way forward / gradients on the way back; sent: after the codec"

_COPIES = "stage 0 (2 to 3): the replica of stage 0 that computes micro-batches 2 to 3"
_FIRST = "devices and seconds are those of the stages' first replicas, the others' links carry the same for their micro-batches"


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
                _count(stage.parameters),
                f"{Flops(stage.forward_flops)}, {Seconds(stage.forward_seconds)}",
                f"{Flops(stage.backward_flops)}, {Seconds(stage.backward_seconds)}",
                f"{stage.in_flight}{' (recomputes)' if stage.recompute else ''}",
                str(Bytes(stage.memory_bytes)),
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
    rows: Rows = [("link", "devices", "codec", "dense", "sent", "seconds")]
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
    stages = f"{_STAGES}; {_COPIES}" if several else _STAGES
    lines = [_table(stage_rows(estimate)), stages, "", _table(device_rows(estimate)), _DEVICES, ""]
    if estimate.links:
        lines += [_table(link_rows(estimate)), f"{_LINKS}; {_FIRST}" if several else _LINKS, ""]
    served = max((stage.memory.get("serving", 0.0) for stage in estimate.replicas), default=0.0)
    if served:
        lines.append(f"memory: up to {Bytes(served)} of a stage's are kept for its helpers (inputs, states, waiting gradients)")
    tied = estimate.exchange_bytes - estimate.replica_bytes
    if estimate.replica_bytes:
        usual = "" if estimate.exchanged == "gradients" else " on average"
        lines.append(f"{estimate.exchanged} of replicas between devices: {Bytes(estimate.replica_bytes)} per step{usual}")
    if tied > 0:
        lines.append(f"gradients of tied parameters between devices: {Bytes(tied)} per step")
    lines += [
        f"forward of one micro-batch through all stages: {Seconds(estimate.latency_seconds)} (equation 2)",
        (
            f"forwards of a step's micro-batches, pipelined: {Seconds(estimate.pipeline_seconds)} dense (equation 3), "
            f"{Seconds(estimate.compressed_seconds)} after the codecs (equation 8); "
            f"{_rate(estimate.throughput)} dense (equation 4)"
        ),
        f"predicted step: {Seconds(estimate.step_seconds)}, {_rate(estimate.step_throughput)} (with backwards and updates)",
        f"bound by {estimate.bound_by}, which is busy in {estimate.bound_share:.0%} of the step and nothing else is in more",
    ]
    return "\n".join(lines)


def _rate(samples_per_second: float) -> str:
    digits = f"{samples_per_second:,.0f}" if samples_per_second >= 99.95 else f"{samples_per_second:.3g}"
    return f"{digits} samples/s"


def _count(number: float) -> str:
    for scale, letter in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if number >= scale:
            return f"{number / scale:.3g} {letter}"
    return f"{number:g}"


def _table(rows: Sequence[Sequence[str]]) -> str:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
    return "\n".join([lines[0], "  ".join("-" * width for width in widths), *lines[1:]])
