"""What people want to know of a plan first: one line, the answer in a few lines, and a table with one row per stage.

``plan.explain`` has the whole estimate as tables.
"""

from __future__ import annotations

from collections.abc import Sequence

from farflung.plan.estimation.results import Estimate
from farflung.plan.model import Plan
from farflung.plan.report.estimate_tables import count, rate, saving_lines, table
from farflung.units import Bytes, Seconds, counted

__all__ = ["listed", "plan_answer", "plan_line", "stage_table"]

#: Rows that the table of stages has at most, and names that a list has at most.
_ROWS, _NAMES = 16, 8


def plan_line(plan: Plan, estimate: Estimate) -> str:
    """Return one line: stages, devices, predicted step, bottleneck."""
    return (
        f"plan: {counted(len(plan.stages), 'stage')} on {listed(plan.devices)}; "
        f"predicted step {Seconds(estimate.step_seconds)} ({rate(estimate.step_throughput)}); bottleneck: {estimate.bound_by}"
        + "".join(f"; {text}" for _, text in saving_lines(estimate))
    )


def plan_answer(plan: Plan, estimate: Estimate, *, available: int, remedy: str = "") -> str:
    """Return the answer of a planning task: a labeled line for each question.

    Args:
        plan: the plan.
        estimate: its predicted cost.
        available: the number of devices in the topology.
        remedy: what would shorten the step, if known.
    """
    fullest = max(estimate.devices, key=lambda device: device.memory_bytes / device.memory_limit)
    share = fullest.memory_bytes / fullest.memory_limit
    used = f"{Bytes(fullest.memory_bytes)} of {Bytes(fullest.memory_limit)}"
    free = Bytes(max(fullest.memory_limit - fullest.memory_bytes, 0.0))
    batches = counted(len(plan.micro_batch_sizes), "micro-batch", "micro-batches")
    rows = [
        ("predicted step", f"{Seconds(estimate.step_seconds)}, {rate(estimate.step_throughput)}"),
        ("stages", f"{len(plan.stages)} (planner {plan.planner}, schedule {plan.schedule}, {batches} per step)"),
        ("devices", f"{len(plan.devices)} of {available} used: {listed(plan.devices)}"),
        ("memory", f"{fullest.device} is the fullest device: {used} ({share:.0%}), {free} free"),
        *saving_lines(estimate),
        ("bottleneck", f"{estimate.bound_by}, busy for {estimate.bound_share:.0%} of the step"),
        *([("to speed it up", remedy)] if remedy else []),
    ]
    width = max(len(label) for label, _ in rows) + 1
    return "\n".join(f"{label + ':':{width}} {text}" for label, text in rows)


def stage_table(estimate: Estimate) -> str:
    """Return a table with one row per stage (per replica of a stage), at most 16 of them: those that compute longest."""
    busy = {device.device: device for device in estimate.devices}
    links = {link.source: link for link in estimate.links if link.target == link.source + 1}
    ranked = sorted(estimate.replicas, key=lambda stage: -(stage.forward_seconds + stage.backward_seconds))
    chosen = {(stage.index, stage.micro_batches) for stage in ranked[:_ROWS]}
    rows: list[tuple[str, ...]] = [("stage", "device", "modules", "params", "memory", "device busy", "sends to the next stage")]
    for stage in estimate.replicas:
        if (stage.index, stage.micro_batches) not in chosen:
            continue
        device, link = busy[stage.device], links.get(stage.index)
        share = device.busy_seconds / estimate.step_seconds if estimate.step_seconds else 0.0
        sent = "" if link is None else f"{Bytes(link.forward_bytes)} in {Seconds(link.forward_seconds)}"
        memory = f"{Bytes(stage.memory_bytes)} of {Bytes(device.memory_limit)}"
        rows.append((str(stage.index), stage.device, stage.modules, count(stage.parameters), memory, f"{share:.0%}", sent))
    left = len(estimate.replicas) - len(chosen)
    more = f"\n({left} more rows; these {len(chosen)} compute the longest, -v prints all)" if left else ""
    return table(rows) + more


def listed(names: Sequence[str]) -> str:
    """Return ``names`` as a list of at most eight of them."""
    shown = ", ".join(names[:_NAMES])
    return shown if len(names) <= _NAMES else f"{shown} and {len(names) - _NAMES} more"
