"""``farflung host``: the processes of a cluster on this host. Providers call it; people use ``farflung up``."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable

import typer

from farflung.launchers.host_requests import (
    AskBroker,
    HostRequest,
    ListProcesses,
    ShowLog,
    StartProcesses,
    StopProcesses,
    encode,
    read_request,
)
from farflung.launchers.hosted_processes import HostedProcesses
from farflung.telemetry.log_file import LogPart, read_last, read_more

__all__ = ["serve_request"]

#: Seconds between two looks at a log that is followed.
_PAUSE = 0.3


def serve_request(run: Callable[[list[str]], None]) -> None:
    """Read a request from the standard input, and answer it. ``run`` runs a command in this process."""
    request = read_request(sys.stdin.read())
    hosted = HostedProcesses(request.cluster)
    if isinstance(request, AskBroker):
        run([*request.words, "--home", str(hosted.broker_folder)])
    elif isinstance(request, ShowLog):
        _show(hosted, request)
    else:
        typer.echo(encode(_processes(hosted, request)))


def _processes(hosted: HostedProcesses, request: HostRequest) -> object:
    match request:
        case StartProcesses(processes=wanted):
            return hosted.start(wanted)
        case StopProcesses():
            return hosted.stop(request)
        case ListProcesses():
            return hosted.processes()
        case _:
            raise AssertionError(request)


def _show(hosted: HostedProcesses, request: ShowLog) -> None:
    """Print the log, and what is added to it until the process has ended."""
    path = hosted.log(request.name)
    part = read_last(path, request.lines)
    _print(part)
    ended = False
    while request.follow and not (ended and not part.lines):
        ended = not hosted.runs(request.name)  # its last lines may still be on the way to the file: look once more
        part = read_more(path, part.position)
        _print(part)
        if not ended:
            threading.Event().wait(_PAUSE)


def _print(part: LogPart) -> None:
    for line in part.lines:
        typer.echo(line)
