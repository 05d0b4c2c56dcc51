"""How the replicas of a stage sum gradients where the job leaves the order open: chosen by the links of the plan's topology."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf

from farflung.cluster import Topology
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan.model import Plan, Stage
from farflung.plan.traffic import gradient_bytes
from farflung.sync.reductions import GroupLinks, choose, seconds
from farflung.units import Bytes

__all__ = ["reduction_lines", "with_reductions"]

_NAMES = {"server": "sharded servers", "ring": "a ring", "tree": "a tree"}


def with_reductions(plan: Plan, graph: Graph, pieces: Sequence[SubGraph], topology: Topology, job: JobSpec) -> Plan:
    """``plan``; where the job leaves the order of sums open, every stage with replicas says how it sums: what is soonest."""
    if (job.sync.strategy, job.sync.order) != ("exact", "any") or not plan.replicated:
        return plan
    stages = [
        stage
        if len(stage.devices) == 1
        else replace(stage, adds=choose(_links(topology, stage), gradient_bytes(graph, piece)).reduction)
        for stage, piece in zip(plan.stages, pieces, strict=True)
    ]
    return replace(plan, stages=tuple(stages))


def reduction_lines(plan: Plan, graph: Graph, pieces: Sequence[SubGraph], topology: Topology) -> list[str]:
    """A line for each stage whose replicas sum in any order: how, how long that takes, and what the other ways would."""
    lines = []
    for stage, piece in zip(plan.stages, pieces, strict=True):
        if stage.adds is None:
            continue
        links, nbytes = _links(topology, stage), gradient_bytes(graph, piece)
        took = seconds(stage.adds, links, nbytes)
        others = {kind: value for kind, value in choose(links, nbytes).seconds.items() if kind != stage.adds.by}
        beside = ", ".join(f"{_NAMES[kind]} {value}" for kind, value in others.items())
        lines.append(
            f"stage {stage.index}: {len(stage.devices)} replicas sum {Bytes(nbytes)} by {_NAMES[stage.adds.by]}"
            f"{_order(stage)} in {took} (alternatives: {beside}); order = any: sums differ by rounding from plan to plan"
        )
    return lines


def _links(topology: Topology, stage: Stage) -> GroupLinks:
    at = [topology.index(name) for name in stage.devices]
    held = [topology.device(name) for name in stage.devices]
    return GroupLinks(
        alpha=tuple(tuple(float(topology.alpha[i, j]) for j in at) for i in at),
        beta=tuple(tuple(float(topology.beta[i, j]) for j in at) for i in at),
        up=tuple(float(device.uplink or inf) for device in held),
        down=tuple(float(device.downlink or inf) for device in held),
    )


def _order(stage: Stage) -> str:
    """Who follows whom, or who sends to whom."""
    assert stage.adds is not None
    names, toward = stage.devices, stage.adds.toward
    if stage.adds.by == "ring":
        order, at = [names[0]], toward[0]
        while at:
            order.append(names[at])
            at = toward[at]
        return f" {' -> '.join((*order, names[0]))}"
    if stage.adds.by == "tree":
        return f" ({', '.join(f'{names[i]} -> {names[parent]}' for i, parent in enumerate(toward) if parent >= 0)})"
    return ""
