"""Plans and their simulation, for programs: the simulator is what judges plans here."""

from __future__ import annotations

from farflung.cluster import Topology
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import Plan
from farflung.planners import Constrained, Evaluate, Planner, get_planner
from farflung.planners.constraints import check_limits
from farflung.simulator import PriceTable, Simulation, SimulationSettings, Simulator
from farflung.simulator import simulate as simulate_plan

__all__ = ["judge", "plan", "simulate"]


def judge(graph: Graph, topology: Topology, job: JobSpec | None = None) -> Evaluate:
    """The estimate of a plan with the simulator's step time: what planners and the broker take as ``evaluate``."""
    return Simulator(graph, topology, job).evaluate


def plan(graph: Graph, topology: Topology, *, planner: str | Planner = "auto", job: JobSpec | None = None) -> Plan:
    """Plan ``graph`` on ``topology`` with a planner, by name or as it is; those that compare plans do so by simulation.

    Raises:
        InputError: no planner has that name, or a limit of the job names no device.
        PlanError: no plan fits; the text says which device lacks how much.
    """
    chosen = Constrained(get_planner(planner) if isinstance(planner, str) else planner)
    check_limits(topology, (job or JobSpec()).limits)
    return chosen.judged_by(judge(graph, topology, job)).plan(graph, topology, job=job)


def simulate(
    plan: Plan,
    topology: Topology,
    graph: Graph,
    *,
    job: JobSpec | None = None,
    steps: int = 1,
    settings: SimulationSettings | None = None,
    prices: PriceTable | None = None,
) -> Simulation:
    """Run a plan in virtual time for ``steps`` steps (see ``simulator.simulate``; ``settings`` wins over ``steps``)."""
    chosen = settings or SimulationSettings(steps=steps)
    return simulate_plan(plan, topology, graph, job=job, settings=chosen, prices=prices)
