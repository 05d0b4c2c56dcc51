"""``farflung plan``: plan a job without running it, or explain the plan of a run."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from farflung.api.plan_file import PlanFile
from farflung.api.topology_changes import WHAT_IF, changed_topology
from farflung.broker.planning import Planned, plan_run
from farflung.cli.completion import complete_run
from farflung.cli.home import broker_folder, ticket_file
from farflung.cli.options import HomeOption, VerboseOption, about, to_write
from farflung.cli.planning.inputs import check_files, read_plan, read_time, read_topology
from farflung.cli.planning.run_plan import FixedPlan, find_run, read_run
from farflung.cluster import Topology, with_relays
from farflung.errors import InputError
from farflung.job import load_job, make_job
from farflung.job.spec import JobSpec
from farflung.messages.submission import Bundle
from farflung.plan import Plan, plan_answer, stage_table
from farflung.plan.report.decision_report import chosen_lines
from farflung.plan.synchronization import sync_lines
from farflung.planners import get_planner
from farflung.telemetry.activity import Activity
from farflung.units import Seconds, counted

if TYPE_CHECKING:
    from farflung.api.plan_explanation import Reasons
    from farflung.api.tolerance import Tolerance
    from farflung.planners.auto import AutoSettings

__all__ = ["register"]

#: A device or link that speeds a step up by less, at twice its speed, is no bottleneck worth naming.
_LITTLE = 1.05
#: Printed below a plan.
_MORE = "\nmore: -v prints all tables, --explain compares alternatives, --draw plan.html draws the plan, --json prints JSON"


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(plan)


def with_limits(spec: JobSpec, limits: Mapping[str, object]) -> JobSpec:
    """Return ``spec`` with some of its limits replaced.

    Raises:
        InputError: a value is not allowed.
    """
    return make_job(spec.model_dump() | {"limits": spec.limits.model_dump() | dict(limits)}) if limits else spec


def plan(
    job: Annotated[
        str,
        typer.Argument(help="The job file (TOML), or a run (name or folder) to explain its plan.", autocompletion=complete_run),
    ],
    topology: Annotated[str | None, typer.Option(help="Topology: a TOML file or a preset. A run has its own.")] = None,
    planner: Annotated[str | None, typer.Option(help="Planner (default: as in the job).")] = None,
    codec: Annotated[str | None, typer.Option(help="Codec (default: as in the job).")] = None,
    explain: Annotated[
        bool, typer.Option("--explain/--no-explain", help="Also explain the bottleneck and compare alternatives.")
    ] = False,
    draw: Annotated[Path | None, typer.Option(help="Draw a map and a time chart to FILE.html or FILE.svg.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print plan and estimate as JSON.")] = False,
    what_if: Annotated[list[str] | None, typer.Option("--what-if", help=WHAT_IF)] = None,
    evaluations: Annotated[int, typer.Option(min=0, help="Planner auto: number of plans to evaluate.")] = 64,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Planner auto: stop after this many seconds instead.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Do not use this device or region.")] = None,
    engines: Annotated[list[str] | None, typer.Option(help="Use only this engine, perhaps with versions: torch>=2.13.")] = None,
    stages: Annotated[int | None, typer.Option(min=1, help="Maximum number of stages.")] = None,
    unreliable: Annotated[str | None, typer.Option(help="Unreliable devices: any, avoid, or backed (by a reliable one).")] = None,
    data: Annotated[list[str] | None, typer.Option(help="Device or region that the data must not leave.")] = None,
    running: Annotated[Path | None, typer.Option(help="Plan that runs now; moving stages must pay off.")] = None,
    mtbf: Annotated[
        str | None, typer.Option(help='Mean time between failures of a device, e.g. "6 h" (default: as in the topology).')
    ] = None,
    verbose: VerboseOption = False,
    home: HomeOption = None,
) -> None:
    """Plan a job for the machines of a topology and predict its step time, or explain the plan of a run. Nothing is trained."""
    from farflung.planners.auto import AutoSettings

    between = read_time(mtbf, "--mtbf")
    if between is not None and not explain:
        raise InputError("--mtbf needs --explain, which estimates the cost of machine deaths: add --explain")
    if draw is not None:
        from farflung.web.reports.drawing import check_drawing

        check_drawing(draw)
        to_write(draw)
    limits = {"exclude": exclude, "engines": engines, "stages": stages, "unreliable": unreliable, "data": data}
    limits = {key: value for key, value in limits.items() if value is not None}
    case = _read_case(job, topology, {"planner": planner, "codec": codec}, limits, running, home)
    spec = case.job
    if seconds and (spec.plan.planner != "auto" or case.planned_before):
        raise InputError("--seconds is for the planner auto: add --planner auto")
    auto = AutoSettings(evaluations=evaluations, seconds=seconds, stages=spec.limits.stages, replicas=spec.limits.replicas)
    changed = {text: with_relays(changed_topology(case.topology, text)) for text in what_if or ()}
    chosen = with_relays(case.topology)
    with Activity() as activity:
        bundle = case.bundle(chosen, activity)
        planning = _Planning(
            bundle=bundle, topology=chosen, auto=auto, mtbf=between, running=case.running, fixed=case.planned_before
        )
        if case.planned_before is None:
            activity.phase(f"planning for {counted(len(chosen), 'device')} with the planner {spec.plan.planner}")
        planned = planning.plan(chosen)
        others = {text: planning.plan(other, start=(planned.plan,)) for text, other in changed.items()}
        activity.phase("looking for the bottleneck by simulation", silent=True)
        why = planning.reasons(planned) if explain else None
        faults = planning.tolerance(planned) if explain else None
        remedy = "" if as_json else planning.remedy(planned)
    if draw is not None:
        typer.echo(f"drawn: {planning.draw(planned, (why, faults), draw)}", err=True)
    if as_json:
        typer.echo(json.dumps(_body(planned.decided or bundle.job, planned, others, (why, faults)), indent=1))
    else:
        typer.echo(_answer(planned, topology=chosen, remedy=remedy, verbose=verbose))
        if explain:
            lines = chosen_lines(planned.plan, bundle.graph, chosen, bundle.job) + sync_lines(
                planned.plan, bundle.graph, bundle.job
            )
            typer.echo("".join(f"{line}\n" for line in lines), nl=False)
        typer.echo(_told(why, faults) or _MORE)
        if others:
            typer.echo("\n" + _comparison(planned, others))


@dataclass(frozen=True, kw_only=True)
class _Case:
    """What to plan. ``source``: the job file, or the bundle of a run. ``planned_before``: the plan of this run."""

    job: JobSpec
    source: Path | Bundle
    topology: Topology
    running: Plan | None = None
    planned_before: Plan | None = None

    def bundle(self, topology: Topology, activity: Activity) -> Bundle:
        """Return the job with its graph; a job file's model is captured now."""
        if isinstance(self.source, Bundle):
            return self.source
        from farflung.api.submission import bundle_job, check_data

        activity.phase("loading the model", silent=True)
        with about(self.source):
            bundle = bundle_job(self.job, base=self.source.parent, topology=topology, say=activity.phase)
        check_data(bundle, self.source.parent)
        return bundle


