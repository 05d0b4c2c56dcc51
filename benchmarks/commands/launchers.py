"""``launchers``: seconds from ``farflung up`` to the first step of a job that was waiting, on processes of this machine.

``ssh``: three servers of OpenSSH. ``slurm``: four nodes with a task each. ``ray``: a Ray cluster with four actors; its Python is
that of ``FARFLUNG_RAY_PYTHON``. ``up`` ends when all workers have joined. Then a small job is submitted. What is not installed is
reported, and fails the check.
"""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.base import Check, Report, Say, Settings
from benchmarks.harness.machines.ray_cluster import ray_cluster, ray_python
from benchmarks.harness.machines.slurm_nodes import has_slurm, slurm_nodes
from benchmarks.harness.machines.ssh_hosts import has_sshd, ssh_hosts
from farflung.errors import InputError, TrainingError

__all__ = ["Launchers", "LaunchersSettings", "report_of"]

_TARGET = 30.0
_PATIENCE = 300.0
#: Workers of each provider.
WORKERS: Mapping[str, int] = {"ssh": 3, "slurm": 4, "ray": 4}
_JOB = """
name = "first-step"
steps = 2
micro_batch_sizes = [2, 2]
[model]
recipe = "gpt"
args = {{ vocab = 256, sequence = 16, layers = {workers}, width = 16, heads = 2 }}
[data]
kind = "text"
path = "{{stdlib}}"
glob = "json/*.py"
tokenizer = "bytes"
sequence = 16
[plan]
planner = "equal_compute"
"""
_FILE = """
provider = "{provider}"
[broker]
listen = "127.0.0.1:0"
no_web = true
[workers]
count = {workers}
listen = "127.0.0.1:0"
device = "cpu"
[workers.environment]
OMP_NUM_THREADS = "1"
[{provider}]
{settings}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class LaunchersSettings(Settings):
    """``times``: starts with each of the ``providers``."""

    providers: tuple[str, ...] = tuple(WORKERS)
    times: int = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class _Machines:
    """What a provider starts on: the ``file`` of the cluster, the Python of commands, and variables for them."""

    file: Path
    python: str = sys.executable
    variables: Mapping[str, str]


class Launchers:
    """From a cluster file to the first step."""

    name = "launchers"
    summary = "seconds from farflung up to the first step: ssh with 3 hosts, Slurm with 4 tasks, Ray with 4 actors"

    def settings(self, quick: bool) -> LaunchersSettings:
        """Quick: ssh, once."""
        return LaunchersSettings(quick=True, providers=("ssh",), times=1) if quick else LaunchersSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, LaunchersSettings)
        unknown = [name for name in settings.providers if name not in WORKERS]
        if unknown:
            raise InputError(f"unknown provider {unknown[0]!r}: known are {', '.join(WORKERS)}")
        found: dict[str, list[dict[str, float]]] = {}
        for provider in settings.providers:
            found[provider] = []
            for _ in range(settings.times if _MISSING[provider]() == "" else 0):
                found[provider].append(_once(provider))
                say(f"{provider}: {found[provider][-1]}")
        return report_of(found, judged=not settings.quick)


def report_of(found: Mapping[str, list[dict[str, float]]], *, judged: bool) -> Report:
    """Compare the medians of the measured seconds with the target; ``judged``: the checks pass or fail."""
    medians = {name: statistics.median(one["first_step"] for one in runs) for name, runs in found.items() if runs}
    checks = [
        Check(
            name=f"up to the first step with {name} ({WORKERS[name]} workers)",
            target=f"{_TARGET:g} s at most",
            measured=f"{medians[name]:.1f} s" if name in medians else f"not measured: {_MISSING[name]()}",
            passed=(name in medians and medians[name] <= _TARGET) if judged else None,
        )
        for name in found
    ]
    rows = [
        (name, str(WORKERS[name]), *(f"{statistics.median(one[key] for one in runs):.1f} s" for key in ("joined", "first_step")))
        for name, runs in found.items()
        if runs
    ]
    return Report(
        figures={"median_seconds": medians, "seconds": dict(found)},
        columns=("provider", "workers", "all joined", "first step"),
        rows=rows,
        checks=checks,
    )


#: Provider -> what this machine lacks for it (empty: nothing).
_MISSING: Mapping[str, Callable[[], str]] = {
    "ssh": lambda: "" if has_sshd() else "OpenSSH with its server is not installed",
    "slurm": lambda: "" if has_slurm() else "Slurm is not installed, or this is not root",
    "ray": lambda: "" if ray_python() else "Ray is not installed",
}


def _once(provider: str) -> dict[str, float]:
    """Seconds from the start of ``farflung up`` until all have joined, and until the first step."""
    with tempfile.TemporaryDirectory(prefix="farflung-launchers-") as folder, _machines(provider, Path(folder)) as machines:
        place = Path(folder)
        place.chmod(0o755)
        (place / "job.toml").write_text(_JOB.format(workers=WORKERS[provider]))
        environment = {**os.environ, **machines.variables, "FARFLUNG_HOME": str(place / "home"), "PYTHONUNBUFFERED": "1"}
        name = machines.file.stem
        begin = time.monotonic()
        try:
            _call(machines, environment, "up", str(machines.file), "--wait", f"{_PATIENCE:g} s")
            joined = time.monotonic() - begin
            _until_first_step(machines, environment, place / "job.toml", place / f"home/clusters/{name}/owner-ticket")
            return {"joined": joined, "first_step": time.monotonic() - begin}
        finally:
            _call(machines, environment, "down", name, "--force")


@contextmanager
def _machines(provider: str, place: Path) -> Iterator[_Machines]:
    workers, file = WORKERS[provider], place / "lab.toml"
    if provider == "ssh":
        with ssh_hosts(place, *(f"host{number}" for number in range(workers))) as hosts:
            yield _Machines(file=hosts.cluster_file("lab"), variables={})
    elif provider == "slurm":
        with slurm_nodes(place / "slurm", workers) as variables:
            file.write_text(_FILE.format(provider=provider, workers=workers, settings=""))
            yield _Machines(file=file, variables=variables)
    else:
        with ray_cluster(place, ray_python(), workers) as (address, _):
            file.write_text(_FILE.format(provider=provider, workers=workers, settings=f'address = "{address}"'))
            yield _Machines(file=file, python=ray_python(), variables={"HOME": str(place)})


def _call(machines: _Machines, environment: Mapping[str, str], *words: str) -> None:
    command = [machines.python, "-m", "farflung", *words]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    if done.returncode:
        raise TrainingError(f"farflung {words[0]} failed: {done.stderr.strip()[-300:]}")


def _until_first_step(machines: _Machines, environment: Mapping[str, str], job: Path, ticket: Path) -> None:
    """Submit the job, and return at its first step."""
    command = [machines.python, "-m", "farflung", "submit", str(job), "--ticket", f"@{ticket}"]
    with subprocess.Popen(  # noqa: S603 - no shell
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as submit:
        assert submit.stdout is not None
        printed = []
        try:
            for line in submit.stdout:
                printed.append(line)
                if re.match(r"step 1/", line):
                    return
            raise TrainingError(f"the job has no first step: {''.join(printed)[-500:]}")
        finally:
            submit.stdout.read()
