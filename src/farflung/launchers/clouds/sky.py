"""Provider ``sky``: workers as managed jobs of SkyPilot on spot machines, and the broker on the machine of ``farflung up``.

Everything goes through the command ``sky``. SkyPilot starts a job on another machine after its machine was taken away. A worker
that gets the notice of its cloud drains, and its job then waits for the end of the machine: a job that ends is not started again.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from farflung.errors import FarflungError, InputError
from farflung.job.section import Section
from farflung.launchers.base import BROKER, Process, ProcessState
from farflung.launchers.cluster_spec import ClusterSpec, settings_of
from farflung.launchers.local_broker import BrokerHere
from farflung.launchers.programs import Finished, Program, run_all, run_one
from farflung.security.files import make_private_folder, write_private

__all__ = ["SkyProvider", "SkySettings"]

_PLACE = "SkyPilot"
_TICKET = "FARFLUNG_TICKET"
#: Names of the variables that tell a task its worker's name.
_NAME = "FARFLUNG_WORKER"
#: Seconds after a notice until a job ends although its machine did not.
_PATIENCE_SECONDS = 600
#: Calls of ``sky`` at the same time: each is a Python process that loads many packages.
_AT_ONCE = 4
_WAITING, _RUNNING = ("PENDING", "STARTING", "RECOVERING"), ("RUNNING", "WINDING_DOWN")
#: What SkyPilot prints where nobody has had a job yet.
_NO_JOBS = ("ClusterNotUpError", "No in-progress managed jobs")
#: With what ``sky jobs logs`` ends when it has printed the log: the job failed, runs, or was cancelled.
_LOG_CODES = (100, 101, 103)

#: A POSIX shell script. A worker has another name on each machine, because a name belongs to a key. Exit code 0 means that it
#: left after a notice: SkyPilot shall see the machine's end, and not the job's.
_RUN = r"""
place() {{ printf %s "${{SKYPILOT_CLUSTER_INFO:-}}" | sed -n "s/.*\"$1\": *\"\([A-Za-z0-9-]*\)\".*/\1/p" ; }}
set -- {join} --name "${name}-$(od -An -N3 -tx1 /dev/urandom | tr -d ' \n')"
cloud=$(place cloud | tr A-Z a-z)
case "$cloud" in aws|azure|gcp) {notices} ;; esac
region=$(place region)
if [ -n "$region" ]; then {region} ; fi
"$@" &
worker=$!
trap 'stopped=1; kill -TERM "$worker"' TERM INT
wait "$worker"
code=$?
if [ -n "${{stopped:-}}" ]; then wait "$worker"; exit 0; fi
if [ "$code" = 0 ]; then sleep {patience}; fi
exit "$code"
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """A managed job. ``number``: SkyPilot's."""

    number: int
    state: ProcessState
    place: str


_GONE = _Job(number=0, state=ProcessState.ENDED, place=_PLACE)


class SkySettings(Section):
    """Managed jobs of SkyPilot, one for each worker."""

    #: The table `resources` of a SkyPilot task, such as `{ accelerators = "L4:1", infra = "aws" }`.
    resources: dict[str, Any] = {}
    #: Rent spot machines.
    spot: bool = True
    #: Shell commands that install farflung on a new machine. Not needed if `resources.image_id` has it.
    setup: str = ""
    #: The command on the machines.
    command: str = "farflung"
    #: Options of `sky jobs launch` for each worker.
    options: tuple[str, ...] = ()
    #: The command that reaches SkyPilot.
    sky: str = "sky"