def _read_case(
    text: str,
    topology: str | None,
    names: Mapping[str, str | None],
    limits: Mapping[str, object],
    running: Path | None,
    home: Path | None,
) -> _Case:
    """Read the job file or the run ``text``. ``names``: a planner and a codec instead of the job's.

    Raises:
        InputError: ``text`` is neither, or an option excludes another.
    """
    from farflung.planners.constraints import check_limits

    folder = find_run(text, home)
    if folder is not None:
        given = {"--topology": topology, **{f"--{key}": name for key, name in names.items()}, "--running": running}
        wrong = [name for name, value in given.items() if value is not None] + [f"--{name}" for name in limits]
        if wrong:
            raise InputError(
                f"{wrong[0]} makes another plan, but {text!r} is a run, whose plan is explained: remove {wrong[0]}, or name the "
                "job file"
            )
        bundle, place, plan = read_run(folder)
        return _Case(job=bundle.job, source=bundle, topology=place, planned_before=plan)
    spec = load_job(text)
    if (planner := names["planner"]) is not None:
        _check_planner(planner)
        spec = spec.model_copy(update={"plan": spec.plan.model_copy(update={"planner": planner})})
    if (codec := names["codec"]) is not None:
        spec = make_job(spec.model_dump() | {"codec": spec.codec.model_dump() | {"name": codec}}, source="--codec")
    if topology is None:
        raise InputError(_no_topology(home))
    chosen = read_topology(topology)
    spec = with_limits(spec, limits)
    check_limits(chosen, spec.limits)
    _note_engines(chosen, spec)
    check_files(spec, Path(text))
    now = None if running is None else read_plan(running).plan
    return _Case(job=spec, source=Path(text), topology=chosen, running=now)


