"""Provider ``ray``: workers as actors in placement groups of an existing Ray cluster, and the broker on this machine.

Each worker has a placement group of its own, so that some can start while others wait for resources. Actors and groups are
detached. They outlive ``farflung up``, and later commands find them by name.
"""

from __future__ import annotations

import logging
import socket
import sys
from collections.abc import Callable, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from farflung.errors import ConnectionLost, InputError
from farflung.ids import new_id
from farflung.job.section import Section
from farflung.launchers.base import BROKER, Process, ProcessState
from farflung.launchers.cluster_spec import ClusterSpec, settings_of
from farflung.launchers.host_requests import ProcessStart, ShowLog, encode
from farflung.launchers.local_broker import BrokerHere
from farflung.launchers.programs import Program
from farflung.launchers.ray_actors import WorkerActor
from farflung.security import split_address

__all__ = ["RayProvider", "RaySettings", "connect"]

#: Seconds in which an actor that has started answers; else it still waits for resources.
_ANSWER_SECONDS = 5.0
_STOP_SECONDS = 60.0
_CONNECT_SECONDS = 10.0


class RaySettings(Section):
    """Actors on an existing Ray cluster."""

    #: The address of the cluster, `HOST:PORT`. `auto` finds one on this machine or in the variable `RAY_ADDRESS`.
    address: str = "auto"
    #: CPUs that Ray reserves for each worker.
    cpus: Annotated[float, Field(gt=0.0, le=4096.0)] = 1.0
    #: GPUs that Ray reserves for each worker. Ray chooses them, so `workers.device` can stay `auto`.
    gpus: Annotated[float, Field(ge=0.0, le=64.0)] = 0.0
    #: Further resources of Ray for each worker, such as `{ "accelerator_type:A100" = 0.001 }`.
    resources: dict[str, float] = {}


def connect(cluster: str, address: str) -> Any:
    """Return the library of Ray, connected to the cluster at ``address``, in the namespace of ``cluster``.

    Raises:
        InputError: Ray is not installed.
        ConnectionLost: no Ray cluster answers.
    """
    if find_spec("ray") is None:
        raise InputError("the provider 'ray' needs the package ray, which is not installed here: pip install 'farflung[ray]'")
    if address != "auto":
        _reach(address)
    import ray

    if not ray.is_initialized():
        quiet = {"log_to_driver": False, "logging_level": logging.ERROR, "configure_logging": False}
        try:
            ray.init(address=address, namespace=f"farflung-{cluster}", **quiet)
        except (ConnectionError, RuntimeError, ValueError) as error:
            reason = " ".join(str(error).split())
            raise ConnectionLost(f"no Ray cluster answers at {address!r}: {reason:.120}; check `ray status`") from error
    return ray


def _reach(address: str) -> None:
    """See that something listens at ``address``: Ray itself tries for minutes.

    Raises:
        ConnectionLost: nothing does.
    """
    try:
        socket.create_connection(split_address(address), _CONNECT_SECONDS).close()
    except OSError as error:
        raise ConnectionLost(f"no Ray cluster answers at {address!r}: {error.strerror or error}; check `ray status`") from error


