"""``up``, ``scale`` and ``down``: the same order of steps for each provider."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from farflung.clock import monotonic
from farflung.errors import FarflungError, InputError
from farflung.launchers.base import BROKER, Process, ProcessState, Provider
from farflung.launchers.cluster_spec import ClusterSpec
from farflung.launchers.programs import run_one
from farflung.launchers.registry import PROVIDERS
from farflung.launchers.state import ClusterFolder, ClusterState
from farflung.protocol.runs import RunState
from farflung.units import Seconds, counted

__all__ = ["Joined", "Lifecycle", "open_cluster"]

#: Seconds between two questions to the broker, and between two questions to all machines, which take as long on each of them.
_PAUSE, _LOOK_SECONDS = 0.5, 5.0
#: Seconds that a broker may take to answer for the first time.
_BROKER_SECONDS = 120.0
#: States of runs that nothing can end.
_OVER = frozenset(state.value for state in RunState if state.over)
#: Lines of the log of a process that has ended.
_LOG_LINES = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Joined:
    """How many workers have joined of those that are ``wanted``. ``waiting``: how many wait for a machine."""

    wanted: int
    joined: int
    waiting: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lifecycle:
    """A cluster and its provider. ``say`` shows what is done, and ``wait`` is how long workers may take to join."""

    cluster: ClusterSpec
    provider: Provider
    folder: ClusterFolder
    say: Callable[[str], None]
    wait: Seconds
    pause: Callable[[float], object] = field(default_factory=lambda: threading.Event().wait)

    def up(self) -> Joined:
        """Start what is missing of the cluster, and wait until the workers have joined.

        Raises:
            FarflungError: something can't be started, or has ended; the text says why.
        """
        with self.folder.locked():
            before = self.folder.read()
            if before is not None and before.cluster.provider != self.cluster.provider:
                raise InputError(
                    f"the cluster {self.cluster.name!r} is up with the provider {before.cluster.provider!r}: "
                    "run farflung down before you start it with another one"
                )
            self.provider.check(None if before is None else before.cluster)
            count = self._count(self.cluster.workers.count)
            self.folder.write(ClusterState(cluster=self.cluster, count=count))  # so that `down` works after an interruption
            self.say("starting the broker")
            self.provider.start_broker()
            self._until_broker_answers()
            self.folder.keep_ticket(self._ticket("owner", self.provider.outside()))
            return self._scale(count)

    def scale(self, count: int) -> Joined:
        """Start or stop workers until there are ``count``, and wait until they have joined.

        Raises:
            InputError: the cluster is not up, or has no place for so many.
            FarflungError: something can't be started, or has ended.
        """
        with self.folder.locked():
            state = self.folder.state()
            count = self._count(count)
            found = self._scale(count)
            self.folder.write(ClusterState(cluster=state.cluster, count=count))
            return found

    def down(self, *, force: bool) -> list[str]:
        """Stop workers and broker. Return warnings.

        Raises:
            InputError: the cluster is not up, or runs are active and ``force`` is not set.
            FarflungError: something can't be stopped.
        """
        with self.folder.locked():
            self.folder.state()
            active = [] if force else self._active_runs()
            if active:
                raise InputError(
                    f"the cluster {self.cluster.name!r} has {counted(len(active), 'active run')} ({', '.join(active[:3])}): "
                    "wait, stop the runs (farflung stop), or add --force"
                )
            self.say("stopping workers and broker")
            warnings = self.provider.stop(force=force)
            self.folder.forget()
            return list(warnings)

    def broker_status(self) -> Mapping[str, Any]:
        """Return what the broker answers to ``farflung status --json``."""
        found: Mapping[str, Any] = json.loads(self.provider.ask(["status", "--json"]))
        return found

    def _count(self, wanted: int | None) -> int:
        places = self.provider.places()
        count = places if wanted is None else wanted
        if count is None:
            raise InputError(f"the provider {self.cluster.provider!r} needs a number of workers: add count = 4 to [workers]")
        if places is not None and count > places:
            raise InputError(
                f"{count} workers are wanted, and the table [{self.cluster.provider}] has {counted(places, 'place')}: "
                "add hosts, or raise `workers` of a host"
            )
        return count

    def _ticket(self, scope: str, address: str | None = None) -> str:
        """Return a new ticket; ``address``: where its reader reaches the broker."""
        words = ["ticket", "issue", "--scope", scope, "--valid", self.cluster.broker.valid, "--json"]
        answer = json.loads(self.provider.ask(words if address is None else [*words, "--address", address]))
        return str(answer["ticket"])

    def _scale(self, count: int) -> Joined:
        self.say(f"starting {counted(count, 'worker')}")
        self.provider.scale(count, lambda: self._ticket("join"))
        return self._until_joined(count)

    def _until_broker_answers(self) -> None:
        """Wait until the broker answers ``farflung status``.

        Raises:
            FarflungError: it has ended, or does not answer in time.
        """
        end = monotonic() + _BROKER_SECONDS
        for count in itertools.count(1):
            try:
                self.broker_status()
                return
            except FarflungError as error:
                if count % 3 == 0:  # a broker that starts refuses once or twice, and to look at all machines takes seconds
                    self._refuse_ended([one for one in self.provider.processes() if one.name == BROKER])
                if monotonic() >= end:
                    raise FarflungError(
                        f"the broker does not answer after {Seconds(_BROKER_SECONDS)}: {error}; see {self._logs(BROKER)}"
                    ) from error
            self.pause(_PAUSE)

    def _until_joined(self, count: int) -> Joined:
        """Wait until ``count`` workers have joined, or the rest waits for machines.

        Raises:
            FarflungError: a worker has ended, or does not join in time.
        """
        end = monotonic() + self.wait
        look = monotonic() + _LOOK_SECONDS
        while True:
            asked = monotonic()
            members = self.broker_status()["members"]
            joined = sum(str(one["name"]).startswith(f"{self.cluster.name}-") for one in members)
            if joined >= count:
                return Joined(wanted=count, joined=count)
            if monotonic() < min(look, end):
                # a question costs the broker's machine a start of Python: most of the time is left to those who start
                self.pause(max(_PAUSE, 2.0 * (monotonic() - asked)))
                continue
            look = monotonic() + _LOOK_SECONDS
            processes = [one for one in self.provider.processes() if one.name != BROKER]
            self._refuse_ended(processes)
            waiting = sum(one.state is ProcessState.WAITING for one in processes)
            if waiting and joined + waiting >= count:
                return Joined(wanted=count, joined=joined, waiting=waiting)
            if monotonic() >= end:
                names = {str(one["name"]) for one in members}
                late = next((one for one in processes if one.name not in names), None)
                cause = "" if late is None else f" ({late.name} on {late.place}: {self._last_line(late.name)})"
                raise FarflungError(
                    f"{joined} of {counted(count, 'worker')} joined within {self.wait}{cause}: see {self._logs()}, "
                    "or wait longer with --wait"
                )
            self.pause(_PAUSE)

    def _refuse_ended(self, processes: Sequence[Process]) -> None:
        ended = next((one for one in processes if one.state is ProcessState.ENDED), None)
        if ended is None:
            return
        last = self._last_line(ended.name)
        raise FarflungError(f"{ended.name} on {ended.place} has ended: {last}; see {self._logs(ended.name)}")

    def _last_line(self, process: str) -> str:
        """Return the last line that ``process`` has printed."""
        printed = run_one(self.provider.log(process, _LOG_LINES, follow=False))
        return printed.strip().rpartition("\n")[2].removeprefix("farflung: ") or "it printed nothing"

    def _logs(self, name: str = "") -> str:
        return f"`farflung logs --cluster {self.cluster.name}{f' {name}' if name else ''}`"

    def _active_runs(self) -> list[str]:
        """Return the names of runs that have not ended; none if the broker is gone."""
        try:
            runs = self.broker_status()["runs"]
        except FarflungError:
            return []
        return [str(run["run"]) for run in runs if run["state"] not in _OVER]


def open_cluster(cluster: ClusterSpec, say: Callable[[str], None], wait: Seconds) -> Lifecycle:
    """Return the cluster with its provider.

    Raises:
        InputError: the provider is unknown, or what it needs is not installed.
    """
    folder = ClusterFolder(cluster.name)
    provider = PROVIDERS.get(cluster.provider)(cluster, folder.place)
    return Lifecycle(cluster=cluster, provider=provider, folder=folder, say=say, wait=wait)
