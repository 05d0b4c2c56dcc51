"""``farflung graph``: the model of a job as a graph of operators, as text, a drawing or JSON."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.options import about, to_write, write_text
from farflung.cli.planning.inputs import read_plan
from farflung.errors import InputError
from farflung.graph.modules import Level
from farflung.graph.render import Bounds, to_dot, to_svg, to_text
from farflung.job import load_job
from farflung.telemetry.activity import Activity

__all__ = ["register"]


class Form(StrEnum):
    """Output formats."""

    TEXT = "text"
    DOT = "dot"
    SVG = "svg"
    JSON = "json"


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    app.command()(graph)


def graph(
    job: Annotated[Path, typer.Argument(help="The job file (TOML).")],
    form: Annotated[Form, typer.Option("--format", help="Output format.")] = Form.TEXT,
    level: Annotated[str, typer.Option(help="One box per leaf, per block, or per module of this depth.")] = "leaf",
    plan: Annotated[
        Path | None, typer.Option(help="Mark the stages of this plan (from `farflung plan --json`, or plan.json of a run).")
    ] = None,
    out: Annotated[Path | None, typer.Option(help="Output file (default: standard output).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON, as --format json does.")] = False,
) -> None:
    """Draw the model of a job: operators by module, with parameters, shapes and bytes between them."""
    from farflung.api.submission import bundle_job

    depth = _level(level)
    spec = load_job(job)
    if out is not None:
        to_write(out)
    spec = spec.model_copy(update={"evaluate": type(spec.evaluate)(), "generate": type(spec.generate)()})
    with Activity() as activity, about(job):
        activity.phase("loading the model", silent=True)
        found = bundle_job(spec, base=job.parent, say=activity.phase).graph
    stages = None if plan is None else _stages(plan, found.hash)
    if form is Form.JSON or as_json:
        text = found.to_json()
    else:
        draw = {Form.TEXT: to_text, Form.DOT: to_dot, Form.SVG: to_svg}[form]
        text = draw(found, level=depth, bounds=stages)
    if out is None:
        typer.echo(text)
        return
    write_text(out, text)
    typer.echo(out)


def _level(text: str) -> Level:
    named: dict[str, Level] = {"leaf": "leaf", "block": "block"}
    if text in named:
        return named[text]
    if text.isdecimal() and len(text) < 10 and int(text):
        return int(text)
    raise InputError(f"--level {text!r}: known are leaf, block, or a depth from 1 on")


def _stages(path: Path, graph_hash: str) -> Bounds:
    plan = read_plan(path).plan
    if plan.graph_hash != graph_hash:
        raise InputError(f"the plan {path} is for another graph: make it from this job (farflung plan, or a run's plan.json)")
    return plan.bounds
