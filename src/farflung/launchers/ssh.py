"""Provider ``ssh``: broker and workers on hosts that this machine reaches with the command ``ssh``.

``ssh`` itself reads the user's configuration, keys, agent and known hosts. On each host, ``farflung host`` reads a request and
starts the processes. So tickets pass through the encrypted connection into a private file, and appear in no command line.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field, ValidationInfo, field_validator
from pydantic_core import PydanticCustomError

from farflung.errors import ConnectionLost, FarflungError, InputError
from farflung.job.section import Section
from farflung.launchers.base import BROKER, Process, ProcessState
from farflung.launchers.cluster_spec import ClusterSpec, settings_of
from farflung.launchers.host_requests import (
    AskBroker,
    HostRequest,
    ListProcesses,
    ProcessStart,
    ShowLog,
    StartProcesses,
    StopProcesses,
    encode,
    read_processes,
)
from farflung.launchers.member_options import JoinOptions, Label, matching
from farflung.launchers.programs import Finished, Program, run_all
from farflung.units import counted

__all__ = ["SshHost", "SshProvider", "SshSettings"]

#: Codes of ssh and of shells: the connection failed; there is no such command.
_NO_CONNECTION, _NO_COMMAND = 255, 127
_CONNECT_SECONDS = 10

#: A host or an alias of ssh's configuration, perhaps with a user. It can't be mistaken for an option.
_Address = Annotated[str, matching(r"[A-Za-z0-9_\[]\S{0,254}", "a host, an alias of ssh's configuration, or user@host")]


class SshHost(Section):
    """A host."""

    #: What follows the command `ssh`: a host name, an alias of ssh's configuration, or `user@host`.
    address: _Address
    #: The name of the host in names of workers. Without a value: the first part of the address.
    name: Label | None = None
    #: The port of the SSH server. Without a value: that of ssh's configuration.
    port: Annotated[int, Field(ge=1, le=65535)] | None = None
    #: The number of workers on this host. 0: it runs none.
    workers: Annotated[int, Field(ge=0, le=1000)] = 1
    #: Options of `farflung join` on this host, in place of those of `[workers]`.
    options: JoinOptions = JoinOptions()

    @property
    def label(self) -> str:
        """The host's name in names of workers."""
        host = self.address.rpartition("@")[2].lower()
        first = host if re.fullmatch(r"[\d.]+", host) else host.partition(".")[0]
        return self.name or re.sub(r"[^a-z0-9]+", "-", first).strip("-")[:28] or "host"


class SshSettings(Section):
    """Hosts that are reached with the command `ssh`."""

    #: The hosts.
    hosts: tuple[SshHost, ...]
    #: The name of the host that runs the broker. Without a value: the first host.
    broker: str = ""
    #: The command on the hosts, such as `"~/farflung/.venv/bin/farflung"`.
    command: str = "farflung"
    #: Further options of the command `ssh`, such as `["-i", "~/.ssh/cluster", "-o", "StrictHostKeyChecking=accept-new"]`.
    options: tuple[str, ...] = ()

    @field_validator("hosts")
    @classmethod
    def _different(cls, hosts: tuple[SshHost, ...]) -> tuple[SshHost, ...]:
        labels = [host.label for host in hosts]
        twice = next((label for label in labels if labels.count(label) > 1), None)
        if not hosts:
            raise PydanticCustomError("hosts", "there is no host: add a table [[ssh.hosts]] with an address")
        if twice is not None:
            raise PydanticCustomError("hosts", "two hosts are called {name}: give each a name", {"name": repr(twice)})
        return hosts

    @field_validator("broker")
    @classmethod
    def _known(cls, broker: str, found: ValidationInfo) -> str:
        labels = [host.label for host in found.data.get("hosts", ())]
        if broker and labels and broker not in labels:
            raise PydanticCustomError("broker", "no host has this name: known are {known}", {"known": ", ".join(labels)})
        return broker

    @property
    def broker_host(self) -> SshHost:
        """The host that runs the broker."""
        return next((host for host in self.hosts if host.label == self.broker), self.hosts[0])


