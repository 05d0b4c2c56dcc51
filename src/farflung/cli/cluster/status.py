"""``farflung status``: the workers and runs of a broker."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from farflung.cli.broker_connection import open_client
from farflung.cli.completion import complete_run
from farflung.cli.options import HomeOption, TicketOption, VerboseOption
from farflung.cli.waiting_reason import waiting_reason
from farflung.errors import InputError
from farflung.foreign_text import printable
from farflung.nat_types import NatType
from farflung.protocol.members import MemberState
from farflung.units import Bytes, BytesPerSecond, FlopsPerSecond, Seconds, counted

__all__ = ["register"]

#: Characters of a failed run's cause in the list of runs.
_SHORT = 60
#: Seconds without a message after which the list of workers shows a worker as silent.
_SILENT = 2.0


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(status)


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
        _show_run(run, runs, [str(one["name"]) for one in members], as_json=as_json)
        return
    if as_json:
        typer.echo(json.dumps(header, indent=1))
        return
    _show_members(header, members, verbose=verbose)
    _say(counted(len(runs), "run"))
    for one in runs:
        _say(f"  {_line(one)}{_queue(one)}{_short(one)}")


def _measured(member: Mapping[str, Any]) -> str:
    """Return the measured figures of a worker, its isolation, its region and its free disk, for experts."""
    figures = f"reaches {member['speed_factor']:.0%} of its peak speed, {Seconds(member['overhead'])} per operator"
    precisions = [f"precisions {', '.join(member['precisions'])}"] if member.get("precisions") else []
    places = [f"region {member['region']}"] if member.get("region") else []
    places += [f"{Bytes(member['disk'])} free on disk"] if member.get("disk") is not None else []
    return f"  ({', '.join([figures, *precisions, 'isolation ' + (member.get('isolation') or 'unknown'), *places])})"


def _show_members(header: Mapping[str, Any], members: Sequence[Mapping[str, Any]], *, verbose: bool) -> None:
    others = {MemberState.JOINING: len(header.get("joining", ())), MemberState.GONE: len(header.get("gone", ()))}
    _say(", ".join([counted(len(members), "worker"), *(f"{count} {state}" for state, count in others.items() if count)]))
    for member in members:
        _say(
            f"  {member['name']:24} {member['address']:22} {member['kind']:5} {_engine(member):14} "
            f"{Bytes(member['memory']).written(3):>9} {FlopsPerSecond(member['speed'])!s:>13}  "
            f"{_state_of(member)}{_measured(member) if verbose else ''}"
        )
        for warning in member.get("warnings", ()):
            _say(f"    warning: {warning}")
    for name in header.get("joining", ()):
        _say(f"  {name:24} {MemberState.JOINING}")
    for one in header.get("gone", ()):
        cause = (one["cause"] or "").partition("\n")[0]
        _say(f"  {one['name']:24} {MemberState.GONE}  {cause}")


def _engine(member: Mapping[str, Any]) -> str:
    """Return the name and the version of a worker's engine, without the build."""
    return str(member.get("versions", {}).get("engine", "")).partition("+")[0]


def _state_of(member: Mapping[str, Any]) -> str:
    """Return the state of a worker, its run, and notes on the owner's limits and on problems."""
    notes = [f"site of {member['ranks']} ranks"] if member.get("ranks", 1) > 1 else []
    notes += [word for word in (member.get("parting"), "paused" if member.get("paused") else "") if word]
    if member.get("idle") and not (member.get("parting") or member.get("paused")):
        notes.append(member["idle"])
    if member.get("standing") and member["standing"] not in notes:
        notes.append(member["standing"])
    if member.get("bandwidth"):
        notes.append(f"sends at most {BytesPerSecond(member['bandwidth']).written()}")
    if member.get("nat") not in (None, NatType.NONE):
        notes.append(NatType(member["nat"]).plain)
    if member.get("shares_with"):
        notes.append(f"shares its cores with {', '.join(member['shares_with'])}")
    if member.get("silence", 0.0) > _SILENT:
        notes.append(f"silent for {Seconds(member['silence'])}")
    words = [member["state"], member["run"] or "", f"({', '.join(notes)})" if notes else ""]
    return " ".join(word for word in words if word)


def _queue(run: Mapping[str, Any]) -> str:
    reason = waiting_reason(run)
    return f"; {reason}" if reason else ""


def _line(run: Mapping[str, Any]) -> str:
    loss = "" if run["loss"] is None else f"  loss {run['loss']:.4f}"
    slow = f"  slow: {', '.join(run['slow'])}" if run.get("slow") else ""
    return f"{run['run']:14} {run['job']:16} {run['state']:10} step {run['step']}/{run['steps']}{loss}{slow}"


def _short(run: Mapping[str, Any]) -> str:
    """Return the beginning of a run's cause, in whole words, so that each run is one line of the list."""
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


def _show_run(name: str, runs: Sequence[Mapping[str, Any]], workers: Sequence[str], *, as_json: bool) -> None:
    found = next((run for run in runs if run["run"] == name), None)
    if found is None and name in workers:
        raise InputError(f"{name!r} is a worker, not a run: farflung status shows the workers, farflung logs {name} its log")
    if found is None:
        known = ", ".join(f"{run['run']} ({run['job']})" for run in runs[-8:]) or "none"
        raise InputError(f"there is no run {name!r}; known runs: {known}")
    if as_json:
        typer.echo(json.dumps(found, indent=1))
        return
    _say(_line(found))
    if found["cause"]:
        _say(str(found["cause"]))
    if found.get("seconds"):
        _say(f"  training time  {Seconds(found['seconds'])}")
    if evaluation := found.get("evaluation"):
        _say(f"  evaluation     loss {evaluation['loss']:.4f} after step {evaluation['step']}")
    if divided := found.get("divided"):
        stages = ", ".join(map(str, divided))
        _say(f"  sites          ranks divide the parameters of stage{'s' * (len(divided) > 1)} {stages}")
    if together := found.get("together"):
        stages = ", ".join(map(str, together))
        _say(f"  sites          ranks compute each micro-batch of stage{'s' * (len(together) > 1)} {stages} together")
    if found.get("checkpoint"):
        _say(f"  checkpoint     {found['checkpoint']}")


def _say(text: str) -> None:
    """Print ``text``, which has names and causes from other machines."""
    typer.echo(printable(text))
