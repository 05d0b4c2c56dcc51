"""``farflung simulate``: a plan in virtual time."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Annotated

import typer

from farflung.api.plan_file import PlanFile
from farflung.api.tolerance import FaultSettings, Tolerance, tolerance
from farflung.cli.completion import complete_run
from farflung.cli.home import run_folder
from farflung.cli.options import about, read_text, to_write, write_text
from farflung.cli.planning.inputs import read_plan, read_time, read_topology
from farflung.cluster import Topology, with_relays
from farflung.errors import InputError
from farflung.graph.ir import Graph
from farflung.job import from_json, load_job
from farflung.job.spec import JobSpec
from farflung.plan.model import Plan
from farflung.simulator import (
    HelpedRun,
    HelperLosses,
    Jitter,
    PriceTable,
    Simulation,
    SimulationSettings,
    Simulator,
    simulate_helped,
)
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
    topology: Annotated[str | None, typer.Option(help="Topology file (TOML) or preset (default: that of the plan).")] = None,
    job: Annotated[Path | None, typer.Option(help="Job file of the plan (default: the job of the plan file or run).")] = None,
    steps: Annotated[int, typer.Option(help="Number of optimizer steps.")] = 1,
    jitter: Annotated[float, typer.Option(help="Spread of computing and transfer times, e.g. 0.1 for about 10 %.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of the random numbers.")] = 0,
    prices: Annotated[Path | None, typer.Option(help="Price table (TOML) with watts, rent and price per GB.")] = None,
    trace: Annotated[Path | None, typer.Option(help="Write a trace file for Perfetto or chrome://tracing.")] = None,
    mtbf: Annotated[
        str | None,
        typer.Option(help='Mean time between failures of a device, e.g. "6 h" (default: topology, then job).'),
    ] = None,
    recovery: Annotated[str | None, typer.Option(help="Pause after a machine dies (default: estimated).")] = None,
    away: Annotated[str | None, typer.Option(help="How long a dead machine is missing (default: replaced at once).")] = None,
    deaths: Annotated[int, typer.Option(min=0, help="Number of machine deaths to simulate.")] = 0,
    helper_loss: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Chance that a helper is lost in a step, of a job with plan.helpers.")
    ] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    home: Annotated[Path | None, typer.Option("--home", help="Home folder of the broker.")] = None,
) -> None:
    """Run a plan in virtual time. Prints step time, load of devices and links, memory and cost."""
    path = _place(plan, home)
    folder = RunFolder(path if path.is_dir() else path.parent)
    file = _with_documents(read_plan(folder.plan if path.is_dir() else path), folder)
    chosen = file.plan
    network = with_relays(read_topology(topology) if topology else _topology(file))
    if trace is not None:
        to_write(trace)
    settings = SimulationSettings(steps=steps, spans=trace is not None, seed=seed, jitter=Jitter(compute=jitter, link=jitter))
    table = None if prices is None else _prices(prices, network)
    faults = FaultSettings(
        mtbf=read_time(mtbf, "--mtbf"),
        recovery=read_time(recovery, "--recovery"),
        away=read_time(away, "--away") or 0.0,
        deaths=deaths,
        seed=seed,
    )
    with Activity() as activity:
        graph, spec = _graph(file, folder, job, activity)
        simulator = Simulator(graph, network, spec, settings)
        activity.phase(f"simulating {counted(steps, 'step')}", silent=True)
        found = simulator.run(chosen, prices=table)
        activity.phase("estimating the throughput with deaths of machines", silent=True)
        survives = _tolerance(simulator, chosen, faults)
        helped = _helped(simulator, chosen, helper_loss)
    if trace is not None:
        write_text(trace, perfetto(found.traces))
    body = {**found.to_dict(), "faults": survives.to_dict()} | ({} if helped is None else {"helpers": asdict(helped)})
    lines = [describe(found), survives.text, *([] if helped is None else [describe_helped(helped)])]
    typer.echo(json.dumps(body, indent=1) if as_json else "\n".join(lines))


def _tolerance(simulator: Simulator, plan: Plan, settings: FaultSettings) -> Tolerance:
    """Return which deaths ``plan`` survives. Its planner makes the plans for the remaining machines."""
    from farflung.api.planning import plan as make_plan

    graph, topology, job = simulator.graph, simulator.topology, simulator.job or JobSpec()
    estimate = simulator.evaluate(plan)
    return tolerance(
        graph, topology, job, (plan, estimate), settings, lambda rest: make_plan(graph, rest, planner=plan.planner, job=job)
    )


def _helped(simulator: Simulator, plan: Plan, chance: float) -> HelpedRun | None:
    """Return the steps of a hybrid plan with its helpers (``None``: the job has none).

    Raises:
        InputError: ``chance`` is given for a job without helpers.
    """
    job, topology = simulator.job or JobSpec(), simulator.topology
    if job.plan.helpers and any(not device.reliable for device in topology.devices):
        losses = HelperLosses(chance=chance, seed=simulator.settings.seed)
        return simulate_helped(plan, topology, simulator.graph, job, losses)
    if chance:
        raise InputError(
            f"--helper-loss {chance:g} needs a job with plan.helpers = true and a topology with unreliable devices; leave it out"
        )
    return None


def describe_helped(found: HelpedRun) -> str:
    """Return the steps with helpers as text."""
    text = (
        f"with {counted(len(found.servers), 'helper')}: {Seconds(found.step_seconds)} for a step, "
        f"without helpers {Seconds(found.alone_seconds)}"
    )
    lost = f"; {Seconds(found.lossy_seconds)} if each helper is lost in {found.chance:.0%} of the steps" if found.chance else ""
    return text + lost


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
        bill, samples = found.bill, found.samples_per_second * found.step_seconds * found.steps
        lines.append(
            f"cost of {counted(found.steps, 'step')}: {bill.total:.4g} {bill.currency}, "
            f"{1000 * bill.total / samples:.4g} {bill.currency} per 1000 samples "
            f"(rent {bill.rent:.3g}, energy {bill.energy:.3g}, traffic {bill.traffic:.3g}), {bill.joules / 3.6e6:.3g} kWh"
        )
    return "\n".join(lines)


def _place(plan: str, home: Path | None) -> Path:
    """Return the plan file ``plan``, or the folder of the run with this name or path.

    Raises:
        InputError: there is neither.
    """
    path = Path(plan)
    return path if path.is_file() or path.suffix == ".json" else run_folder(plan, home)


def _with_documents(file: PlanFile, folder: RunFolder) -> PlanFile:
    """Return ``file`` with the job and the topology of a run's folder where ``file`` has none."""
    job, topology = file.job, file.topology
    if job is None and folder.job.exists():
        job = from_json(read_text(folder.job, "job"))
    if topology is None and folder.topology.exists():
        topology = Topology.from_json(read_text(folder.topology, "topology"))
    return replace(file, job=job, topology=topology)


