"""Copies of stage states on other machines: who keeps whose, how often they are renewed, and what a death costs then.

Source: in-memory checkpoints on peers (as in Gemini, SOSP 2023), and Young's first-order optimum for the time between two,
``sqrt(2 * cost * time between failures)``. What differs: links are slow here, so the cadence is bounded from below by shares of
the links' bytes, of the link's time and of the step's time that copies may take; and only stages without a replica are copied.
All workers keep their own state of the copied step too, because all must go back to it together. Cost: O(devices^2).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from farflung.cluster import Topology
from farflung.job.spec import JobSpec
from farflung.plan.estimation.results import Estimate
from farflung.plan.model import Plan
from farflung.units import Seconds

__all__ = ["Protection", "protect"]

#: Shares that copies may take: of the bytes that the plan sends anyway, of a link's time, of a step's time.
_BYTES, _LINK, _TIME = 0.08, 0.5, 0.02
#: What lossless coding leaves of a copy (``codecs.planes``; measured by ``benchmarks chaos``), and the rate of a link from
#: which copies go uncoded, because the coder would hold them up.
_CODED, _CODER_RATE = 0.8, 2e8
#: Bytes per second at which a state is copied inside memory.
_MEMORY_RATE = 4e9
#: What is kept at most at once of each state: the last whole copy and the one under way.
_VERSIONS = 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Protection:
    """``guards``: device -> who keeps copies of its states (empty: no copies); ``every``: steps from one copy to the next.

    ``seconds``: the same in seconds, which is what a death costs at most where only copies are left. ``nbytes``: of one round of
    copies, ``link_bytes`` of them on links, where they are coded. ``byte_share``: of the bytes that the plan sends anyway.
    ``why_not``: why there are no copies. Where the cadence is not the job's, a run corrects it by the bytes that copies really
    take: ``budget`` of them per step, and ``least`` steps from one copy to the next, whatever they take.
    """

    guards: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    every: int = 0
    seconds: float = 0.0
    nbytes: float = 0.0
    link_bytes: float = 0.0
    least: int = 1
    budget: float = 0.0
    byte_share: float = 0.0
    why_not: str = ""

    def holders(self, plan: Plan, stage: int) -> frozenset[str]:
        """The devices from whose memory the states of ``stage`` can be had."""
        replicas = plan.stages[stage].devices
        return frozenset(replicas).union(*(self.guards.get(device, ()) for device in replicas))

    def tolerates(self, plan: Plan) -> int:
        """How many devices may die at the same time, whichever they are, before a checkpoint is needed."""
        return min(len(self.holders(plan, stage.index)) for stage in plan.stages) - 1

    def __str__(self) -> str:
        if not self.guards:
            return f"copies of the state: none ({self.why_not})"
        kept = ", ".join(f"{device} on {' and '.join(guards)}" for device, guards in self.guards.items())
        every = f"every {self.every} steps ({Seconds(self.seconds)})"
        return f"copies of the state: {kept}; {every}, {self.byte_share:.1%} of the traffic on links"


def protect(plan: Plan, topology: Topology, job: JobSpec, found: Estimate) -> Protection:
    """Who keeps copies of whose states under ``plan``, and how often."""
    if job.on_loss != "recover" or job.copies == 0 or plan.sync is not None:
        return Protection(why_not="the job wants none" if plan.sync is None else "the pipelines of a sync strategy differ")
    states = _state_bytes(found)
    alone = {stage.device for stage in plan.stages if len(stage.devices) == 1} if job.copies == "auto" else set(plan.devices)
    if not alone:
        return Protection(why_not="each stage has a replica")
    if len(plan.devices) < 2:
        return Protection(why_not="the plan has one machine, and only machines of the plan store copies")
    spare = {d.device: d.memory_limit - d.memory_bytes - _VERSIONS * states.get(d.device, 0.0) for d in found.devices}
    guards: dict[str, tuple[str, ...]] = {}
    for device in sorted(alone, key=lambda name: (-states[name], name)):
        chosen = _guards(plan, topology, device, spare, states[device])[: 1 if job.copies == "auto" else job.copies]
        if not chosen or min(spare.values()) < 0:
            return Protection(why_not=f"no machine has memory for two copies of the {states[device] / 1e6:.4g} MB of {device}")
        for guard in chosen:
            spare[guard] -= _VERSIONS * states[device]
        guards[device] = tuple(chosen)
    return _paced(Protection(guards=guards), plan, topology, job, found)


def _guards(plan: Plan, topology: Topology, device: str, spare: Mapping[str, float], nbytes: float) -> list[str]:
    """Who has room for copies of ``device`` and does not hold its stages, the fastest links first, spread over the devices."""
    held = {stage.index for stage in plan.stages_of(device)}
    able = [
        name
        for name in plan.devices
        if name != device and spare[name] >= _VERSIONS * nbytes and not held & {s.index for s in plan.stages_of(name)}
    ]
    return sorted(able, key=lambda name: (-_beta(topology, device, name), -spare[name], name))


def _paced(protection: Protection, plan: Plan, topology: Topology, job: JobSpec, found: Estimate) -> Protection:
    states, step = _state_bytes(found), max(found.step_seconds, 1e-9)
    ways = [(device, guard, _beta(topology, device, guard)) for device, guards in protection.guards.items() for guard in guards]
    copies = [(states[device] * (_CODED if beta < _CODER_RATE else 1.0), beta) for device, _, beta in ways]
    total = sum(size for size, _ in copies)
    sent = job.micro_batches * sum(
        link.forward_bytes + link.backward_bytes for link in found.links if link.source_device != link.target_device
    )
    sent += found.exchange_bytes
    inside = max(states.values()) / _MEMORY_RATE
    known = {device.name: device.mtbf for device in topology.devices}
    failures = 1.0 / sum(1.0 / (known[name] or job.mtbf_hours * 3600.0) for name in plan.devices)
    bounds = [1.0, inside / (_TIME * step), math.sqrt(2.0 * inside * failures) / step]
    bounds += [size / (_LINK * step * beta) for size, beta in copies]
    least, budget = math.ceil(max(bounds)), _BYTES * sent
    every = job.copy_every or max(least, math.ceil(total / budget) if sent else 1)
    return replace(
        protection,
        every=every,
        least=least,
        budget=0.0 if job.copy_every else budget,
        seconds=every * step,
        nbytes=sum(states[device] for device, _, _ in ways),
        link_bytes=total,
        byte_share=total / every / sent if sent else 0.0,
    )


def _state_bytes(found: Estimate) -> dict[str, float]:
    """Bytes of parameters and optimizer state of each device."""
    sizes: dict[str, float] = {}
    for stage in found.replicas:
        sizes[stage.device] = (
            sizes.get(stage.device, 0.0) + stage.memory["parameters"] + stage.memory["optimizer"] + stage.disk_bytes
        )
    return sizes


def _beta(topology: Topology, source: str, target: str) -> float:
    return float(topology.beta[topology.names.index(source), topology.names.index(target)])
