"""``farflung up``, ``scale`` and ``down``: the broker and the workers of a cluster file."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from farflung.cli.completion import complete_cluster
from farflung.cli.options import JsonOption, answer, quantity
from farflung.launchers.cluster_file import load_cluster
from farflung.launchers.cluster_spec import ClusterSpec
from farflung.launchers.lifecycle import Joined, Lifecycle, open_cluster
from farflung.launchers.state import ClusterFolder
from farflung.telemetry.activity import Activity
from farflung.telemetry.terminal import terminal
from farflung.units import Seconds, counted

__all__ = ["register", "started_cluster"]

_WAIT = "5 min"
ClusterArgument = Annotated[str, typer.Argument(help="The cluster file, or the cluster's name.", autocompletion=complete_cluster)]
WaitOption = Annotated[str, typer.Option(help="How long workers may take to join.")]


def register(app: typer.Typer) -> None:
    """Add the commands to ``app``."""
    for command in (up, scale, down):
        app.command()(command)


def up(
    file: Annotated[Path, typer.Argument(help="The cluster file (TOML).")],
    wait: WaitOption = _WAIT,
    as_json: JsonOption = False,
) -> None:
    """Start the broker and the workers of a cluster file. What runs already stays as it is."""
    cluster, patience = load_cluster(file), quantity(Seconds, wait, "--wait")
    with _opened(cluster, patience) as lifecycle:
        joined = lifecycle.up()
    _tell(lifecycle, joined, as_json=as_json)


def scale(
    cluster: ClusterArgument,
    count: Annotated[int, typer.Argument(min=0, help="The number of workers.")],
    wait: WaitOption = _WAIT,
    as_json: JsonOption = False,
) -> None:
    """Start or stop workers until the cluster has COUNT. A worker that stops finishes its step first."""
    patience = quantity(Seconds, wait, "--wait")
    with _opened(started_cluster(cluster), patience) as lifecycle:
        joined = lifecycle.scale(count)
    _tell(lifecycle, joined, as_json=as_json)


def down(
    cluster: ClusterArgument,
    force: Annotated[bool, typer.Option("--force", help="Also while runs are active, and if a host cannot be reached.")] = False,
    as_json: JsonOption = False,
) -> None:
    """Stop the workers and the broker of a cluster. The broker's folder with runs and checkpoints stays."""
    with _opened(started_cluster(cluster)) as lifecycle:
        warnings = lifecycle.down(force=force)
    for warning in warnings:
        typer.echo(f"warning: {warning}", err=True)
    name = lifecycle.cluster.name
    answer(f"{name}: stopped; the broker's folder stays", {"cluster": name, "warnings": warnings}, as_json=as_json)


def started_cluster(text: str) -> ClusterSpec:
    """Return the cluster that ``text`` names (a cluster file or a name), as it was started from this machine.

    Raises:
        InputError: the file can't be read, or the cluster is not up.
    """
    path = Path(text)
    name = load_cluster(path).name if path.suffix == ".toml" or path.is_file() else text
    return ClusterFolder(name).state().cluster


@contextmanager
def _opened(cluster: ClusterSpec, wait: Seconds = Seconds(300.0)) -> Iterator[Lifecycle]:
    """Yield the cluster, and show what is done with it."""
    with Activity(terminal(stderr=True)) as activity:
        yield open_cluster(cluster, lambda text: activity.phase(f"{cluster.name}: {text}"), wait)


def _tell(lifecycle: Lifecycle, joined: Joined, *, as_json: bool) -> None:
    """Print what has joined, and how to submit."""
    name, ticket = lifecycle.cluster.name, lifecycle.folder.ticket
    waiting = f"; {joined.waiting} {'waits' if joined.waiting == 1 else 'wait'} for a machine" if joined.waiting else ""
    lines = [
        f"{name}: {joined.joined} of {counted(joined.wanted, 'worker')} joined{waiting}",
        f"submit a job:  farflung submit JOB.toml --ticket @{ticket}",
        f"stop it:       farflung down {name}",
    ]
    facts = {"wanted": joined.wanted, "joined": joined.joined, "waiting": joined.waiting}
    answer("\n".join(lines), {"cluster": name, **facts, "ticket_file": str(ticket)}, as_json=as_json)
