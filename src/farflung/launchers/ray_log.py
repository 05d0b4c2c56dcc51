"""``python -m farflung.launchers.ray_log ADDRESS``: print the log of a worker on a Ray cluster. ``farflung logs`` calls it."""

from __future__ import annotations

import sys
import threading

from farflung.errors import FarflungError
from farflung.launchers.host_requests import ShowLog, read_request
from farflung.launchers.ray import connect
from farflung.telemetry.log_file import LogPart

__all__ = ["main"]

#: Seconds between two questions.
_PAUSE = 1.0


def main() -> None:
    """Read the request from the standard input, and print the log."""
    request = read_request(sys.stdin.read())
    assert isinstance(request, ShowLog)
    try:
        _show(request)
    except FarflungError as error:
        sys.exit(str(error))
    except KeyboardInterrupt:
        return


def _show(request: ShowLog) -> None:
    ray = connect(request.cluster, sys.argv[1])
    known = ray.util.list_named_actors()
    if request.name not in known:
        sys.exit(f"the cluster {request.cluster!r} has no process {request.name!r}: known are {', '.join(['broker', *known])}")
    actor = ray.get_actor(request.name)
    part: LogPart = ray.get(actor.last.remote(request.lines))
    _print(part)
    running = request.follow
    while running or (request.follow and part.lines):
        part, running = ray.get(actor.more.remote(part.position))
        _print(part)
        if running:
            threading.Event().wait(_PAUSE)


def _print(part: LogPart) -> None:
    for line in part.lines:
        sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
