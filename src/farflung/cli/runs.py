"""``farflung submit``, ``status``, ``watch``, ``stop``: the runs."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from farflung.api.activity import Activity
from farflung.cli.completion import complete_run
from farflung.cli.continuation import adapted, start_line
from farflung.cli.home import open_client
from farflung.cli.options import HomeOption, VerboseOption, about, quantity
from farflung.cli.planning import read_topology
from farflung.cli.progress import RunView, show_run
from farflung.cli.report import report_here
from farflung.client.connection import Client
from farflung.cluster import Topology
from farflung.errors import ConnectionLost, FarflungError, InputError, Stopped, TrainingError
from farflung.job import JobSpec, load_job
from farflung.job.check import check_decided
from farflung.protocol.members import MemberState
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds, counted

__all__ = ["EMULATED", "register"]

TicketOption = Annotated[str | None, typer.Option("--ticket", help="Submit ticket (default: the broker on this machine).")]
RetryOption = Annotated[str, typer.Option("--retry", help="How long to retry when the broker is unreachable.")]

#: Environment of what runs in an emulated cluster: the topology that was named.
EMULATED = "FARFLUNG_EMULATED"
#: Characters of a failed run's cause in the list of runs.
_SHORT = 60
#: Seconds without a word after which the list of workers says so.
_SILENT = 2.0


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (submit, status, watch, stop):
        app.command()(command)


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
    verbose: VerboseOption = False,
) -> None:
    """Submit a job. It starts when enough workers have joined. With --resume: continue a run that is over."""
    if emulate and topology is None:
        raise InputError("--emulate needs the links of a topology: add --topology FILE")
    spec = None if job is None else adapted(load_job(job), resume, steps)
    if spec is not None:
        check_decided(spec)
    elif resume is None or topology is not None:
        raise InputError(
            "name the job file" if resume is None else f"--topology needs the job file, too: submit JOB --resume {resume}"
        )
    chosen = None if topology is None else read_topology(topology)
    if chosen is None and (emulated := os.environ.get(EMULATED)):
        typer.echo(f"this plan uses measured links; add --topology {emulated} to plan with the emulated links", err=True)
    patience = quantity(Seconds, retry, "--retry")
    activity = Activity(Console())
    client = _connect(activity, ticket, home)
    try:
        with activity:
            if source := resume if spec is None else spec.checkpoint.resume:
                activity.say(start_line(client, source, steps if spec is None else spec.steps))  # before the slow capture
            if spec is None or job is None:
                answer = client.resume(str(resume), steps, activity.phase)
            else:
                answer = _submit_job(client, spec, job, (chosen, emulate), activity)
        client.patience = patience
        typer.echo(f"{answer['run']}: {_state(answer)}; folder on the broker: {answer['folder']}")
        if follow:
            try:
                _follow(client, answer["run"], verbose=verbose)
            except (Stopped, ConnectionLost):
                raise  # it goes on, or nobody knows: there is nothing to report yet
            except FarflungError:
                _tell_report(answer["folder"])
                raise
            _tell_report(answer["folder"])
    finally:
        client.close()


def _connect(activity: Activity, ticket: str | None, home: Path | None, *, reads: bool = False) -> Client:
    with activity:
        activity.phase("connecting to the broker", silent=True)
        return open_client(ticket, home, reads=reads)


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


def status(
    run: Annotated[str | None, typer.Argument(help="Show this run only, with all details.", autocompletion=complete_run)] = None,
    ticket: TicketOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
    home: HomeOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Show workers and runs, or the details of one run."""
    client = open_client(ticket, home, reads=True)
    try:
        header = client.status()
    finally:
        client.close()
    members, runs = header["members"], header["runs"]
    assert isinstance(members, list)
    assert isinstance(runs, list)
    if run is not None:
        _show_run(run, runs, as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps(header, indent=1))
        return
    _show_members(header, members, verbose=verbose)
    typer.echo(counted(len(runs), "run"))
    for one in runs:
        typer.echo(f"  {_line(one)}{_queue(one)}{_short(one)}")


def _measured(member: Mapping[str, Any]) -> str:
    """What the cost model knows of a worker."""
    return f"  (reaches {member['speed_factor']:.0%} of its peak speed, {Seconds(member['overhead'])} per operator)"


def _show_members(header: Mapping[str, Any], members: Sequence[Mapping[str, Any]], *, verbose: bool) -> None:
    others = {MemberState.JOINING: len(header.get("joining", ())), MemberState.GONE: len(header.get("gone", ()))}
    typer.echo(", ".join([counted(len(members), "worker"), *(f"{count} {state}" for state, count in others.items() if count)]))
    for member in members:
        typer.echo(
            f"  {member['name']:24} {member['address']:22} {member['kind']:5} "
            f"{Bytes(member['memory'])!s:>9} {FlopsPerSecond(member['speed'])!s:>13}  "
            f"{_state_of(member)}{_measured(member) if verbose else ''}"
        )
        for warning in member.get("warnings", ()):
            typer.echo(f"    warning: {warning}")
    for name in header.get("joining", ()):
        typer.echo(f"  {name:24} {MemberState.JOINING}")
    for one in header.get("gone", ()):
        cause = (one["cause"] or "").partition("\n")[0]
        typer.echo(f"  {one['name']:24} {MemberState.GONE}  {cause}")