class RayProvider(BrokerHere):
    """The provider."""

    settings: ClassVar[type[Section]] = RaySettings

    def __init__(self, cluster: ClusterSpec, folder: Path) -> None:
        super().__init__(cluster, folder)
        self._settings = settings_of(cluster, RaySettings)

    def check(self, former: ClusterSpec | None) -> None:
        """See that the Ray cluster answers, and has nodes with the resources of a worker."""
        del former
        found = self._ray.cluster_resources()
        for name, amount in self._bundle.items():
            if found.get(name, 0.0) < amount:
                known = ", ".join(sorted(key for key in found if not key.startswith("node:")))
                raise InputError(
                    f"a worker needs {amount:g} {name}, and the Ray cluster has {found.get(name, 0.0):g}: "
                    f"change the table [ray], or add nodes (resources there: {known})"
                )

    def scale(self, count: int, ticket: Callable[[], str]) -> None:
        """Add actors, or end those beyond. Those that wait for resources go first."""
        found = {process.name: process.state for process in self.processes() if process.name != BROKER}
        self._end([name for name, state in found.items() if state is ProcessState.ENDED])
        alive = [name for name, state in found.items() if state is not ProcessState.ENDED]
        alive.sort(key=lambda name: found[name] is ProcessState.WAITING)
        self._end(alive[count:])
        if missing := count - len(alive):
            invitation = ticket() if missing > 0 else ""
            for _ in range(missing):
                self._start(invitation)

    def stop(self, *, force: bool) -> Sequence[str]:
        """End all actors, then the broker."""
        warnings = []
        try:
            self._end(self._names())
        except ConnectionLost as error:
            if not force:
                raise
            warnings.append(str(error))
        self._broker.stop()
        return warnings

    def processes(self) -> Sequence[Process]:
        """Return the broker, and the actors with their nodes."""
        ray = self._ray
        asked = {name: ray.get_actor(name).state.remote() for name in self._names()}
        if asked:
            ray.wait(list(asked.values()), num_returns=len(asked), timeout=_ANSWER_SECONDS)
        found = self._broker.processes()
        for name, answer in asked.items():
            try:
                running, node = ray.get(answer, timeout=0)
                state = ProcessState.RUNNING if running else ProcessState.ENDED
            except ray.exceptions.GetTimeoutError:
                state, node = ProcessState.WAITING, "Ray"
            except ray.exceptions.RayActorError:
                state, node = ProcessState.ENDED, "Ray"
            found.append(Process(name=name, place=node, state=state))
        return found

    def log(self, name: str, lines: int, *, follow: bool) -> Program:
        """Read the log through the actor."""
        if name == BROKER:
            return self._broker.log(lines, follow=follow)
        request = ShowLog(cluster=self._cluster.name, name=name, lines=lines, follow=follow)
        words = [sys.executable, "-m", "farflung.launchers.ray_log", self._settings.address]
        return Program(words=words, place=name, given=encode(request))

    @property
    def _ray(self) -> Any:
        return connect(self._cluster.name, self._settings.address)

    @property
    def _bundle(self) -> Mapping[str, float]:
        gpus = {"GPU": self._settings.gpus} if self._settings.gpus else {}
        return {"CPU": self._settings.cpus, **gpus, **self._settings.resources}

    def _names(self) -> list[str]:
        return sorted(self._ray.util.list_named_actors())

    def _start(self, ticket: str) -> None:
        ray = self._ray
        name = new_id(self._cluster.name)
        group = ray.util.placement_group([dict(self._bundle)], name=name, lifetime="detached")
        place = ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(placement_group=group)
        workers = self._cluster.workers
        start = ProcessStart(
            name=name, words=("join", "--name", name, *workers.words()), environment=workers.environment, ticket=ticket
        )
        reserved = {"num_cpus": self._settings.cpus, "num_gpus": self._settings.gpus, "resources": self._settings.resources}
        actor = ray.remote(WorkerActor).options(name=name, lifetime="detached", scheduling_strategy=place, **reserved)
        actor.remote(start)

    def _end(self, names: Sequence[str]) -> None:
        """Ask the workers to leave, then remove actors and groups."""
        ray = self._ray
        actors = {name: ray.get_actor(name) for name in names}
        asked = [actor.stop.remote(_STOP_SECONDS) for actor in actors.values()]
        if asked:  # an actor that waits for resources does not answer
            started = {process.name for process in self.processes() if process.state is not ProcessState.WAITING}
            answers = [answer for name, answer in zip(actors, asked, strict=True) if name in started]
            if answers:
                ray.wait(answers, num_returns=len(answers), timeout=_STOP_SECONDS + _ANSWER_SECONDS)
        for name, actor in actors.items():
            ray.kill(actor)
            ray.util.remove_placement_group(ray.util.get_placement_group(name))
