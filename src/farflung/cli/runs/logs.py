"""``farflung logs``: the log of a run, a worker or the broker."""

from __future__ import annotations

import json
import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Protocol

import typer

from farflung.broker.records.broker_log import Log, find_log, run_log
from farflung.cli.broker_connection import open_client
from farflung.cli.cluster.cluster_logs import show_cluster_logs
from farflung.cli.completion import complete_cluster, complete_run_or_worker
from farflung.cli.home import broker_folder, members_folder, ticket_file, worker_log
from farflung.cli.options import HomeOption
from farflung.cli.waiting_reason import waiting_line
from farflung.client.control import ControlClient
from farflung.errors import FarflungError, InputError
from farflung.foreign_text import printable
from farflung.telemetry import RunFolder
from farflung.telemetry.log_file import LogPart

__all__ = ["register"]

#: Seconds between two looks at a log that is followed: at a file, and at the broker.
_HERE, _THERE = 0.3, 1.0


def register(app: typer.Typer) -> None:
    """Add the command to ``app``."""
    app.command()(logs)


class _Source(Protocol):
    """A log, on this machine or at the broker."""

    @property
    def over(self) -> bool:
        """Whether nothing will be added."""

    def last(self, count: int) -> LogPart:
        """The last ``count`` lines."""

    def more(self, position: int) -> LogPart:
        """What was added after ``position``."""


def logs(
    name: Annotated[
        str | None,
        typer.Argument(
            help="A run (its name or folder; write ./NAME for a folder), a worker or a cluster file (default: the broker).",
            autocompletion=complete_run_or_worker,
        ),
    ] = None,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Show new lines as they come, until Ctrl-C.")] = False,
    lines: Annotated[int, typer.Option("--lines", "-n", min=0, max=10_000, help="Number of lines from the end.")] = 50,
    broker: Annotated[
        bool, typer.Option("--broker", help="Show the broker's log about a worker on this machine, not the worker's own log.")
    ] = False,
    ticket: Annotated[
        str | None, typer.Option("--ticket", help="Ask a broker elsewhere: submit or owner ticket, or @FILE.")
    ] = None,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            help="Show what the processes of a cluster print: a cluster file, or a name. NAME is a worker, or `broker`.",
            autocompletion=complete_cluster,
        ),
    ] = None,
    home: HomeOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per line.")] = False,
) -> None:
    """Show the log of a run, a worker, the broker, or all processes of a cluster."""
    if cluster is not None or (name and name.endswith(".toml") and Path(name).is_file()):
        show_cluster_logs(cluster or str(name), name if cluster else None, lines=lines, follow=follow, as_json=as_json)
        return
    write = _write_json if as_json else _write_text
    if ticket is None:
        found = _here(name or "", broker_folder(home), broker=broker)
        if found.run is not None and not found.over:
            _tell_waiting(found.run.name, home, write)
        _show(found, lines, write=write, follow=follow, pause=_HERE)
        return
    client = open_client(ticket, home, reads=True)
    try:
        if line := waiting_line(client, name or ""):
            write(line)
        _show(_Asked(client, name or ""), lines, write=write, follow=follow, pause=_THERE)
    finally:
        client.close()


def _tell_waiting(run: str, home: Path | None, write: Callable[[str], None]) -> None:
    """Print what ``run`` waits for, if it waits and the broker of this machine answers."""
    if not ticket_file(broker_folder(home)).is_file():
        return
    with suppress(FarflungError):  # the log is on this machine; the broker only adds a line to it
        client = open_client(None, home, reads=True)
        try:
            if line := waiting_line(client, run):
                write(line)
        finally:
            client.close()


def _here(name: str, home: Path, *, broker: bool) -> Log:
    """Return the log ``name`` on this machine.

    Raises:
        InputError: there is none.
    """
    if name and (home / "runs" / name).is_dir():
        return run_log(home / "runs" / name)
    own = worker_log(name)
    if name and not broker and own.is_file():
        return Log(path=own)
    place = Path(name)
    if name and place.is_dir() and ("/" in name or name in (".", "..")):
        return run_log(place)
    copied = bool(name) and RunFolder(place).job.is_file()
    if (home / "authority").is_dir():
        try:
            return find_log(home, name)
        except InputError:
            if not copied:
                raise
    if copied:
        return run_log(place)
    known = ", ".join(sorted(path.stem for path in members_folder().glob("*.log"))) or "none"
    what = repr(name) if name else "a broker"
    raise InputError(
        f"this machine has no log of {what} (workers with one: {known}; {home} is no broker's folder): "
        "name a run's folder, or add --ticket"
    )


@dataclass(slots=True)
class _Asked:
    """A log that the broker reads."""

    client: ControlClient
    name: str
    over: bool = False

    def last(self, count: int) -> LogPart:
        return self._ask(lines=count)

    def more(self, position: int) -> LogPart:
        return self._ask(position=position)

    def _ask(self, **wanted: int) -> LogPart:
        part, self.over = self.client.log(self.name, **wanted)
        return part


def _show(source: _Source, count: int, *, write: Callable[[str], None], follow: bool, pause: float) -> None:
    part = source.last(count)
    _print(part, write)
    ended = False
    try:
        while follow:
            part = source.more(part.position)
            _print(part, write)
            if part.lines:
                continue
            if ended:
                return
            ended = source.over  # its last lines may still be on the way to the file: look once more
            threading.Event().wait(pause)
    except KeyboardInterrupt:
        return  # Ctrl-C is how a log is left


def _print(part: LogPart, write: Callable[[str], None]) -> None:
    for line in part.lines:
        write(line)


def _write_text(line: str) -> None:
    typer.echo(printable(line))


def _write_json(line: str) -> None:
    typer.echo(json.dumps({"line": line}))
