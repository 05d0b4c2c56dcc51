"""From a job and a topology to a plan with its estimate."""

from __future__ import annotations

from collections.abc import Callable

from farflung.broker.planning.planned import Planned
from farflung.cluster import Topology
from farflung.errors import FarflungError, PlanError
from farflung.foreign_code import translated
from farflung.graph.ir import Graph
from farflung.job.check import decided
from farflung.job.spec import JobSpec, SyncSpec
from farflung.messages.submission import Bundle
from farflung.plan import Estimate, Plan, check_memory, check_plan, estimate
from farflung.plan.reduction_choice import reduction_lines
from farflung.plan.report.helper_traffic import helped_lines
from farflung.planners import Constrained, Evaluate, Judged, Planner, get_planner
from farflung.planners.finish import Problem
from farflung.protocol.hybrid.expected_helpers import expected_helpers, with_helpers
from farflung.protocol.hybrid.server_choice import Server

__all__ = ["Judge", "plan_run", "predict_plan"]

#: Returns the function that predicts the plans of one graph, topology and job; ``api`` uses the simulator.
Judge = Callable[[Graph, Topology, JobSpec], Evaluate]


def plan_run(
    bundle: Bundle,
    topology: Topology,
    judge: Judge | None = None,
    planner: Planner | None = None,
    running: Plan | None = None,
) -> Planned:
    """Plan ``bundle`` for ``topology`` with the job's planner and check the result.

    ``judge``: predicts step times, also where the planner compares plans (default: the timed dry-run).
    ``planner``: replaces the job's planner. ``running``: the plan that ran until now; a move of states must be worth it.
    With ``plan.helpers``, reliable devices count as fast as they are with the helpers that they will have.

    Raises:
        PlanError: no plan fits; the text says which device lacks how much memory. Or the planner (of a plug-in) fails.
    """
    everybody = topology
    if bundle.job.plan.helpers:
        topology = _with_stages(bundle.graph, topology)
    planner = planner or get_planner(bundle.job.plan.planner)
    if not isinstance(planner, Constrained):
        planner = Constrained(planner, running=running, advise=False)
    plan = _planned(bundle, topology, judge, planner)
    if len(topology) < len(everybody):
        plan = _planned(bundle, _helped(bundle, plan, topology, everybody), judge, planner)
    job = _decided(bundle.job, plan)
    pieces = check_plan(plan, bundle.graph, topology, job)
    predicted = predict_plan(bundle, plan, everybody, judge)
    check_memory(predicted, bundle.job)
    chosen = job if bundle.job.open.anything else None
    helpers = _expected(bundle, plan, topology, everybody) if len(topology) < len(everybody) else {}
    return Planned(
        plan=plan,
        topology=topology,
        cluster=everybody,
        estimate=predicted,
        codec=job.codec,
        workers=job.workers,
        limits=job.limits,
        parts=len(Problem.of(bundle.graph, topology, job).runs),
        decided=chosen,
        sums=tuple(reduction_lines(plan, bundle.graph, pieces, topology)),
        helped=tuple(helped_lines(plan, bundle.graph, pieces, everybody, job, predicted.step_seconds)),
        helpers={name: (server.name, server.stage) for name, server in helpers.items()},
    )


def predict_plan(bundle: Bundle, plan: Plan, topology: Topology, judge: Judge | None = None) -> Estimate:
    """Return what ``plan`` is predicted to cost on ``topology``, with the helpers that it will have there."""
    servers = _with_stages(bundle.graph, topology) if bundle.job.plan.helpers else topology
    if len(servers) < len(topology):
        servers = _helped(bundle, plan, servers, topology)
    return judge(bundle.graph, servers, bundle.job)(plan) if judge else estimate(bundle.graph, plan, servers, bundle.job)


def _planned(bundle: Bundle, topology: Topology, judge: Judge | None, planner: Planner) -> Plan:
    if judge is not None and isinstance(planner, Judged):
        planner = planner.judged_by(judge(bundle.graph, topology, bundle.job))
    with translated(lambda error: _failure(bundle.job.plan.planner, error)):  # a plug-in's planner may raise anything
        return planner.plan(bundle.graph, topology, job=bundle.job)


def _helped(bundle: Bundle, plan: Plan, servers: Topology, everybody: Topology) -> Topology:
    """Return ``servers`` with the speeds that they have with their helpers, if ``plan`` runs."""
    return with_helpers(servers, everybody, _expected(bundle, plan, servers, everybody))


def _expected(bundle: Bundle, plan: Plan, servers: Topology, everybody: Topology) -> dict[str, Server]:
    """Return the server that each unreliable device of ``everybody`` will help, if ``plan`` runs on ``servers``."""
    alone = estimate(bundle.graph, plan, servers, bundle.job)
    unreliable = [device.name for device in everybody.devices if not device.reliable]
    return expected_helpers(plan, alone, everybody, unreliable)


def _failure(planner: str, error: Exception) -> Exception:
    if isinstance(error, FarflungError):
        return error
    return PlanError(f"the planner {planner} failed: {type(error).__name__}: {error}")


def _with_stages(graph: Graph, topology: Topology) -> Topology:
    """Return the devices that get stages, if unreliable devices only help.

    Raises:
        PlanError: there are none, or the model can't use helpers: it passes a state from micro-batch to micro-batch.
    """
    if graph.state_updates:
        raise PlanError(
            f"plan.helpers: the model updates {graph.state_updates[0][0]!r} in its forward (batch norm), micro-batch after "
            "micro-batch, so its slices can't go to several devices; use a norm without running statistics, or set "
            "plan.helpers = false"
        )
    reliable = [device.name for device in topology.devices if device.reliable]
    if not reliable:
        raise PlanError(
            f"plan.helpers gives stages to reliable devices only, and none of the {len(topology.names)} is; mark one with "
            "reliable = true, or set plan.helpers = false"
        )
    return topology if len(reliable) == len(topology.names) else topology.select(reliable)


def _decided(job: JobSpec, plan: Plan) -> JobSpec:
    """Return the job with the decisions of the plan."""
    if not job.open.anything:
        return job
    name = "exact" if plan.sync is None else plan.sync.strategy
    return decided(job, plan.micro_batch_sizes, job.sync if name == job.sync.strategy else SyncSpec(strategy=name))
