"""Provider ``slurm``: workers as tasks of job arrays, and the broker on the machine of ``farflung up``.

Each task runs its worker as a job step, since Slurm sends the signals before a preemption and before the time limit to steps.
A worker that gets the signal drains: its part of a run moves to other workers, and it leaves.
"""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, ClassVar

from pydantic import Field

from farflung.errors import FarflungError, InputError
from farflung.job.section import Section
from farflung.launchers.base import BROKER, Process, ProcessState
from farflung.launchers.cluster_spec import ClusterSpec, settings_of
from farflung.launchers.local_broker import BrokerHere
from farflung.launchers.programs import Program, run_one
from farflung.security.files import make_private_folder, write_private

__all__ = ["SlurmProvider", "SlurmSettings"]

_PLACE = "Slurm"
#: Compact states of jobs that are not over (squeue(1)).
_WAITING, _RUNNING = ("PD", "CF", "RQ", "RH", "RS", "S", "SO", "ST"), ("R", "CG", "SI")


class SlurmSettings(Section):
    """Job arrays of Slurm. The folder `~/.farflung` must be on a file system that the nodes share."""

    #: Options of `sbatch` for each worker, such as `["--partition=gpu", "--gres=gpu:1", "--time=24:00:00"]`.
    options: tuple[str, ...] = ()
    #: Seconds before the time limit at which a worker drains.
    notice_seconds: Annotated[int, Field(ge=1, le=65535)] = 60
    #: The command on the nodes. Without a value: the Python that runs `farflung up`.
    command: str = ""


class SlurmProvider(BrokerHere):
    """The provider. The file ``slurm.json`` lists the tasks that were submitted and not cancelled."""

    listing: ClassVar[str] = "slurm.json"
    settings: ClassVar[type[Section]] = SlurmSettings

    def __init__(self, cluster: ClusterSpec, folder: Path) -> None:
        super().__init__(cluster, folder)
        self._slurm = settings_of(cluster, SlurmSettings)

    def check(self, former: ClusterSpec | None) -> None:
        """See that Slurm answers."""
        del former
        run_one(Program(words=["sinfo", "--noheader", "--format=%P"], place=_PLACE))

    def scale(self, count: int, ticket: Callable[[], str]) -> None:
        """Submit an array of the missing workers, or cancel the newest tasks. Tasks that wait for nodes go first."""
        states = self._states()
        alive = [task for task in self._listed() if task in states]
        alive.sort(key=lambda task: states[task][0] is ProcessState.WAITING)  # stable: older ones first
        kept, beyond = alive[:count], alive[count:]
        if beyond:
            run_one(Program(words=["scancel", *beyond], place=_PLACE))
        if missing := count - len(kept):
            write_private(self._ticket, ticket().encode())
            job = run_one(self._submission(missing)).strip().partition(";")[0]
            kept += [f"{job}_{index}" for index in range(missing)]
        self._list(kept)

    def stop(self, *, force: bool) -> Sequence[str]:
        """Cancel all tasks, which drains their workers, then stop the broker."""
        warnings = []
        if tasks := [task for task in self._listed() if force or task in self._states()]:
            try:
                run_one(Program(words=["scancel", *tasks], place=_PLACE))
            except FarflungError as error:
                if not force:
                    raise
                warnings.append(str(error))
        self._broker.stop()
        self._ticket.unlink(missing_ok=True)
        self._list([])
        return warnings

    def processes(self) -> Sequence[Process]:
        """Return the broker, and the tasks with the nodes that they run on."""
        states = self._states()
        found = self._broker.processes()
        for task in self._listed():
            state, node = states.get(task, (ProcessState.ENDED, f"task {task}"))
            found.append(Process(name=self._name(task), place=node or f"task {task}", state=state))
        return found

    def log(self, name: str, lines: int, *, follow: bool) -> Program:
        """Read the output of a task from the shared file system."""
        if name == BROKER:
            return self._broker.log(lines, follow=follow)
        task = next((task for task in self._listed() if self._name(task) == name), None)
        if task is None:
            known = ", ".join([BROKER, *map(self._name, self._listed())])
            raise InputError(f"the cluster {self._cluster.name!r} has no process {name!r}: known are {known}")
        path = self._folder / "slurm" / f"{task}.log"
        if not path.exists():
            raise FarflungError(f"{name} has not started: see squeue --job={task}")
        return Program(words=["tail", f"--lines={lines}", *(["--follow=name"] if follow else []), str(path)], place=name)

    def _submission(self, count: int) -> Program:
        """Return the call of ``sbatch``. The script is its input. The ticket is in a file, whose name the script knows."""
        make_private_folder(self._folder / "slurm")
        command = shlex.split(self._slurm.command) if self._slurm.command else [sys.executable, "-u", "-m", "farflung"]
        join = shlex.join([*command, "join", *self._cluster.workers.words(), f"@{self._ticket}"])
        name = f'"{self._cluster.name}-$SLURM_ARRAY_JOB_ID-$SLURM_ARRAY_TASK_ID"'
        script = f"#!/bin/sh\nexec srun --ntasks=1 {join} --name {name}\n"
        options = [
            "--parsable",
            f"--job-name=farflung-{self._cluster.name}",
            f"--array=0-{count - 1}",
            "--ntasks=1",
            f"--output={self._folder}/slurm/%A_%a.log",
            "--open-mode=append",
            f"--signal=TERM@{self._slurm.notice_seconds}",
        ]
        words = ["sbatch", *options, *self._slurm.options]
        return Program(words=words, place=_PLACE, given=script, environment=self._cluster.workers.environment)

    def _states(self) -> dict[str, tuple[ProcessState, str]]:
        """Return the state and the node of each task that is not over."""
        name = f"--name=farflung-{self._cluster.name}"
        listed = run_one(Program(words=["squeue", "--me", "--noheader", "--array", name, "--format=%i|%t|%N"], place=_PLACE))
        found = {}
        for line in listed.splitlines():
            task, state, node = line.strip().split("|")
            if state in _RUNNING:
                found[task] = (ProcessState.RUNNING, node)
            elif state in _WAITING:
                found[task] = (ProcessState.WAITING, "")
        return found

    def _name(self, task: str) -> str:
        return self._cluster.worker_name(task.replace("_", "-"))

    @property
    def _ticket(self) -> Path:
        return self._folder / "join-ticket"
