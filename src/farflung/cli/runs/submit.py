"""``farflung submit``: submit a job, or continue a run."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from farflung.cli.broker_connection import join_broker
from farflung.cli.completion import complete_run
from farflung.cli.options import (
    EMULATED,
    HomeOption,
    JsonOption,
    PlainOption,
    RetryOption,
    TicketOption,
    VerboseOption,
    about,
    quantity,
)
from farflung.cli.planning.inputs import check_files, read_topology
from farflung.cli.runs.continuation import adapted, start_line
from farflung.cli.runs.report import report_here
from farflung.cli.runs.watch import follow_run
from farflung.client.connection import Client
from farflung.cluster import Topology
from farflung.errors import ConnectionLost, FarflungError, InputError, Stopped
from farflung.job import JobSpec, load_job
from farflung.job.check import check_decided
from farflung.telemetry.activity import Activity
from farflung.telemetry.terminal import terminal
from farflung.units import Seconds, counted

__all__ = ["register"]


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(submit)


def submit(
    job: Annotated[Path | None, typer.Argument(help="The job file (TOML); with --resume it may be left out.")] = None,
    resume: Annotated[
        str | None,
        typer.Option(help="Continue this run from its newest checkpoint, as a new run.", autocompletion=complete_run),
    ] = None,
    steps: Annotated[int | None, typer.Option(min=1, help="Steps of the job in all (default: those of the job).")] = None,
    ticket: TicketOption = None,
    topology: Annotated[str | None, typer.Option(help="Links between the workers: a TOML file or a preset.")] = None,
    emulate: Annotated[bool, typer.Option(help="Slow the links down to those of the topology.")] = False,
    follow: Annotated[bool, typer.Option("--watch/--no-watch", help="Follow the run until it ends.")] = True,
    retry: RetryOption = "10 min",
    home: HomeOption = None,
    plain: PlainOption = False,
    as_json: JsonOption = False,
    verbose: VerboseOption = False,
) -> None:
    """Submit a job. It starts when enough workers have joined. With --resume: continue a run that is over."""
    if emulate and topology is None:
        raise InputError("--emulate needs the links of a topology: add --topology FILE")
    spec = None if job is None else adapted(load_job(job), resume, steps)
    if spec is not None:
        check_decided(spec)
        check_files(spec, Path(str(job)))
    elif resume is None or topology is not None:
        raise InputError(
            "name the job file" if resume is None else f"--topology needs the job file, too: submit JOB --resume {resume}"
        )
    chosen = None if topology is None else read_topology(topology)
    if chosen is None and (emulated := os.environ.get(EMULATED)):
        typer.echo(f"this plan uses measured links; add --topology {emulated} to plan with the emulated links", err=True)
    patience = quantity(Seconds, retry, "--retry")
    console = terminal(plain=plain or as_json, stderr=as_json)
    activity = Activity(console)
    client = Client(join_broker(ticket, home, activity=activity))
    try:
        with activity:
            if source := resume if spec is None else spec.checkpoint.resume:
                activity.say(start_line(client, source, steps if spec is None else spec.steps))  # before the slow capture
            if spec is None or job is None:
                answer = client.resume(str(resume), steps, activity.phase)
            else:
                answer = _submit_job(client, spec, job, (chosen, emulate), activity)
        client.patience = patience
        if as_json:
            typer.echo(json.dumps({"kind": "submitted", **{key: answer[key] for key in ("run", "state", "folder")}}))
        else:
            typer.echo(f"{answer['run']}: {_state(answer)}; folder on the broker: {answer['folder']}")
        if follow:
            _follow(client, answer, None if as_json else console, verbose=verbose)
    finally:
        client.close()


def _follow(client: Client, answer: Mapping[str, str], console: Console | None, *, verbose: bool) -> None:
    """Show the run until it is over, then write its report. ``console``: see ``follow_run``."""
    try:
        follow_run(client, answer["run"], console=console, verbose=verbose)
    except (Stopped, ConnectionLost):
        raise  # it goes on, or nobody knows: there is nothing to report yet
    except FarflungError:
        if console is not None:
            _tell_report(answer["folder"])
        raise
    if console is not None:
        _tell_report(answer["folder"])


def _submit_job(
    client: Client, spec: JobSpec, job: Path, links: tuple[Topology | None, bool], activity: Activity
) -> Mapping[str, str]:
    """Capture the model of the job file ``job`` and submit it; ``links``: the topology, and whether to emulate it."""
    from farflung.api.submission import bundle_job, check_data, send_weights

    topology, emulate = links
    activity.phase("loading the model", silent=True)
    with about(job):
        bundle = bundle_job(spec, base=job.parent, topology=topology, emulate=emulate, say=activity.phase)
    check_data(bundle, job.parent)
    activity.phase("sending the job to the broker", silent=True)
    send_weights(client, bundle)
    return client.submit(bundle, activity.phase)


def _tell_report(folder: str) -> None:
    text = report_here(Path(folder))
    if text:
        typer.echo(text)


def _state(answer: Mapping[str, str]) -> str:
    """Return the state of a new run; for a waiting run, also what it waits for."""
    if answer["state"] != "waiting":
        return answer["state"]
    needs, idle = int(answer["needs"]), int(answer["idle"])
    helpers = int(answer.get("helpers") or 0)
    others = f", {helpers} unreliable ones that only help" if helpers else ""
    return f"waiting for {counted(needs, 'idle worker')}, now idle: {idle}{others} (add workers with farflung join)"
