"""``farflung simulate``: a plan in virtual time."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from farflung.api.tolerance import FaultSettings, Tolerance, tolerance
from farflung.cli.completion import complete_run
from farflung.cli.home import run_folder
from farflung.cli.options import about, read_text, to_write, write_text
from farflung.cli.planning.inputs import plan_text, read_time, read_topology
from farflung.cluster import Topology, with_relays
from farflung.errors import InputError
from farflung.graph.ir import Graph
from farflung.job import load_job
from farflung.job.spec import JobSpec
from farflung.plan.fault_tolerance.faults import failure_rates
from farflung.plan.model import Plan
from farflung.simulator import Jitter, PriceTable, Simulation, SimulationSettings, Simulator
from farflung.telemetry import RunFolder, perfetto
from farflung.telemetry.activity import Activity
from farflung.units import Bytes, Seconds, counted

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(simulate)


def simulate(
    plan: Annotated[
        str,
        typer.Argument(
            help="A run (its name or folder), or a plan file (from `farflung plan --json`).", autocompletion=complete_run
        ),
    ],
    topology: Annotated[str | None, typer.Option(help="Topology file (TOML) or preset (default: the run's).")] = None,
    job: Annotated[Path | None, typer.Option(help="Job file of the plan (default: graph.json beside the plan).")] = None,
    steps: Annotated[int, typer.Option(help="Number of optimizer steps.")] = 1,
    jitter: Annotated[float, typer.Option(help="Spread of computing and transfer times, e.g. 0.1 for about 10 %.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
    prices: Annotated[Path | None, typer.Option(help="Price table (TOML) with watts, rent and price per GB.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace file for Perfetto or chrome://tracing.")] = None,
    mtbf: Annotated[
        str | None, typer.Option(help='Mean time between failures of a device, e.g. "6 h" (default: as in the topology).')
    ] = None,
    recovery: Annotated[str | None, typer.Option(help="Pause after a machine dies (default: estimated).")] = None,
    away: Annotated[str | None, typer.Option(help="How long a dead machine is missing (default: replaced at once).")] = None,
    deaths: Annotated[int, typer.Option(min=0, help="Number of machine deaths to simulate.")] = 0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    home: Annotated[Path | None, typer.Option("--home", help="Home folder of the broker.")] = None,
) -> None:
    """Run a plan in virtual time. Prints step time, load of devices and links, memory and cost."""
    path = _place(plan, home)
    folder = RunFolder(path if path.is_dir() else path.parent)
    chosen = _plan(folder.plan if path.is_dir() else path)
    network = with_relays(read_topology(topology) if topology else _topology(folder))
    if trace is not None:
        to_write(trace)
    settings = SimulationSettings(steps=steps, spans=trace is not None, seed=seed, jitter=Jitter(compute=jitter, link=jitter))
    table = None if prices is None else PriceTable.from_toml(prices)
    faults = FaultSettings(
        mtbf=read_time(mtbf, "--mtbf"),
        recovery=read_time(recovery, "--recovery"),
        away=read_time(away, "--away") or 0.0,
        deaths=deaths,
        seed=seed,
    )
    if deaths and not failure_rates(chosen, network, faults.mtbf):
        raise InputError(
            'no machine of this plan has a failure rate: --deaths needs --mtbf, e.g. --mtbf "6 h", or mtbf in the topology'
        )
    with Activity() as activity:
        graph, spec = _graph(folder, job, chosen, activity)
        simulator = Simulator(graph, network, spec, settings)
        activity.phase(f"simulating {counted(steps, 'step')}", silent=True)
        found = simulator.run(chosen, prices=table)
        activity.phase("estimating the throughput with deaths of machines", silent=True)
        survives = _tolerance(simulator, chosen, faults)
    if trace is not None:
        write_text(trace, perfetto(found.traces))
    body = {**found.to_dict(), "faults": survives.to_dict()}
    typer.echo(json.dumps(body, indent=1) if as_json else f"{describe(found)}\n{survives.text}")


def _tolerance(simulator: Simulator, plan: Plan, settings: FaultSettings) -> Tolerance:
    """Return which deaths ``plan`` survives. Its planner makes the plans for the remaining machines."""
    from farflung.api.planning import plan as make_plan

    graph, topology, job = simulator.graph, simulator.topology, simulator.job or JobSpec()
    estimate = simulator.evaluate(plan)
    return tolerance(
        graph, topology, job, (plan, estimate), settings, lambda rest: make_plan(graph, rest, planner=plan.planner, job=job)
    )


def describe(found: Simulation) -> str:
    """Return a simulation as text."""
    lines = ["device            busy    idle    memory (peak / limit)"]
    for use in found.devices:
        memory = f"{Bytes(use.memory_bytes)} / {Bytes(use.memory_limit)}"
        lines.append(f"{use.device:16}  {Seconds(use.busy_seconds)!s:>8}  {use.bubble:5.0%}  {memory}")
    lines += ["", "link                                busy   share  sent"] if found.links else []
    for link in found.links:
        ends = f"{link.source} -> {link.target}"
        lines.append(f"{ends:32}  {Seconds(link.busy_seconds)!s:>8}  {link.share:5.0%}  {Bytes(link.sent_bytes)}")
    lines.append("")
    lines.append(
        f"simulated step: {Seconds(found.step_seconds)}, {found.samples_per_second:.3g} samples/s, bottleneck: {found.bound_by}; "
        f"devices are idle for {found.bubble:.0%} of the time ({counted(found.steps, 'step')} in {Seconds(found.seconds)})"
    )
    if found.bill is not None:
        bill = found.bill
        lines.append(
            f"cost: {bill.total:.4g} {bill.currency} (rent {bill.rent:.3g}, energy {bill.energy:.3g}, "
            f"traffic {bill.traffic:.3g}), {bill.joules / 3.6e6:.3g} kWh"
        )
    return "\n".join(lines)


def _place(plan: str, home: Path | None) -> Path:
    """Return the plan file ``plan``, or the folder of the run with this name or path.

    Raises:
        InputError: there is neither.
    """
    path = Path(plan)
    return path if path.is_file() or path.suffix == ".json" else run_folder(plan, home)


def _plan(path: Path) -> Plan:
    """Read a plan document."""
    return Plan.from_json(plan_text(read_text(path, "plan")))


def _topology(folder: RunFolder) -> Topology:
    if not folder.topology.exists():
        raise InputError("no topology: name a TOML file or a preset with --topology, or give the folder of a run")
    return Topology.from_json(read_text(folder.topology, "topology"))


def _graph(folder: RunFolder, job: Path | None, plan: Plan, activity: Activity) -> tuple[Graph, JobSpec]:
    """Return the graph beside the plan, or capture it from the job."""
    if job is not None:
        from farflung.api.submission import bundle_job

        spec = load_job(job)
        spec = spec.model_copy(update={"evaluate": type(spec.evaluate)(), "generate": type(spec.generate)()})
        with about(job):
            graph = bundle_job(spec, base=job.parent, say=activity.phase).graph
    elif folder.graph.exists():
        spec = JobSpec(micro_batch_sizes=plan.micro_batch_sizes)
        if folder.job.exists():
            spec = JobSpec.model_validate_json(read_text(folder.job, "job"))
        graph = Graph.from_json(read_text(folder.graph, "graph"))
    else:
        raise InputError(f"no graph.json beside the plan in {folder.root}: say which job it is for with --job JOB.toml")
    if plan.graph_hash != graph.hash:
        raise InputError("the plan is for another graph: make it from this job (farflung plan --json), or name its job")
    return graph, spec