def _note_engines(topology: Topology, spec: JobSpec) -> None:
    """Print a line on stderr if ``limits.engines`` can't leave out devices because the topology states no engine for them."""
    silent = sum(not device.engine for device in topology.devices)
    if spec.limits.engines and silent:
        typer.echo(
            f"note: limits.engines does not apply to {silent} of {counted(len(topology), 'device')}: "
            "the topology states no engine for them",
            err=True,
        )


def _no_topology(home: Path | None) -> str:
    """Return how to plan for the workers of a broker, and for other machines."""
    here = ticket_file(broker_folder(home)).exists()
    broker = ("" if home is None else f" --home {shlex.quote(str(home))}") if here else " --ticket TICKET"
    return (
        "a job file needs a topology to plan for: add --topology FILE or --topology PRESET; for the workers of "
        f"{'the broker on this machine' if here else 'your broker'}, farflung profile{broker} --save links.toml writes FILE"
    )


def _check_planner(name: str) -> None:
    try:
        get_planner(name)
    except InputError as error:
        raise InputError(f"--planner: {error}") from None


@dataclass(frozen=True, kw_only=True)
class _Planning:
    """A job to plan, for the given topology and for changed ones. ``fixed``: the plan for the given topology, if it exists."""

    bundle: Bundle
    topology: Topology
    auto: AutoSettings
    mtbf: float | None = None
    running: Plan | None = None
    fixed: Plan | None = None

    def plan(self, topology: Topology, start: tuple[Plan, ...] = ()) -> Planned:
        """The plan for ``topology``; ``start``: plans that the planner auto begins with."""
        from farflung.api.planning import judge
        from farflung.planners import Constrained
        from farflung.planners.auto import Auto
        from farflung.planners.interleaved import Interleaving
        from farflung.planners.scheduled import Offloading, Siting

        if self.fixed is not None and topology is self.topology:
            return plan_run(self.bundle, topology, judge, FixedPlan(self.fixed))
        name = self.bundle.job.plan.planner
        running = (self.running,) if self.running else ()
        auto = Offloading(Siting(Interleaving(Auto(replace(self.auto, start=(*running, *start))))))
        planner = auto if name == "auto" else get_planner(name)
        return plan_run(self.bundle, topology, judge, Constrained(planner, running=self.running))

    def reasons(self, planned: Planned, *, changes: bool = True) -> Reasons:
        """Why the plan is as it is. ``changes``: compare it with other planners and topologies."""
        from farflung.api.plan_explanation import Case, reasons

        bundle = self.bundle
        case = Case(
            graph=bundle.graph,
            topology=self.topology,
            job=bundle.job,
            plan=planned.plan,
            estimate=planned.estimate,
            replan=lambda topology: self.plan(topology, start=(planned.plan,)).plan,
        )
        return reasons(case, changes=changes)

    def remedy(self, planned: Planned) -> str:
        """What would shorten the step most, by simulation (empty: nothing alone)."""
        found = self.reasons(planned, changes=False)
        best = found.best
        if best is None or best.factor < _LITTLE:
            return f"no single device or link helps much; {found.waiting}"
        return f"{best.what}: {Seconds(best.seconds)} per step ({best.factor:.2f}x as fast)"

    def tolerance(self, planned: Planned) -> Tolerance:
        """What the plan survives."""
        from farflung.api.tolerance import FaultSettings, tolerance

        bundle = self.bundle
        return tolerance(
            bundle.graph,
            self.topology,
            bundle.job,
            (planned.plan, planned.estimate),
            FaultSettings(mtbf=self.mtbf),
            lambda topology: self.plan(topology).plan,
        )

    def draw(self, planned: Planned, words: tuple[Reasons | None, Tolerance | None], target: Path) -> Path:
        """Write the drawing of the plan."""
        from farflung.simulator import SimulationSettings, Simulator
        from farflung.web.reports.drawing import PlanDrawing, write_drawing

        bundle = self.bundle
        simulator = Simulator(bundle.graph, self.topology, bundle.job, SimulationSettings(spans=True))
        drawing = PlanDrawing(
            name=bundle.job.name,
            plan=planned.plan,
            topology=self.topology,
            estimate=planned.estimate,
            simulation=simulator.run(planned.plan),
            texts=tuple((title, found.text) for title, found in zip(("Why", "Deaths"), words, strict=True) if found),
        )
        return write_drawing(drawing, target)


