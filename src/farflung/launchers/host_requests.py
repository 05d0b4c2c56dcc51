"""What a provider asks of a host: one JSON request on the standard input of ``farflung host``, and the answer.

A ticket is on no command line this way.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from farflung.errors import InputError, VersionError

__all__ = [
    "AskBroker",
    "HostRequest",
    "HostedProcess",
    "ListProcesses",
    "ProcessStart",
    "ShowLog",
    "StartProcesses",
    "StopProcesses",
    "encode",
    "read_processes",
    "read_request",
]


class HostedProcess(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process on a host."""

    name: str
    running: bool


class ProcessStart(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A process to start. ``words``: those after ``farflung``. ``ticket``: the ticket of a worker. ``broker``: it is one."""

    name: str
    words: tuple[str, ...]
    environment: dict[str, str] = {}
    ticket: str = ""
    broker: bool = False

    def __repr__(self) -> str:
        """Return the text for logs, without the ticket."""
        return f"ProcessStart({self.name!r})"


class _Request(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, tag_field="do"):
    """A request about the cluster ``cluster``."""

    cluster: str


class StartProcesses(_Request, frozen=True, tag="start"):
    """Start what does not run."""

    processes: tuple[ProcessStart, ...]


class StopProcesses(_Request, frozen=True, tag="stop"):
    """End processes (``names`` is ``None``: all but those ``spared``), after ``seconds`` by force.

    A worker finishes its step first.
    """

    names: tuple[str, ...] | None = None
    spared: tuple[str, ...] = ()
    seconds: float = 60.0


class ListProcesses(_Request, frozen=True, tag="list"):
    """List the processes."""


class ShowLog(_Request, frozen=True, tag="log"):
    """Print the last ``lines`` lines of the log of ``name``; if ``follow``, until the process ends."""

    name: str
    lines: int
    follow: bool = False


class AskBroker(_Request, frozen=True, tag="ask"):
    """Run ``farflung WORDS`` on the broker's folder of this host."""

    words: tuple[str, ...]


HostRequest = StartProcesses | StopProcesses | ListProcesses | ShowLog | AskBroker
_REQUESTS = msgspec.json.Decoder[HostRequest](HostRequest)
_PROCESSES = msgspec.json.Decoder(tuple[HostedProcess, ...])


def encode(body: object) -> str:
    """Return a request or an answer as one line of JSON."""
    return msgspec.json.encode(body).decode()


def read_request(text: str) -> HostRequest:
    """Read a request.

    Raises:
        InputError: the text is none that this version knows.
    """
    try:
        request: HostRequest = _REQUESTS.decode(text)
    except msgspec.MsgspecError as error:
        raise InputError(
            f"this is no request to a host: {error}; farflung up sends requests, and both machines need the same version"
        ) from None
    return request


def read_processes(text: str, place: str) -> Sequence[HostedProcess]:
    """Read the answer of the host ``place``: the last line of ``text``, as login scripts may print before it.

    Raises:
        VersionError: it is no answer that this version knows.
    """
    line = text.strip().rpartition("\n")[2]
    try:
        return _PROCESSES.decode(line)
    except msgspec.MsgspecError:
        raise VersionError(
            f"{place}: the answer {line[:80]!r} is not that of farflung host: install this version of farflung there"
        ) from None
