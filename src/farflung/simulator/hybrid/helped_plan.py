"""A hybrid plan with its expected helpers in virtual time, undisturbed and with helpers that are lost and come back.

Each helper helps the server that ``protocol.hybrid.expected_helpers`` gives it. In a step, each helper is lost with a given
chance (once at most), at a moment drawn over the length of an undisturbed step, as in section 4.2 of the Hybrid-PS paper.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from statistics import fmean, median

from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import CostTables, Plan, estimate
from farflung.plan.estimation.results import Estimate
from farflung.protocol.hybrid.expected_helpers import expected_helpers
from farflung.protocol.pool.pool_settings import PoolSettings
from farflung.simulator.hybrid.parts import HelpedServer, Helper, Hop, Loss, Wire
from farflung.simulator.hybrid.pipeline import HelpedPipeline

__all__ = ["HelpedRun", "HelperLosses", "helped_pipeline", "hop_between", "simulate_helped", "wire_between"]

#: Steps before those that count: the pools measure how fast each device is.
_WARM = 3
#: Undisturbed steps whose median is the length of a step.
_CALM = 5
#: Bytes of a trained parameter.
_FLOAT = 4.0


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperLosses:
    """In each of ``steps`` steps, each helper is lost with ``chance``, and back ``away`` seconds later (infinite: before the next
    step). ``seed``: of the draws."""

    chance: float = 0.0
    away: float = float("inf")
    steps: int = 20
    seed: int = 0

    def __post_init__(self) -> None:
        if not 0.0 <= self.chance <= 1.0 or self.steps < 1:
            raise InputError(f"simulating helpers needs a chance from 0 to 1 and steps, got {self.chance} and {self.steps}")


@dataclass(frozen=True, slots=True, kw_only=True)
class HelpedRun:
    """``step_seconds``: of an undisturbed step. ``alone_seconds``: of one without helpers.

    ``lossy_seconds``: the mean of steps in which each helper is lost with ``chance``. ``servers``: of each helper. ``losses``: in
    all simulated steps together.
    """

    step_seconds: float
    alone_seconds: float
    lossy_seconds: float
    chance: float
    servers: dict[str, str]
    losses: int


def simulate_helped(plan: Plan, topology: Topology, graph: Graph, job: JobSpec, losses: HelperLosses | None = None) -> HelpedRun:
    """Simulate ``plan`` with the unreliable devices of ``topology`` as helpers, undisturbed and with ``losses``."""
    losses = losses or HelperLosses()
    alone, _ = helped_pipeline(plan, topology, graph, job, helpers=False)
    calm, servers = helped_pipeline(plan, topology, graph, job)
    length = median(calm.run([()] * (_WARM + _CALM))[_WARM:])
    draw = random.Random(losses.seed)
    drawn = [
        [
            Loss(helper=name, after=draw.uniform(0.0, length), away=losses.away)
            for name in servers
            if draw.random() < losses.chance
        ]
        for _ in range(losses.steps)
    ]
    lossy, _ = helped_pipeline(plan, topology, graph, job)
    return HelpedRun(
        step_seconds=length,
        alone_seconds=alone.run([()])[0],
        lossy_seconds=fmean(lossy.run([*[()] * _WARM, *drawn])[_WARM:]) if losses.chance else length,
        chance=losses.chance,
        servers=servers,
        losses=sum(map(len, drawn)),
    )


def helped_pipeline(
    plan: Plan, topology: Topology, graph: Graph, job: JobSpec, *, helpers: bool = True
) -> tuple[HelpedPipeline, dict[str, str]]:
    """Return ``plan`` as a pipeline with the unreliable devices of ``topology`` as helpers, and the server of each helper."""
    reliable = topology.select([device.name for device in topology.devices if device.reliable])
    found = estimate(graph, plan, reliable, job, tables=CostTables.of(graph))
    unreliable = [device.name for device in topology.devices if not device.reliable] if helpers else []
    places = expected_helpers(plan, found, topology, unreliable)
    servers = _servers(plan, found, job)
    helping = [
        Helper(
            name=name,
            server=_name(server.stage, server.name),
            speed=float(topology.device(name).achieved) / float(topology.device(server.name).achieved),
            down=wire_between(topology, server.name, name),
            up=wire_between(topology, name, server.name),
        )
        for name, server in places.items()
    ]
    hops = [
        hop_between(topology, a.device, b.device)
        for a in servers
        for b in servers
        if b.stage == a.stage + 1 and a.device != b.device
    ]
    patience = PoolSettings.of(plan, job, 0).patience
    return HelpedPipeline(servers, helping, hops, patience), {name: server.name for name, server in places.items()}


def _servers(plan: Plan, found: Estimate, job: JobSpec) -> list[HelpedServer]:
    servers = []
    for unit in found.replicas:
        pool = PoolSettings.of(plan, job, unit.index)
        servers.append(
            HelpedServer(
                name=_name(unit.index, unit.device),
                device=unit.device,
                stage=unit.index,
                slices=tuple(range(*unit.micro_batches)),
                forward=unit.forward_seconds,
                backward=unit.backward_seconds,
                input=sum(link.forward_bytes for link in found.links if link.target == unit.index),
                output=sum(link.forward_bytes for link in found.links if link.source == unit.index),
                states=_FLOAT * unit.parameters,
                room=pool.room,
                helper_room=pool.helper_room,
                update=unit.update_seconds,
            )
        )
    return servers


def _name(stage: int, device: str) -> str:
    """Return the name of the server of ``stage`` on ``device``: a device may have several stages."""
    return f"{stage} on {device}"


def wire_between(topology: Topology, source: str, target: str) -> Wire:
    """Return the link of ``topology`` from ``source`` to ``target`` as a wire."""
    link = topology.link(source, target)
    return Wire(latency=float(link.latency), per_byte=1.0 / float(link.bandwidth))


def hop_between(topology: Topology, source: str, target: str) -> Hop:
    """Return both wires between two devices with neighboring stages."""
    forward, back = wire_between(topology, source, target), wire_between(topology, target, source)
    return Hop(source=source, target=target, forward=forward, back=back)
