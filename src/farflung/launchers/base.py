"""The protocol of providers: what starts, lists and stops the broker and the workers of a cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Protocol

from farflung.job.section import Section
from farflung.launchers.cluster_spec import ClusterSpec
from farflung.launchers.programs import Program

__all__ = ["BROKER", "Process", "ProcessState", "Provider", "ProviderType"]

#: The name of the broker among the processes of a cluster.
BROKER = "broker"


class ProcessState(StrEnum):
    """What a provider knows about a process."""

    #: It waits for a machine.
    WAITING = "waiting"
    RUNNING = "running"
    ENDED = "ended"


@dataclass(frozen=True, slots=True, kw_only=True)
class Process:
    """One process of a cluster: the broker, or a worker. ``place``: the host, job, pod or machine that it runs on."""

    name: str
    place: str
    state: ProcessState


class Provider(Protocol):
    """Starts and stops the processes of one cluster. An object serves one command, such as ``farflung up``.

    Each call raises an ``InputError`` or another ``FarflungError`` that names the place and the remedy.
    """

    def check(self, former: ClusterSpec | None) -> None:
        """Refuse what can't be started, before anything is. ``former``: the cluster as it is up (``None``: it is not)."""

    def places(self) -> int | None:
        """Return how many workers the provider's table has places for (``None``: as many as wanted)."""

    def outside(self) -> str | None:
        """Return ``HOST:PORT`` of the broker for this machine (``None``: the address that workers use)."""

    def start_broker(self) -> None:
        """Start the broker if it does not run. It may still be starting when this returns."""

    def ask(self, words: Sequence[str]) -> str:
        """Run ``farflung WORDS`` beside the broker, on the broker's folder. Return what it prints."""

    def scale(self, count: int, ticket: Callable[[], str]) -> None:
        """See that ``count`` workers run, or wait for a machine: start missing ones, stop those beyond.

        ``ticket`` issues a join ticket. The ticket must appear in no command line and in no log.
        """

    def stop(self, *, force: bool) -> Sequence[str]:
        """Stop all workers, then the broker. The broker's folder stays.

        ``force``: leave what can't be reached, and return a line about each.
        """

    def processes(self) -> Sequence[Process]:
        """Return the processes that have been started and not stopped."""

    def log(self, name: str, lines: int, *, follow: bool) -> Program:
        """Return what prints the last ``lines`` lines of the log of the process ``name``, and new ones if ``follow``."""


class ProviderType(Protocol):
    """What the registry of providers holds: a class of providers."""

    @property
    def settings(self) -> type[Section]:
        """The keys of the provider's table in the cluster file."""

    def __call__(self, cluster: ClusterSpec, folder: Path) -> Provider:
        """Return the provider of ``cluster``. ``folder``: a private folder of the cluster on this machine."""
