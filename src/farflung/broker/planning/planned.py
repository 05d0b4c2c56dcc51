"""A plan with its topology and estimate, and how people read it."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from farflung.cluster import Topology
from farflung.job.spec import CodecSpec, JobSpec, LimitSpec
from farflung.plan import Estimate, Plan, explain
from farflung.plan.fault_tolerance.protection import Protection, protect
from farflung.plan.report.summary import listed, plan_line
from farflung.plan.usable_devices import allowed_devices
from farflung.units import BytesPerSecond, Seconds

__all__ = ["Planned", "RelayUse", "why_idle"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RelayUse:
    """``pair`` reach each other through ``relays[0]``; the other relays are backups. Figures are for both directions."""

    pair: tuple[str, str]
    relays: tuple[str, ...]
    latency: tuple[Seconds, Seconds]
    bandwidth: tuple[BytesPerSecond, BytesPerSecond]

    @classmethod
    def of(cls, topology: Topology, pair: tuple[str, str]) -> RelayUse:
        """Return the relays and figures of ``pair`` in ``topology``."""
        ways = [topology.link(*ends) for ends in (pair, pair[::-1])]
        return cls(
            pair=pair,
            relays=topology.via[pair],
            latency=(ways[0].latency, ways[1].latency),
            bandwidth=(ways[0].bandwidth, ways[1].bandwidth),
        )

    def __str__(self) -> str:
        """For people, in one line."""
        a, b = self.pair
        ways = [f"{rate}, {late} {way}" for rate, late, way in zip(self.bandwidth, self.latency, ("there", "back"), strict=True)]
        backup = f"; backup: {', '.join(self.relays[1:])}" if self.relays[1:] else ""
        return f"{a} and {b} cannot connect directly: their traffic goes through {self.relays[0]} ({'; '.join(ways)}{backup})"


@dataclass(frozen=True, kw_only=True)
class Planned:
    """A plan, the topology for which it was made, and its estimate."""

    plan: Plan
    topology: Topology
    #: All devices: those of ``topology``, which may have stages, and unreliable ones, which only help.
    cluster: Topology
    estimate: Estimate
    codec: CodecSpec
    #: The number of workers that the job asks for.
    workers: int | None = None
    limits: LimitSpec
    #: The largest number of stages into which the model can be cut.
    parts: int
    #: The job with the decisions that it left open (None: it leaves nothing open).
    decided: JobSpec | None = None
    #: Joined workers that are not in the submitted topology.
    strangers: tuple[str, ...] = ()
    #: How replicas add gradients if the job leaves the order open, as lines.
    sums: tuple[str, ...] = ()
    #: The traffic of helpers, as lines.
    helped: tuple[str, ...] = ()
    #: The server and the stage with which each helper that was present at planning begins.
    helpers: Mapping[str, tuple[str, int]] = field(default_factory=dict)

    @property
    def plan_json(self) -> str:
        """The plan as a document."""
        return self.plan.to_json()

    def protection(self, job: JobSpec) -> Protection:
        """Which devices store copies of the states of other devices."""
        return protect(self.plan, self.topology, job, self.estimate)

    def exposed(self, job: JobSpec) -> str:
        """Return what the death of a device costs, where idle devices could store copies and do not (empty: elsewhere).

        A run that is shorter than the time between two checkpoints for recovery has little to lose, and is left out.
        """
        protection = self.protection(job)
        wanted = job.on_loss == "recover" and job.copies != 0 and self.plan.sync is None
        alone = any(len(stage.devices) == 1 for stage in self.plan.stages)
        between = job.checkpoint.recover_every
        short = job.copies == "auto" and job.steps * self.estimate.step_seconds <= between
        if protection.guards or short or not (wanted and alone and self.unused):
            return ""
        return (
            f"no copies of the state ({protection.why_not}): a death repeats the steps since the newest checkpoint"
            f"{f', at most about {Seconds(between)}' if between else ''}; plan.replicas = 2 avoids that"
        )

    @property
    def summary(self) -> str:
        """Stages, devices, predicted step and bottleneck in one line; unused devices are named, with a short reason."""
        unused = [f"; unused: {listed(names)} ({why.partition(';')[0]})" for names, why in self._unused()]
        return plan_line(self.plan, self.estimate) + "".join(unused)

    @property
    def explanation(self) -> str:
        """The whole estimate as tables, and the notes."""
        return "\n".join([explain(self.estimate), *self.notes])

    @property
    def notes(self) -> tuple[str, ...]:
        """Notes on the estimate, as lines: decisions, dense links, helpers, relays, hosts, devices."""
        lines = [
            *self._decisions(),
            *self._dense_links(),
            *self.sums,
            *self.helped,
            *map(str, self.relays),
            *self._shared_hosts(),
        ]
        return (*lines, *(f"unused: {listed(names)} ({why})" for names, why in self._unused()))

    @property
    def unused(self) -> dict[str, str]:
        """The devices without a stage, and the reasons."""
        return {name: why for names, why in self._unused() for name in names}

    def _unused(self) -> list[tuple[Sequence[str], str]]:
        """Return the devices without a stage, and the reasons."""
        allowed = {device.name for device in allowed_devices(self.topology, self.limits)}
        idle = [name for name in self.topology.names if name not in self.plan.devices]
        groups: list[tuple[Sequence[str], str]] = [
            ([name for name in idle if name in allowed], self._why_idle()),
            ([name for name in idle if name not in allowed], "excluded by the limits of the job"),
            (self.strangers, "missing in the submitted topology; join under a name of the topology"),
        ]
        return [(names, why) for names, why in groups if names]

    @property
    def relays(self) -> tuple[RelayUse, ...]:
        """The pairs of devices of the plan that reach each other through another one."""
        used = set(self.plan.devices)
        return tuple(
            RelayUse.of(self.topology, pair) for pair, relays in sorted(self.topology.via.items()) if relays and set(pair) <= used
        )

    def _shared_hosts(self) -> Iterator[str]:
        """Yield the devices of the plan that slow each other down."""
        for capacity, members in self.topology.hosts:
            names = [name for name in (self.topology.names[i] for i in members) if name in self.plan.devices]
            if len(names) > capacity:
                yield f"{', '.join(names)} share the cores of one host; {capacity:.1f} of them reach full speed at the same time"

    def _decisions(self) -> list[str]:
        """Return the decisions that the job left open, as a line for the job file."""
        job = self.decided
        if job is None:
            return []
        lines = [f"micro_batch_sizes = {list(job.micro_batch_sizes)}"]
        if job.sync.strategy != "exact":
            lines.append(f'[sync] strategy = "{job.sync.strategy}", [plan] replicas = {len(self.plan.stages[0].devices)}')
        return ["decided by the planner (write it into the job in place of [open] to fix it): " + "; ".join(lines)]

    def _why_idle(self) -> str:
        if self.workers is not None and len(self.plan.devices) >= self.workers:
            return f"the job sets workers = {self.workers}"
        return why_idle(self.plan, len(self.topology), self.parts, self.limits)

    def _dense_links(self) -> list[str]:
        """Return the links without codec, where the job wants its codec on slow links only."""
        if self.codec.where == "all" or self.codec.name == "identity":
            return []
        links = [link for link in self.estimate.links if link.source_device != link.target_device]
        dense = [f"{link.source} -> {link.target}" for link in links if link.activations == link.gradients == "identity"]
        if not dense:
            return ["codec.where = slow: every link is slow enough to use the codec"]
        return [f"codec.where = slow: without codec, because the transfers do not delay the step: {listed(dense)}"]


def why_idle(plan: Plan, devices: int, parts: int, limits: LimitSpec) -> str:
    """Return why ``plan`` leaves some of ``devices`` idle. ``parts``: the largest number of stages of the model."""
    fewest, stages = min(len(stage.devices) for stage in plan.stages), len(plan.stages)
    if fewest > 1 and devices - len(plan.devices) < fewest:
        return f"{fewest} idle devices are needed for one more stage with {fewest} replicas"
    if stages >= parts:
        return "the model cannot be cut into more stages"
    if stages == limits.stages:
        return f"the job sets limits.stages = {stages}"
    return f'{plan.planner} predicts no shorter step with more devices; plan.planner = "equal_number" uses all'