class SkyProvider(BrokerHere):
    """The provider. The file ``sky.json`` lists the names of the jobs that were started and not cancelled."""

    listing: ClassVar[str] = "sky.json"
    settings: ClassVar[type[Section]] = SkySettings

    def __init__(self, cluster: ClusterSpec, folder: Path) -> None:
        super().__init__(cluster, folder)
        self._sky = settings_of(cluster, SkySettings)

    def check(self, former: ClusterSpec | None) -> None:
        """See that SkyPilot answers, and that machines elsewhere have an address of the broker."""
        del former
        if self._cluster.broker.advertise is None:
            raise InputError(
                'the provider sky needs the address of this machine that the clouds\' machines reach: add advertise = "HOST" to '
                "[broker], and open its two ports"
            )
        self._jobs()

    def scale(self, count: int, ticket: Callable[[], str]) -> None:
        """Launch the missing jobs, or cancel the newest ones. Jobs that wait for machines go first."""
        jobs = self._jobs()
        alive = [name for name in self._listed() if jobs.get(name, _GONE).state is not ProcessState.ENDED]
        alive.sort(key=lambda name: jobs[name].state is ProcessState.WAITING)  # stable: older ones first
        kept, beyond = alive[:count], alive[count:]
        if beyond:
            self._cancel([jobs[name].number for name in beyond])
        free = (name for index in range(count) if (name := f"{self._prefix}{index}") not in kept)
        missing = [next(free) for _ in range(count - len(kept))]
        self._list([*kept, *missing])  # first: a job that starts although this command is interrupted must not be forgotten
        if missing:
            self._launch(missing, ticket())

    def stop(self, *, force: bool) -> Sequence[str]:
        """Cancel all jobs, then stop the broker."""
        warnings = []
        try:
            jobs = self._jobs()
            self._cancel(
                [job.number for name in self._listed() if (job := jobs.get(name, _GONE)).state is not ProcessState.ENDED]
            )
        except FarflungError as error:
            if not force:
                raise
            warnings.append(str(error))
        self._broker.stop()
        self._list([])
        return warnings

    def processes(self) -> Sequence[Process]:
        """Return the broker, and the jobs with where they run."""
        jobs, found = self._jobs(), self._broker.processes()
        for name in self._listed():
            job = jobs.get(name, _GONE)
            found.append(Process(name=self._worker(name), place=job.place, state=job.state))
        return found

    def log(self, name: str, lines: int, *, follow: bool) -> Program:
        """Read the log of a job."""
        if name == BROKER:
            return self._broker.log(lines, follow=follow)
        job = next((one for one in self._listed() if self._worker(one) == name), None)
        if job is None:
            known = ", ".join([BROKER, *map(self._worker, self._listed())])
            raise InputError(f"the cluster {self._cluster.name!r} has no process {name!r}: known are {known}")
        words = ["jobs", "logs", "--name", job, f"--tail={lines}", "--follow" if follow else "--no-follow"]
        return replace(self._program(*words), fine=_LOG_CODES)

    def task(self) -> dict[str, Any]:
        """Return the SkyPilot task of a worker, without its ticket."""
        workers = self._cluster.workers
        made: dict[str, Any] = {
            "resources": {"use_spot": self._sky.spot, **self._sky.resources},
            "run": _RUN.format(
                join=shlex.join([*shlex.split(self._sky.command), "join", *workers.words()]),
                name=_NAME,
                notices=":" if workers.spot_notices else 'set -- "$@" --spot-notices "$cloud"',
                region=":" if workers.region else 'set -- "$@" --region "$region"',
                patience=_PATIENCE_SECONDS,
            ),
            "envs": {**workers.environment, _NAME: self._cluster.name},
            "secrets": {_TICKET: None},
        }
        return {**made, "setup": self._sky.setup} if self._sky.setup else made

    def _launch(self, names: Sequence[str], ticket: str) -> None:
        """Start jobs. The ticket travels in the environment of ``sky``, and as a secret of SkyPilot."""
        path = self._folder / "sky.yaml"
        make_private_folder(self._folder)
        write_private(path, json.dumps(self.task(), indent=2).encode())  # JSON is YAML
        for begin in range(0, len(names), _AT_ONCE):
            programs = [
                self._program(
                    *("jobs", "launch", "--yes", "--detach-run", "--name", name, "--secret", _TICKET),
                    *("--env", f"{_NAME}={self._worker(name)}", *self._sky.options, str(path)),
                    environment={_TICKET: ticket},
                )
                for name in names[begin : begin + _AT_ONCE]
            ]
            for finished in run_all(programs):
                if finished.code:
                    raise FarflungError(f"{_PLACE}: sky jobs launch failed: {finished.reason}")

    def _cancel(self, numbers: Sequence[int]) -> None:
        if numbers:
            run_one(self._program("jobs", "cancel", "--yes", *map(str, numbers)))

    def _jobs(self) -> dict[str, _Job]:
        """Return the newest job of each name."""
        (finished,) = run_all([self._program("jobs", "queue", "--all", "--output=json")])
        if finished.code and not any(text in finished.errors + finished.printed for text in _NO_JOBS):
            raise FarflungError(f"{_PLACE}: sky jobs queue failed: {finished.reason}")
        rows = sorted(_rows(finished), key=lambda row: int(row["job_id"]))
        return {str(row["job_name"]): _job(row) for row in rows}

    def _program(self, *words: str, environment: dict[str, str] | None = None) -> Program:
        return Program(words=[*shlex.split(self._sky.sky), *words], place=_PLACE, environment=environment or {})

    def _worker(self, job: str) -> str:
        return self._cluster.worker_name(job.removeprefix(self._prefix))

    @property
    def _prefix(self) -> str:
        return f"farflung-{self._cluster.name}-"


def _rows(finished: Finished) -> list[dict[str, Any]]:
    """Return the jobs that ``sky jobs queue`` printed; lines for people may stand before them."""
    found = re.search(r"^\[.*", finished.printed, flags=re.MULTILINE | re.DOTALL)
    if finished.code or found is None:
        return []
    try:
        rows: list[dict[str, Any]] = json.loads(found[0])
    except ValueError:
        raise FarflungError(f"{_PLACE}: sky jobs queue printed no JSON: update SkyPilot to 0.14 or later") from None
    return rows


def _job(row: dict[str, Any]) -> _Job:
    status = str(row["status"])
    state = ProcessState.RUNNING if status in _RUNNING else ProcessState.WAITING if status in _WAITING else ProcessState.ENDED
    return _Job(number=int(row["job_id"]), state=state, place=str(row.get("infra") or f"job {row['job_id']}"))
