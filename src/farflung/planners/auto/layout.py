"""A place in the search: who computes which run of operators, in which order, with which codec, micro-batches and strategy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate, pairwise

from farflung.cluster import Topology
from farflung.errors import PlanError
from farflung.job.spec import JobSpec, SyncSpec
from farflung.plan import Plan, Stage, check_replicas
from farflung.plan.model import Replica
from farflung.plan.synchronization import with_sync
from farflung.planners.auto.settings import AutoSettings
from farflung.planners.chain_dp import Chain, Slot
from farflung.planners.finish import Problem, draft_stages
from farflung.planners.replicated import shares

__all__ = ["Context", "Groups", "Layout", "divisions"]

Groups = tuple[tuple[int, ...], ...]
Share = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Layout:
    """``groups``: for each stage the indices of the devices that share its micro-batches, its home first. ``cuts``: positions,
    both ends included. ``ratio``: of AdaTopK (0: the job's own codec). ``sizes``: samples of each micro-batch. ``sync``: number
    of the strategy among those allowed (0: the job's own).
    """

    groups: Groups
    cuts: tuple[int, ...]
    schedule: str
    sizes: tuple[int, ...]
    ratio: float = 0.0
    sync: int = 0

    @property
    def devices(self) -> list[int]:
        """The devices, each once, in the order of their first stage."""
        return list(dict.fromkeys(device for group in self.groups for device in group))

    @property
    def width(self) -> int:
        """Devices of the largest group."""
        return max(len(group) for group in self.groups)


def divisions(sizes: Sequence[int], most: int = 64) -> list[tuple[int, ...]]:
    """Other divisions of a step's samples into micro-batches that are at most as large, the largest first."""
    total, largest = sum(sizes), max(sizes)
    found = []
    size = largest
    while size >= 1:
        count = -(-total // size)
        if count > most:
            break
        ends = [total * i // count for i in range(count + 1)]
        found.append(tuple(sorted((b - a for a, b in pairwise(ends)), reverse=True)))
        size //= 2
    return [each for each in dict.fromkeys(found) if each != tuple(sizes)]


class Context:
    """What layouts of one problem stand for: their job, problem, chain, shares and plan."""

    def __init__(self, problem: Problem, settings: AutoSettings) -> None:
        self.problem, self.settings = problem, settings
        self.topology = problem.topology
        self.syncs: tuple[SyncSpec, ...] = (problem.job.sync, *settings.syncs)
        self._problems: dict[tuple[str, float, tuple[int, ...], int], Problem] = {}
        self._chains: dict[tuple[str, tuple[int, ...]], Chain] = {}
        self._shares: dict[tuple[tuple[float, ...], tuple[int, ...]], list[Share]] = {}
        self._divided: dict[tuple[object, ...], tuple[int, ...] | None] = {}
        #: Of each device while all devices of its host compute.
        self.speeds = [float(speed) for speed in self.topology.speeds]
        self._twins = _twins(self.topology)

    def problem_of(self, layout: Layout) -> Problem:
        """The problem with the job as ``layout`` has it."""
        key = (layout.schedule, layout.ratio, layout.sizes, layout.sync)
        if key not in self._problems:
            job = self.problem.job
            codec = job.codec.model_copy(update={"name": "adatopk", "ratio": layout.ratio}) if layout.ratio else job.codec
            virtual = job.virtual_replicas
            changed = {
                "plan": job.plan.model_copy(update={"schedule": layout.schedule}),
                "codec": codec,
                "micro_batch_sizes": layout.sizes,
                "virtual_replicas": None if virtual is None else min(virtual, len(layout.sizes)),
                "sync": self.syncs[layout.sync],
            }
            part = max(layout.sizes) / max(job.micro_batch_sizes)
            tables = self.problem.tables.scaled(part)
            self._problems[key] = replace(self.problem, job=job.model_copy(update=changed), tables=tables)
        return self._problems[key]

    def like(self, groups: Groups) -> tuple[Groups, Groups]:
        """The same for groups that differ only by which of several interchangeable devices they have."""
        devices = [device for group in groups for device in group]
        twins = tuple(tuple(self._twins[device] for device in group) for group in groups)
        if len(set(devices)) == len(devices):
            return twins, ()
        first = {device: number for number, device in enumerate(dict.fromkeys(devices))}
        return twins, tuple(tuple(first[device] for device in group) for group in groups)

    def job_of(self, layout: Layout) -> JobSpec:
        """The job as ``layout`` has it."""
        return self.problem_of(layout).job

    def exact(self, layout: Layout) -> bool:
        """Whether replicas of a layout sum their gradients in every step, so that each stage may have its own replicas."""
        return self.syncs[layout.sync].strategy == "exact"

    def chain(self, layout: Layout) -> Chain:
        """The dynamic program over cuts for the layout's schedule and micro-batches."""
        key = (layout.schedule, layout.sizes)
        if key not in self._chains:
            self._chains[key] = Chain(self.problem_of(replace(layout, ratio=0.0, sync=0)))
        return self._chains[key]

    def shares(self, layout: Layout, group: Sequence[int]) -> list[Share]:
        """(first, end) of the micro-batches of each device of a group.

        Raises:
            PlanError: there are fewer virtual replicas than devices.
        """
        count = len(layout.sizes)
        if len(group) == 1:
            return [(0, count)]
        job = self.job_of(layout)
        speeds = tuple(self.speeds[i] for i in group) if self.exact(layout) else (1.0,) * len(group)
        key = (speeds, layout.sizes)
        if key not in self._shares:
            self._shares[key] = shares(speeds, job)
        return self._shares[key]

    def divide(self, layout: Layout, slacks: Sequence[float] = (1.0, float("inf"))) -> Layout | None:
        """``layout`` with the best cuts for its groups (None: they cannot hold the model, are not made once each, or its schedule
        can't deal out so many stages)."""
        key = (self.like(layout.groups), layout.schedule, layout.sizes, self.exact(layout), tuple(slacks))
        if key not in self._divided:
            try:
                slots = [self._slot(layout, at) for at in range(len(layout.groups))]
                found = self.chain(layout).divide(slots, slacks)
            except PlanError:
                found = None
            self._divided[key] = None if found is None else found[0]
        cuts = self._divided[key]
        return None if cuts is None else replace(layout, cuts=cuts)

    def _slot(self, layout: Layout, at: int) -> Slot:
        """A group as one place: speeds added; a micro-batch takes one of the links between members at the same place."""
        topology, group = self.topology, layout.groups[at]
        devices = [topology.devices[i] for i in group]
        into = back = (0.0, float("inf"))
        if at:
            before = layout.groups[at - 1]
            pairs = [(before[i % len(before)], group[i % len(group)]) for i in range(max(len(before), len(group)))]
            ways = len(pairs)
            into = max(topology.alpha[a, b] for a, b in pairs), ways * min(topology.beta[a, b] for a, b in pairs)
            back = max(topology.alpha[b, a] for a, b in pairs), ways * min(topology.beta[b, a] for a, b in pairs)
        count = len(group)
        job = self.job_of(layout)
        parts = len(job.virtual_ends) if self.exact(layout) else count
        return Slot(
            kind=devices[0].kind,
            convolution=min(device.convolution for device in devices),
            speed=sum(self.speeds[i] for i in group),
            overhead=max(float(topology.devices[i].overhead) / topology.host_shares[i] for i in group) / count,
            memory=min(float(device.memory) for device in devices),
            into=(float(into[0]), float(into[1])),
            back=(float(back[0]), float(back[1])),
            most=-(-len(layout.sizes) // count) if count > 1 else None,
            copies=1.0 + (parts - parts // count) / count if count > 1 else 0.0,
        )

    def plan(self, layout: Layout) -> Plan:
        """The plan that ``layout`` stands for; it may not fit.

        Raises:
            PlanError: there is none, for instance stages that a schedule can't deal out.
        """
        problem, names = self.problem_of(layout), self.topology.names
        stages = []
        for index, (group, (start, stop)) in enumerate(zip(layout.groups, pairwise(layout.cuts), strict=True)):
            if len(set(group)) < len(group):
                raise PlanError(f"stage {index} has a device twice")
            held = tuple(
                Replica(device=names[i], first=a, end=b)
                for i, (a, b) in zip(group, self.shares(layout, group), strict=True)
                if len(group) > 1
            )
            stages.append(Stage(index=index, start=start, stop=stop, device=names[group[0]], replicas=held))
        plan, pieces = draft_stages(problem, tuple(stages), "auto")
        if plan.replicated:
            check_replicas(plan, pieces, problem.job)
        return with_sync(plan, problem.graph, pieces, self.topology, problem.job, problem.cost)

    def layout_of(self, plan: Plan) -> Layout:
        """The layout of a plan (its codecs are taken to be the job's own, its strategy too)."""
        groups = tuple(tuple(self.topology.index(name) for name in stage.devices) for stage in plan.stages)
        cuts = tuple(accumulate((stage.stop - stage.start for stage in plan.stages), initial=0))
        return Layout(groups, cuts, plan.schedule, plan.micro_batch_sizes)


def _twins(topology: Topology) -> list[int]:
    """For each device a number that interchangeable ones share: equal devices at equal places of the network."""
    numbers: dict[tuple[object, ...], int] = {}
    found = []
    for block, device in zip(topology.blocks.group.tolist(), topology.devices, strict=True):
        key = (block, device.kind, device.achieved, device.memory, device.overhead, device.convolution, device.host)
        found.append(numbers.setdefault(key, len(numbers)))
    return found
