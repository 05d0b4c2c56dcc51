"""``farflung plan``: what would run where, and how fast, without running it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from farflung.api.what_if import WHAT_IF, changed_topology
from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.job import load_job
from farflung.runtime.planning import Planned
from farflung.units import Seconds

__all__ = ["read_topology", "register"]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(plan)


def read_topology(text: str) -> Topology:
    """A TOML file, or the name of a preset.

    Raises:
        InputError: it is neither.
    """
    if text.endswith((".toml", ".json")) or "/" in text:
        return Topology.from_toml(text)
    return Topology.preset(text)


def plan(
    job: Annotated[Path, typer.Argument(help="The job file (TOML).")],
    topology: Annotated[str, typer.Option(help="Topology file (TOML) or preset.")],
    planner: Annotated[str | None, typer.Option(help="Planner (default: the job's).")] = None,
    explain: Annotated[bool, typer.Option(help="Stages, links and what bounds the step.")] = True,
    as_json: Annotated[bool, typer.Option("--json", help="Plan and estimate as JSON.")] = False,
    what_if: Annotated[list[str] | None, typer.Option("--what-if", help=WHAT_IF)] = None,
    evaluations: Annotated[int, typer.Option(min=0, help="Planner auto: plans that it judges.")] = 64,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="Planner auto: stop after so long instead.")] = None,
    exclude: Annotated[list[str] | None, typer.Option(help="Planner auto: a device or region that gets nothing.")] = None,
    stages: Annotated[int | None, typer.Option(min=1, help="Planner auto: at most so many stages.")] = None,
) -> None:
    """Plan a job for described machines and predict its step time by simulation."""
    from farflung.api.planning import judge
    from farflung.api.submission import bundle_job, check_data
    from farflung.planners import Planner
    from farflung.planners.auto import Auto, AutoSettings
    from farflung.runtime.planning import plan_run

    spec = load_job(job)
    if planner is not None:
        spec = spec.model_copy(update={"plan": spec.plan.model_copy(update={"planner": planner})})
    chosen = read_topology(topology)
    found: Planner | None = None
    if spec.plan.planner == "auto":
        settings = AutoSettings(evaluations=evaluations, seconds=seconds, exclude=frozenset(exclude or ()), stages=stages)
        found = Auto(settings)
    elif exclude or stages or seconds:
        raise InputError("--exclude, --stages and --seconds are for the planner auto: add --planner auto")
    changed = {text: changed_topology(chosen, text) for text in what_if or ()}
    bundle = bundle_job(spec, base=job.parent, topology=chosen, say=lambda text: typer.echo(text, err=True))
    check_data(bundle, job.parent)
    planned = plan_run(bundle, chosen, judge, found)
    others = {text: plan_run(bundle, other, judge, found) for text, other in changed.items()}
    if as_json:
        body = {"plan": json.loads(planned.plan_json), "estimate": planned.estimate.to_dict()}
        if others:
            body["what_if"] = {text: _brief(other) for text, other in others.items()}
        typer.echo(json.dumps(body, indent=1))
    elif explain:
        typer.echo(planned.explanation)
        if others:
            typer.echo("\n" + _comparison(planned, others))
    else:
        typer.echo(planned.plan_json)


def _brief(planned: Planned) -> dict[str, object]:
    found = planned.estimate
    return {
        "step_seconds": found.step_seconds,
        "samples_per_second": found.step_throughput,
        "devices": list(planned.plan.devices),
        "bound_by": found.bound_by,
    }


def _comparison(base: Planned, others: Mapping[str, Planned]) -> str:
    """A row for each change: its step, how much faster, and what then holds it up."""
    width = max(8, *(len(text) for text in others))
    lines = [f"{'what if':{width}}  {'step':>9}  faster  devices  bound by"]
    for text, planned in {"as it is": base, **others}.items():
        found = planned.estimate
        gain = base.estimate.step_seconds / found.step_seconds if found.step_seconds > 0 else float("inf")
        count = len(planned.plan.devices)
        lines.append(f"{text:{width}}  {Seconds(found.step_seconds)!s:>9}  {gain:5.2f}x  {count:7}  {found.bound_by}")
    return "\n".join(lines)
