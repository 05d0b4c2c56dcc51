"""``simulate``: a plan on a topology, in virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from farflung.cluster import Topology
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import CostTables, Estimate, Plan, estimate
from farflung.simulator.machine import Machine, Outcome
from farflung.simulator.plan_program import Situation, allocated, lower
from farflung.simulator.prices import PriceTable
from farflung.simulator.program import Program
from farflung.simulator.result import DeviceUse, LinkUse, MemoryPoint, Simulation
from farflung.simulator.settings import SimulationSettings
from farflung.simulator.spans import traces_of

__all__ = ["Simulator", "simulate"]


class Simulator:
    """Simulates plans of one graph under one job; what belongs to the graph is computed once."""

    def __init__(
        self,
        graph: Graph,
        topology: Topology,
        job: JobSpec | None = None,
        settings: SimulationSettings | None = None,
        tables: CostTables | None = None,
    ) -> None:
        self.graph, self.topology, self.job = graph, topology, job
        self.settings = settings or SimulationSettings()
        self.tables = tables or CostTables.of(graph)

    def evaluate(self, plan: Plan) -> Estimate:
        """The plan's estimate with the simulator's step time and what it is bound by (one step, without jitter)."""
        return self.judge(plan)[0]

    def judge(self, plan: Plan, prices: PriceTable | None = None) -> tuple[Estimate, Simulation]:
        """Return what ``evaluate`` returns, and the simulation that it comes from."""
        pieces = self.tables.cutter.cut(plan.bounds)
        found, program = self._lower(plan, pieces)
        result = summarize(program, Machine(program, self.settings).run(), self.topology, self.settings, prices)
        busy = max(*(use.busy_seconds for use in result.devices), *(use.busy_seconds for use in result.links), 0.0)
        judged = replace(
            found,
            step_seconds=result.step_seconds,
            step_throughput=result.samples_per_second,
            bound_by=result.bound_by,
            bound_share=min(1.0, busy / result.seconds) if result.seconds > 0 else 0.0,
        )
        return judged, result

    def run(self, plan: Plan, subgraphs: Sequence[SubGraph] | None = None, prices: PriceTable | None = None) -> Simulation:
        """Simulate ``plan`` (see ``simulate``)."""
        pieces = self.tables.cutter.cut(plan.bounds) if subgraphs is None else subgraphs
        _, program = self._lower(plan, pieces)
        return summarize(program, Machine(program, self.settings).run(), self.topology, self.settings, prices)

    def _lower(self, plan: Plan, pieces: Sequence[SubGraph]) -> tuple[Estimate, Program]:
        job = self.job or JobSpec(micro_batch_sizes=plan.micro_batch_sizes)
        found = estimate(self.graph, plan, self.topology, job, subgraphs=pieces, tables=self.tables)
        situation = Situation(graph=self.graph, plan=plan, topology=self.topology, job=job, pieces=pieces, estimate=found)
        return found, lower(situation, self.settings)


def simulate(
    plan: Plan,
    topology: Topology,
    graph: Graph,
    *,
    job: JobSpec | None = None,
    settings: SimulationSettings | None = None,
    prices: PriceTable | None = None,
) -> Simulation:
    """Run ``plan`` on ``topology`` in virtual time, under the rules of the runtime.

    ``graph`` is captured for the largest micro-batch; computing seconds, bytes and memory are those of ``plan.estimation``.
    Whether the plan fits the devices' memory is not asked here: the result has peak and limit of each.

    Raises:
        InputError: the topology lacks a device of the plan, or a codec or schedule is unknown.
        GraphError: the stages do not tile the graph.
        PlanError: stages wait for each other forever.
    """
    return Simulator(graph, topology, job, settings).run(plan, prices=prices)


def summarize(
    program: Program, outcome: Outcome, topology: Topology, settings: SimulationSettings, prices: PriceTable | None = None
) -> Simulation:
    """The result in the words of plan and topology."""
    ends = outcome.ends
    seconds = ends[-1]
    step = (ends[-1] - ends[0]) / (len(ends) - 1) if len(ends) > 1 else seconds
    devices = tuple(
        DeviceUse(
            device=name,
            busy_seconds=outcome.busy[i],
            bubble=1.0 - outcome.busy[i] / seconds if seconds > 0 else 0.0,
            memory_bytes=allocated(program, i, outcome.peak[i]),
            memory_limit=float(topology.device(name).memory),
        )
        for i, name in enumerate(program.devices)
    )
    links = tuple(
        LinkUse(
            source=program.devices[link.source],
            target=program.devices[link.target],
            busy_seconds=outcome.link_busy[i],
            share=outcome.link_busy[i] / seconds if seconds > 0 else 0.0,
            sent_bytes=outcome.link_bytes[i],
        )
        for i, link in enumerate(program.links)
    )
    sent: dict[tuple[str, str], float] = {}
    for use in links:
        pair = (topology.device(use.source).region, topology.device(use.target).region)
        sent[pair] = sent.get(pair, 0.0) + use.sent_bytes
    busy = {use.device: use.busy_seconds for use in devices}
    return Simulation(
        steps=settings.steps,
        step_seconds=step,
        seconds=seconds,
        samples_per_second=program.samples / step if step > 0 else float("inf"),
        bubble=sum(use.bubble for use in devices) / len(devices),
        devices=devices,
        links=links,
        events=outcome.events,
        bill=prices.bill(seconds, busy, sent) if prices else None,
        traces=traces_of(program, outcome) if settings.spans else (),
        memory=tuple(
            MemoryPoint(seconds=at, device=program.devices[i], nbytes=allocated(program, i, size))
            for at, i, size in outcome.memory
        ),
    )
