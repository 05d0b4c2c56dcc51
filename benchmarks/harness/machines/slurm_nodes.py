"""A Slurm on this machine: one controller and several nodes, from the packages slurmctld, slurmd and munge. It needs root."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.harness.machines.waiting import until
from farflung.child_processes import end_all

__all__ = ["has_slurm", "slurm_nodes"]

_PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch")
_WHERE = "/usr/sbin:/usr/bin"


def has_slurm() -> bool:
    """Return whether this process may start a Slurm: it needs root and the programs."""
    return os.geteuid() == 0 and all(shutil.which(name, path=_WHERE) is not None for name in _PROGRAMS)


_CONFIG = """
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={place}/munge.socket
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
ReturnToService=2
SlurmdTimeout=10
KillWait=20
SlurmdParameters=config_overrides
StateSaveLocation={place}/state
SlurmdSpoolDir={place}/spool-%n
SlurmctldPidFile={place}/slurmctld.pid
SlurmdPidFile={place}/slurmd-%n.pid
SlurmctldLogFile={place}/slurmctld.log
SlurmdLogFile={place}/slurmd-%n.log
MpiDefault=none
SchedulerParameters=batch_sched_delay=0,sched_min_interval=0,sched_interval=3
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first}-{last}] CPUs=1 RealMemory=1000
PartitionName=low Nodes=ALL Default=YES MaxTime=INFINITE State=UP PriorityTier=1 GraceTime=30 PreemptMode=REQUEUE
PartitionName=high Nodes=ALL MaxTime=INFINITE State=UP PriorityTier=10 PreemptMode=OFF
"""


@contextmanager
def slurm_nodes(place: Path, nodes: int) -> Iterator[dict[str, str]]:
    """Start the daemons. Yields the variables that commands of Slurm need."""
    place.mkdir()
    place.chmod(0o755)  # the socket of munge lies in it
    host = socket.gethostname().partition(".")[0]
    first = _free_ports(nodes + 1)
    port, last = first + nodes, first + nodes - 1
    facts = {"place": place, "host": host, "port": port, "nodes": nodes, "first": first, "last": last}
    (place / "slurm.conf").write_text(_CONFIG.format(**facts))
    (place / "state").mkdir()
    (place / "key").write_bytes(os.urandom(1024))
    (place / "key").chmod(0o400)
    variables = {"SLURM_CONF": str(place / "slurm.conf")}
    with ExitStack() as stack:
        files = [f"--{name}-file={place}/munge.{name}" for name in ("pid", "log", "seed")]
        munged = ["munged", "--foreground", "--force", f"--key-file={place}/key", f"--socket={place}/munge.socket", *files]
        _start(stack, munged, variables, place)
        until((place / "munge.socket").exists)
        _start(stack, ["slurmctld", "-D"], variables, place)
        for number in range(1, nodes + 1):
            (place / f"spool-n{number}").mkdir()
            _start(stack, ["slurmd", "-D", "-N", f"n{number}"], variables, place)
        until(lambda: _idle(variables) == nodes)
        yield variables


def _start(stack: ExitStack, words: list[str], variables: dict[str, str], place: Path) -> None:
    program = shutil.which(words[0], path=_WHERE)
    assert program is not None
    with (place / "daemons.log").open("ab") as log:
        environment = {**os.environ, **variables}
        process = subprocess.Popen([program, *words[1:]], env=environment, stdout=log, stderr=log)  # noqa: S603 - no shell
    stack.callback(end_all, [process], 10.0)


def _idle(variables: dict[str, str]) -> int:
    words = ["sinfo", "--noheader", "--Node", "--partition=low", "--states=idle", "--format=%N"]
    environment = {**os.environ, **variables}
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)  # noqa: S603 - no shell
    return len(done.stdout.split())


def _free_ports(count: int) -> int:
    """The first of ``count`` ports in a row at which nobody listens."""
    for first in range(17_000, 30_000, count):
        with ExitStack() as stack:
            try:
                for port in range(first, first + count):
                    stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            except OSError:
                continue
            return first
    raise AssertionError("no free ports")
