"""``farflung logs --cluster``: what the processes of a cluster print, on all its machines."""

from __future__ import annotations

import json

import typer

from farflung.errors import FarflungError
from farflung.foreign_text import printable

__all__ = ["show_cluster_logs"]


def show_cluster_logs(cluster: str, name: str | None, *, lines: int, follow: bool, as_json: bool) -> None:
    """Print the logs of the process ``name`` of ``cluster`` (``None``: of all); ``follow``: until they end, or Ctrl-C.

    Raises:
        InputError: the cluster is not up, or has no such process.
        FarflungError: a log can't be read.
    """
    from farflung.cli.cluster.launch import started_cluster
    from farflung.launchers.base import ProcessState
    from farflung.launchers.programs import show_all
    from farflung.launchers.registry import PROVIDERS
    from farflung.launchers.state import ClusterFolder

    started = started_cluster(cluster)
    provider = PROVIDERS.get(started.provider)(started, ClusterFolder(started.name).place)
    begun = (
        [process.name for process in provider.processes() if process.state is not ProcessState.WAITING] if name is None else []
    )
    names = begun if name is None else [name]
    width = max(map(len, names), default=0)
    last: dict[str, str] = {}

    def show(process: str, line: str) -> None:
        last[process] = line
        if as_json:
            typer.echo(json.dumps({"process": process, "line": line}))
        else:
            typer.echo(printable(f"{process:{width}} | {line}" if name is None else line))

    try:
        codes = show_all({one: provider.log(one, lines, follow=follow) for one in names}, show)
    except KeyboardInterrupt:
        return  # Ctrl-C is how a log is left
    failed = [one for one, code in codes.items() if code]
    if failed:
        raise FarflungError(f"the log of {failed[0]} can't be read to its end: {last.get(failed[0], 'its program failed')}")