@dataclass(frozen=True, slots=True)
class _Place:
    """A place for a worker: the worker's name, its host and its number there."""

    name: str
    host: SshHost
    slot: int


class SshProvider:
    """The provider."""

    settings: ClassVar[type[Section]] = SshSettings

    def __init__(self, cluster: ClusterSpec, folder: Path) -> None:
        del folder  # the hosts store everything
        self._cluster = cluster
        self._ssh = settings_of(cluster, SshSettings)
        #: What ``check`` has found. ``scale`` needs the workers among it, and each look takes seconds.
        self._checked: Sequence[Process] | None = None

    def check(self, former: ClusterSpec | None) -> None:
        """Refuse hosts without farflung, and a file that lacks a host of ``former``: processes there would be forgotten."""
        if former is not None:
            self._check_hosts(former)
        self._checked = self.processes()

    def _check_hosts(self, former: ClusterSpec) -> None:
        present = {host.address for host in self._ssh.hosts}
        for host in settings_of(former, SshSettings).hosts:
            if host.address not in present:
                raise InputError(
                    f"the host {host.address!r} belongs to the cluster {former.name!r}, which is up, and is missing in the file: "
                    "set its workers = 0 and run farflung up, then remove it"
                )
        if settings_of(former, SshSettings).broker_host.address != self._ssh.broker_host.address:
            raise InputError(
                f"the broker of the cluster {former.name!r} runs on {settings_of(former, SshSettings).broker_host.address!r}: "
                "run farflung down before another host runs it"
            )

    def places(self) -> int:
        """Return the number of places of all hosts."""
        return sum(host.workers for host in self._ssh.hosts)

    def outside(self) -> None:
        """Return ``None``: workers and this machine use the same address."""

    def start_broker(self) -> None:
        """Start the broker on its host."""
        words = ("broker", *self._cluster.broker.words(), "--valid", self._cluster.broker.valid, "--no-tickets")
        broker = ProcessStart(name=BROKER, words=words, environment=self._cluster.broker.environment, broker=True)
        host = self._ssh.broker_host
        _refuse(run_all([self._request(host, StartProcesses(cluster=self._cluster.name, processes=(broker,)))]))

    def ask(self, words: Sequence[str]) -> str:
        """Run a command on the broker's host."""
        asked = self._request(self._ssh.broker_host, AskBroker(cluster=self._cluster.name, words=tuple(words)))
        return _refuse(run_all([asked]))[0].printed

    def scale(self, count: int, ticket: Callable[[], str]) -> None:
        """Fill one place of each host first, then the second ones. Hosts start and stop their workers at the same time."""
        chosen = self._places()[:count]
        if len(chosen) < count:
            raise InputError(
                f"{count} workers are wanted, and ssh.hosts has {counted(len(chosen), 'place')}: "
                "add hosts, or raise `workers` of a host"
            )
        checked, self._checked = self._checked, None
        present = [one for one in (self.processes() if checked is None else checked) if one.name != BROKER]
        running = {process.name for process in present if process.state is ProcessState.RUNNING}
        kept = {place.name for place in chosen}
        missing = [place for place in chosen if place.name not in running]
        invitation = ticket() if missing else ""
        programs = []
        for host in self._ssh.hosts:
            beyond = tuple(process.name for process in present if process.place == host.label and process.name not in kept)
            if beyond:
                programs.append(self._request(host, StopProcesses(cluster=self._cluster.name, names=beyond)))
            starts = tuple(self._start(place, invitation) for place in missing if place.host is host)
            if starts:
                programs.append(self._request(host, StartProcesses(cluster=self._cluster.name, processes=starts)))
        _refuse(run_all(programs))

    def stop(self, *, force: bool) -> Sequence[str]:
        """Stop all workers, then the broker, which is on the first of the hosts that it knows."""
        workers = StopProcesses(cluster=self._cluster.name, spared=(BROKER,))
        finished = run_all([self._request(host, workers) for host in self._ssh.hosts])
        if not force:
            _refuse(finished)
        finished += run_all([self._request(self._ssh.broker_host, StopProcesses(cluster=self._cluster.name))])
        if not force:
            _refuse(finished)
        return [str(_error(one)) for one in finished if one.code]

    def processes(self) -> Sequence[Process]:
        """Ask all hosts."""
        hosts = self._ssh.hosts
        answers = _refuse(run_all([self._request(host, ListProcesses(cluster=self._cluster.name)) for host in hosts]))
        return [
            Process(name=one.name, place=host.label, state=ProcessState.RUNNING if one.running else ProcessState.ENDED)
            for host, answer in zip(hosts, answers, strict=True)
            for one in read_processes(answer.printed, f"host {host.address}")
        ]

    def log(self, name: str, lines: int, *, follow: bool) -> Program:
        """Read the log on the host of the process."""
        host = self._ssh.broker_host if name == BROKER else self._host_of(name)
        return self._request(host, ShowLog(cluster=self._cluster.name, name=name, lines=lines, follow=follow))

    def _places(self) -> list[_Place]:
        """Return the places in the order in which they are filled."""
        most = max(host.workers for host in self._ssh.hosts)
        return [
            _Place(self._cluster.worker_name(f"{host.label}-{slot}"), host, slot)
            for slot in range(most)
            for host in self._ssh.hosts
            if slot < host.workers
        ]

    def _host_of(self, name: str) -> SshHost:
        """Return the host of the worker ``name``, from the name.

        Raises:
            InputError: no host of this cluster has workers of such a name.
        """
        begin, _, slot = name.rpartition("-")
        found = next((host for host in self._ssh.hosts if begin == self._cluster.worker_name(host.label)), None)
        if found is None or not slot.isdecimal():
            known = ", ".join([BROKER, *(place.name for place in self._places()[:20])])
            raise InputError(f"the cluster {self._cluster.name!r} has no process {name!r}: known are {known}")
        return found

    def _start(self, place: _Place, ticket: str) -> ProcessStart:
        workers = self._cluster.workers
        words = ("join", "--name", place.name, *place.host.options.over(workers).words(place.slot))
        return ProcessStart(name=place.name, words=words, environment=workers.environment, ticket=ticket)

    def _request(self, host: SshHost, request: HostRequest) -> Program:
        port = [] if host.port is None else ["-p", str(host.port)]
        # BatchMode: nobody is there to type a password. No terminal: the request must reach the command as it is.
        options = ["-T", "-o", "BatchMode=yes", "-o", f"ConnectTimeout={_CONNECT_SECONDS}", *self._ssh.options, *port]
        words = ["ssh", *options, host.address, f"{self._ssh.command} host"]
        return Program(words=words, place=f"host {host.address}", given=encode(request))


def _refuse(finished: Sequence[Finished]) -> Sequence[Finished]:
    """Return ``finished`` if all hosts have done what was asked.

    Raises:
        ConnectionLost: a host can't be reached.
        InputError: a host has no farflung.
        FarflungError: a host has failed at the request.
    """
    failed = [one for one in finished if one.code]
    if failed:
        error = _error(failed[0])
        more = f" (and {counted(len(failed) - 1, 'more host')})" if len(failed) > 1 else ""
        raise type(error)(f"{error}{more}")
    return finished


def _error(one: Finished) -> FarflungError:
    """Return the error of a program that has failed."""
    reason, place = one.reason.removeprefix("farflung: "), one.program.place
    if one.code == _NO_CONNECTION:
        return ConnectionLost(f"{place} can't be reached: {reason}; check that `ssh -o BatchMode=yes {place[5:]}` works")
    if one.code == _NO_COMMAND or "No module named farflung" in reason:
        return InputError(
            f"{place} has no farflung: {reason}; install farflung there, or set ssh.command, e.g. '~/farflung/.venv/bin/farflung'"
        )
    return FarflungError(f"{place}: {reason}")