def _answer(planned: Planned, *, topology: Topology, remedy: str, verbose: bool) -> str:
    """Return the answer, then a table (``verbose``: all tables of the estimate)."""
    answer = plan_answer(planned.plan, planned.estimate, available=len(topology), remedy=remedy)
    if verbose:
        return f"{answer}\n\n{planned.explanation}"
    notes = ["", *planned.notes] if planned.notes else []
    return "\n".join([answer, "", stage_table(planned.estimate), *notes])


def _told(*words: Reasons | Tolerance | None) -> str:
    return "".join("\n" + found.text for found in words if found)


def _body(
    job: JobSpec, planned: Planned, others: Mapping[str, Planned], words: tuple[Reasons | None, Tolerance | None]
) -> dict[str, object]:
    body = PlanFile(plan=planned.plan, job=job, topology=planned.cluster).to_dict()
    body["estimate"] = planned.estimate.to_dict()
    if planned.relays:
        body["relays"] = [asdict(use) for use in planned.relays]
    if others:
        body["what_if"] = {text: _brief(other) for text, other in others.items()}
    body |= {key: found.to_dict() for key, found in zip(("why", "faults"), words, strict=True) if found}
    return body


def _brief(planned: Planned) -> dict[str, object]:
    found = planned.estimate
    return {
        "step_seconds": found.step_seconds,
        "samples_per_second": found.step_throughput,
        "devices": list(planned.plan.devices),
        "bound_by": found.bound_by,
    }


def _comparison(base: Planned, others: Mapping[str, Planned]) -> str:
    """Return a row for each change: step time, speed-up and the new bottleneck."""
    width = max(8, *(len(text) for text in others))
    lines = [f"{'what if':{width}}  {'step':>9}  faster  devices  bottleneck"]
    for text, planned in {"no change": base, **others}.items():
        found = planned.estimate
        gain = base.estimate.step_seconds / found.step_seconds if found.step_seconds > 0 else float("inf")
        count = len(planned.plan.devices)
        lines.append(f"{text:{width}}  {Seconds(found.step_seconds)!s:>9}  {gain:5.2f}x  {count:7}  {found.bound_by}")
    return "\n".join(lines)