def _state_of(member: Mapping[str, Any]) -> str:
    """In which state it is, for which run, and what its owner has said."""
    notes = [word for word in (member.get("parting"), "paused" if member.get("paused") else "") if word]
    if member.get("idle") and not notes:
        notes.append(member["idle"])
    if member.get("bandwidth"):
        notes.append(f"sends at most {BytesPerSecond(member['bandwidth']).written()}")
    if member.get("shares_with"):
        notes.append(f"shares its cores with {', '.join(member['shares_with'])}")
    if member.get("silence", 0.0) > _SILENT:
        notes.append(f"silent for {Seconds(member['silence'])}")
    words = [member["state"], member["run"] or "", f"({', '.join(notes)})" if notes else ""]
    return " ".join(word for word in words if word)


def _queue(run: Mapping[str, Any]) -> str:
    """What a run waits for."""
    if run["state"] != "waiting" or "needs" not in run:
        return ""
    ahead = f", after {counted(run['ahead'], 'other run')}" if run["ahead"] else ""
    return f"; needs {counted(run['needs'], 'idle worker')}{ahead}"


def _line(run: Mapping[str, Any]) -> str:
    loss = "" if run["loss"] is None else f"  loss {run['loss']:.4f}"
    slow = f"  slow: {', '.join(run['slow'])}" if run.get("slow") else ""
    return f"{run['run']:14} {run['job']:16} {run['state']:10} step {run['step']}/{run['steps']}{loss}{slow}"


def _short(run: Mapping[str, Any]) -> str:
    """The beginning of a run's cause, in whole words, so that a run stays one line of the list."""
    cause = run["cause"]
    if not cause:
        return ""
    before = "; before: " if run["state"] == "waiting" else "; "
    first = cause.splitlines()[0]
    if first == cause and len(first) <= _SHORT:
        return f"{before}{first}"
    begin = first if len(first) <= _SHORT else first[: _SHORT + 1].rpartition(" ")[0] or first[:_SHORT]
    if begin.count("(") > begin.count(")"):
        begin = begin[: begin.rindex("(")] or begin
    return f"{before}{begin.rstrip(' ,;:')}... (see: status {run['run']})"


def _show_run(name: str, runs: Sequence[Mapping[str, Any]], *, as_json: bool) -> None:
    found = next((run for run in runs if run["run"] == name), None)
    if found is None:
        known = ", ".join(str(run["run"]) for run in runs[-8:]) or "none"
        raise InputError(f"there is no run {name!r}; known runs: {known}")
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    typer.echo(_line(found))
    if found["cause"]:
        typer.echo(str(found["cause"]))
    if found.get("seconds"):
        typer.echo(f"  training time  {Seconds(found['seconds'])}")
    if evaluation := found.get("evaluation"):
        typer.echo(f"  evaluation     loss {evaluation['loss']:.4f} after step {evaluation['step']}")
    if found.get("checkpoint"):
        typer.echo(f"  checkpoint     {found['checkpoint']}")


def watch(
    run: Annotated[str, typer.Argument(help="Name of the run.", autocompletion=complete_run)],
    ticket: TicketOption = None,
    retry: RetryOption = "10 min",
    home: HomeOption = None,
    verbose: VerboseOption = False,
) -> None:
    """Follow a run until it ends."""
    patience = quantity(Seconds, retry, "--retry")
    client = _connect(Activity(Console()), ticket, home, reads=True)
    client.patience = patience
    try:
        _follow(client, run, verbose=verbose)
    finally:
        client.close()


def _follow(client: Client, run: str, *, verbose: bool = False) -> None:
    """Show ``run`` until it is over.

    Raises:
        Stopped: the user had enough; the run goes on.
        FarflungError: the run failed; the class is that of its cause.
    """
    try:
        show_run(client, run, view=RunView(verbose=verbose))
    except TrainingError as error:
        raise client.failure(run)(str(error)) from error
    except KeyboardInterrupt:
        if os.environ.get(EMULATED):
            raise Stopped(f"{run} ends with the emulated cluster; checkpoint.resume continues from its checkpoint") from None
        raise Stopped(f"{run} continues without you: farflung watch {run} follows it, farflung stop {run} stops it") from None


def _state(answer: Mapping[str, str]) -> str:
    """Where a run stands that was just handed in; who waits is told for what."""
    if answer["state"] != "waiting":
        return answer["state"]
    needs, idle = int(answer["needs"]), int(answer["idle"])
    helpers = int(answer.get("helpers") or 0)
    others = f", {helpers} unreliable ones that only help" if helpers else ""
    return f"waiting for {counted(needs, 'idle worker')}, now idle: {idle}{others} (add workers with farflung join)"


def stop(
    run: Annotated[str, typer.Argument(help="Name of the run.", autocompletion=complete_run)],
    ticket: TicketOption = None,
    now: Annotated[bool, typer.Option("--now", help="Stop immediately, without a checkpoint.")] = False,
    home: HomeOption = None,
) -> None:
    """Stop a run after its current step, with a checkpoint."""
    client = open_client(ticket, home)
    try:
        over = client.stop(run, now=now)
    finally:
        client.close()
    typer.echo(f"{run}: stopped" if over or now else f"{run}: stopping after the current step (--now stops immediately)")