def _topology(file: PlanFile) -> Topology:
    if file.topology is None:
        raise InputError("no topology: name a TOML file or a preset with --topology, or give the folder of a run")
    return file.topology


def _prices(path: Path, topology: Topology) -> PriceTable:
    """Read the price file ``path``.

    Raises:
        InputError: it can't be read, or it names a region that ``topology`` lacks.
    """
    table = PriceTable.from_toml(path)
    with about(path):
        table.check_regions(topology)
    return table


def _graph(file: PlanFile, folder: RunFolder, job: Path | None, activity: Activity) -> tuple[Graph, JobSpec]:
    """Return the graph beside the plan, or capture it from the job; and the job.

    Raises:
        InputError: no job is known, or the plan is for another graph.
    """
    plan = file.plan
    spec = file.job if job is None else load_job(job)
    if spec is None:
        raise InputError(f"the plan in {folder.root} names no job: add --job JOB.toml, which has optimizer, precision and codec")
    spec = spec.model_copy(update={"evaluate": type(spec.evaluate)(), "generate": type(spec.generate)()})
    if job is None and file.graph is not None:
        graph = file.graph
    elif job is None and folder.graph.exists():
        graph = Graph.from_json(read_text(folder.graph, "graph"))
    elif job is None and (spec.model is None or ".py:" in spec.model.recipe):
        raise InputError(f"no graph.json beside the plan in {folder.root}: say which job it is for with --job JOB.toml")
    else:
        graph = _captured(spec, job or folder.root / "plan", activity)
    if plan.graph_hash != graph.hash:
        raise InputError("the plan is for another graph: make it from this job (farflung plan --json), or name its job")
    return graph, spec


def _captured(spec: JobSpec, source: Path, activity: Activity) -> Graph:
    from farflung.api.submission import bundle_job

    with about(source):
        return bundle_job(spec, base=source.parent, say=activity.phase).graph
