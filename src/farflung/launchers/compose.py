"""Provider ``compose``: broker and workers as containers of Docker Compose.

The compose file is JSON, which is YAML, too. The join ticket reaches ``docker compose`` in its environment, and the containers
as a secret. It is in no file of this machine and in no command line.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, ClassVar

from pydantic import Field

from farflung.errors import FarflungError
from farflung.job.section import Section
from farflung.launchers.base import BROKER, Process, ProcessState
from farflung.launchers.cluster_spec import ClusterSpec, settings_of
from farflung.launchers.containers import HOME, MEMBER_PORT, PORT, USER, broker_words, worker_words
from farflung.launchers.programs import Program, run_one
from farflung.security.files import make_private_folder, write_private

__all__ = ["ComposeProvider", "ComposeSettings"]

_WORKER, _TICKET = "worker", "FARFLUNG_JOIN_TICKET"
_STATES = {"running": ProcessState.RUNNING, "restarting": ProcessState.RUNNING, "created": ProcessState.WAITING}


class ComposeSettings(Section):
    """Containers on this machine, or on that of Docker's context."""

    #: The image. `docker build -t farflung -f Containerfile .` builds it from the repository.
    image: str = "farflung"
    #: The command that understands `up`, `ps` and `logs`, such as `"podman compose"`.
    command: str = "docker compose"
    #: The number of NVIDIA GPUs that all workers see. 0: none.
    gpus: Annotated[int, Field(ge=0, le=64)] = 0
    #: Seconds that a worker has to finish its step when it is stopped.
    stop_seconds: Annotated[int, Field(ge=1, le=3600)] = 60
    #: The address of this machine at which the broker's ports are published.
    publish: str = "127.0.0.1"


class ComposeProvider:
    """The provider."""

    settings: ClassVar[type[Section]] = ComposeSettings

    def __init__(self, cluster: ClusterSpec, folder: Path) -> None:
        self._cluster, self._folder = cluster, folder
        self._compose = settings_of(cluster, ComposeSettings)

    def check(self, former: ClusterSpec | None) -> None:
        """Write the file, and let Docker Compose check it."""
        del former
        make_private_folder(self._folder)
        write_private(self._file, json.dumps(self.document(), indent=1).encode())
        run_one(self._program("config", "--quiet"))

    def places(self) -> None:
        """Return ``None``: Docker limits nothing."""

    def outside(self) -> str:
        """Return the address at which this machine reaches the broker."""
        return f"{self._compose.publish}:{PORT}"

    def start_broker(self) -> None:
        """Start the container of the broker."""
        run_one(self._program("up", "--detach", "--no-recreate", BROKER))

    def ask(self, words: Sequence[str]) -> str:
        """Run a command in the broker's container."""
        return run_one(self._program("exec", "-T", BROKER, "farflung", *words))

    def scale(self, count: int, ticket: Callable[[], str]) -> None:
        """Start or stop containers of workers."""
        up = ["up", "--detach", "--no-recreate", "--scale", f"{_WORKER}={count}", _WORKER]
        run_one(self._program(*up, environment={_TICKET: ticket()}))

    def stop(self, *, force: bool) -> Sequence[str]:
        """Stop and remove the containers. The volume with the broker's folder stays."""
        del force
        run_one(self._program("stop", _WORKER))
        run_one(self._program("down"))
        return []

    def processes(self) -> Sequence[Process]:
        """Return the containers."""
        printed = run_one(self._program("ps", "--all", "--format", "json")).strip()
        rows = json.loads(printed) if printed.startswith("[") else [json.loads(line) for line in printed.splitlines()]
        found = []
        for row in rows:
            name = BROKER if row["Service"] == BROKER else str(row["Name"])
            found.append(Process(name=name, place=str(row["Name"]), state=_STATES.get(row["State"], ProcessState.ENDED)))
        return found

    def log(self, name: str, lines: int, *, follow: bool) -> Program:
        """Read the log of a container."""
        container = next((process.place for process in self.processes() if process.name == name), None)
        if container is None:
            known = ", ".join(process.name for process in self.processes())
            raise FarflungError(f"the cluster {self._cluster.name!r} has no process {name!r}: known are {known}")
        engine = shlex.split(self._compose.command)[0]
        return Program(words=[engine, "logs", "--tail", str(lines), *(["--follow"] if follow else []), container], place=name)

    def document(self) -> dict[str, Any]:
        """Return the compose file."""
        name, grace = self._cluster.name, f"{self._compose.stop_seconds}s"
        join = shlex.join(["farflung", *worker_words(self._cluster, "NAME"), "@/run/secrets/ticket"])
        # each container has its own host name; `exec` lets the worker itself get the signal to stop
        script = "exec " + join.replace("--name NAME", f'--name "{name}-$$(hostname)"')
        common = {"image": self._compose.image, "restart": "unless-stopped", "init": True}
        broker = {
            **common,
            "command": broker_words(self._cluster, BROKER),
            "environment": self._cluster.broker.environment,
            "volumes": [f"broker:{HOME}"],
            "ports": [f"{self._compose.publish}:{port}:{port}" for port in (PORT, MEMBER_PORT)],
            "healthcheck": {"test": ["CMD", "farflung", "status", "--json"], "interval": "60s", "start_period": "60s"},
        }
        worker: dict[str, Any] = {
            **common,
            "entrypoint": ["/bin/sh", "-c", script],
            "environment": self._cluster.workers.environment,
            "stop_grace_period": grace,
            "depends_on": [BROKER],
            "secrets": [{"source": "ticket", "target": "ticket", "uid": str(USER), "gid": str(USER), "mode": 0o400}],
        }
        if self._compose.gpus:
            devices = [{"driver": "nvidia", "count": self._compose.gpus, "capabilities": ["gpu"]}]
            worker["deploy"] = {"resources": {"reservations": {"devices": devices}}}
        return {
            "name": name,
            "services": {BROKER: broker, _WORKER: worker},
            "volumes": {"broker": {}},
            "secrets": {"ticket": {"environment": _TICKET}},
        }

    @property
    def _file(self) -> Path:
        return self._folder / "compose.json"

    def _program(self, *words: str, environment: dict[str, str] | None = None) -> Program:
        command = [*shlex.split(self._compose.command), "--file", str(self._file), *words]
        # without a value, Docker Compose warns about the variable of the secret
        return Program(words=command, place="Docker Compose", environment={_TICKET: "", **(environment or {})})
