"""The broker as a process of this machine, for providers whose workers run elsewhere (Slurm, Ray, SkyPilot)."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from farflung.errors import FarflungError
from farflung.launchers.base import BROKER, Process, ProcessState
from farflung.launchers.cluster_spec import ClusterSpec
from farflung.launchers.host_requests import ProcessStart, ShowLog, StopProcesses, encode
from farflung.launchers.hosted_processes import HostedProcesses
from farflung.launchers.programs import Program, run_all
from farflung.security.files import make_private_folder, read_private, write_private

__all__ = ["BrokerHere", "LocalBroker"]

_HERE = "this machine"


class LocalBroker:
    """The broker of ``cluster`` on this machine. ``folder``: the cluster's private folder."""

    def __init__(self, cluster: ClusterSpec, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._hosted = HostedProcesses(cluster.name, folder)

    def start(self) -> None:
        """Start the broker if it does not run."""
        broker = self._cluster.broker
        words = ("broker", *broker.words(), "--valid", broker.valid, "--no-tickets")
        self._hosted.start([ProcessStart(name=BROKER, words=words, environment=broker.environment, broker=True)])

    def ask(self, words: Sequence[str]) -> str:
        """Run ``farflung WORDS`` on the broker's folder, and return what it prints.

        Raises:
            FarflungError: the command failed.
        """
        home = str(self._hosted.broker_folder)
        (finished,) = run_all([Program(words=[sys.executable, "-m", "farflung", *words, "--home", home], place=_HERE)])
        if finished.code:
            raise FarflungError(finished.reason.removeprefix("farflung: "))
        return finished.printed

    def stop(self) -> None:
        """Stop the broker."""
        self._hosted.stop(StopProcesses(cluster=self._cluster.name))

    def processes(self) -> list[Process]:
        """Return the broker, if it was started."""
        return [
            Process(name=one.name, place=_HERE, state=ProcessState.RUNNING if one.running else ProcessState.ENDED)
            for one in self._hosted.processes()
        ]

    def log(self, lines: int, *, follow: bool) -> Program:
        """Return what prints the broker's log."""
        request = ShowLog(cluster=self._cluster.name, name=BROKER, lines=lines, follow=follow)
        return Program(words=[sys.executable, "-m", "farflung", "host"], place=_HERE, given=encode(request))


class BrokerHere:
    """The part of a provider that all with a broker on this machine share (see ``launchers.base.Provider``).

    ``listing``: the file with the names of what was started and not ended.
    """

    listing: ClassVar[str] = ""

    def __init__(self, cluster: ClusterSpec, folder: Path) -> None:
        """``folder``: the cluster's private folder."""
        self._cluster, self._folder = cluster, folder
        self._broker = LocalBroker(cluster, folder)

    def places(self) -> None:
        """Return ``None``: further workers wait for a place."""

    def outside(self) -> None:
        """Return ``None``: the broker runs on this machine."""

    def start_broker(self) -> None:
        """Start the broker on this machine."""
        self._broker.start()

    def ask(self, words: Sequence[str]) -> str:
        """Run a command on this machine."""
        return self._broker.ask(words)

    def _listed(self) -> list[str]:
        path = self._folder / self.listing
        return [str(name) for name in json.loads(read_private(path))] if path.exists() else []

    def _list(self, names: Sequence[str]) -> None:
        make_private_folder(self._folder)
        write_private(self._folder / self.listing, json.dumps(list(names)).encode())
