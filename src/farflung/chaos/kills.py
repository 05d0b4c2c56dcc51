"""Running a job on a local cluster while workers and the broker are killed, and what each kill costs."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from farflung.chaos.faults import Fault, Recovery
from farflung.chaos.local_cluster import LocalCluster
from farflung.checkpoint import CheckpointReader
from farflung.client.connection import Client
from farflung.clock import monotonic
from farflung.errors import TrainingError
from farflung.messages.submission import Bundle
from farflung.messages.watching import Planned, RecordLine
from farflung.telemetry import RecoveryRecord, RunFolder, StepRecord, read_record
from farflung.thread_group import ThreadGroup
from farflung.units import Seconds

__all__ = ["BROKER", "HELPED", "Say", "differing_tensors", "may_die", "play"]

#: Name of the broker among the processes of a cluster.
BROKER = "broker"
#: Receives a line for a person who waits.
Say = Callable[[str], None]
#: Where a run resumes after the death of a helper: only the helper's slices were lost.
HELPED = "the same attempt"
_RETURN_SECONDS = 60.0


def play(
    cluster: LocalCluster,
    bundle: Bundle,
    faults: tuple[Fault, ...],
    say: Say,
    *,
    stop: bool = False,
    returns: list[tuple[float, float]] | None = None,
) -> tuple[Path, float, list[Recovery]]:
    """Run ``bundle`` and kill as ``faults`` say; its folder, the seconds that it took, and what each fault cost.

    ``stop``: the run is stopped once it has recovered from all of them, else it goes on to its end. ``returns`` is told of
    brokers that were started again (``_Outcome``).
    """
    client = cluster.client()
    client.patience = Seconds(120.0)
    try:
        root = Path(client.submit(bundle)["folder"])
        begin = monotonic()
        recoveries = []
        for recovery in _hunt(cluster, client, bundle.run, (faults, [] if returns is None else returns), say):
            recoveries.append(recovery)
            if stop and len(recoveries) == len(faults):
                client.stop(bundle.run)
        seconds = monotonic() - begin
    finally:
        client.close()
    result = RunFolder(root).read_result()
    if result is None or result.status != ("stopped" if stop else "finished"):
        raise TrainingError(f"the run of the benchmark failed: {'it left no result' if result is None else result.cause}")
    return root, seconds, recoveries


def _hunt(
    cluster: LocalCluster, client: Client, run: str, what: tuple[Sequence[Fault], list[tuple[float, float]]], say: Say
) -> Iterator[Recovery]:
    """Follow the run; when a fault's step is on record, kill, start again, and time the first step after the recovery.

    A worker that has no part in the current plan would not be missed: one that has dies in its place, unless it may help. It
    waits until half of the workers would be left, or there would soon be nobody to recover. ``what``: faults, and who is told of
    brokers.
    """
    left, restarts, returns = list(what[0]), ThreadGroup(), what[1]
    devices: list[str] = []
    fault: Fault | None = None
    killed, source, at = 0.0, "", 0
    for message in client.watch(run):
        if isinstance(message, Planned):
            devices = list(message.addresses)
        record = read_record(message.line) if isinstance(message, RecordLine) else None
        source = record.source if isinstance(record, RecoveryRecord) else source
        if not isinstance(record, StepRecord):
            continue
        if fault is not None and fault.victim in cluster.unreliable and not source and record.step > at + 1:
            source = HELPED
        if fault is not None and source:
            took = monotonic() - killed
            say(f"{fault.victim} killed after step {fault.after_step}: {took:.2f} s, from {source}")
            yield Recovery(fault=fault, seconds=took, source=source)
            fault = None
        if fault is None and left and record.step >= left[0].after_step and may_die(left[0].victim, cluster, client):
            fault = left.pop(0)
            if fault.victim not in (*devices, BROKER, *cluster.unreliable):
                fault = replace(fault, victim=devices[fault.after_step % len(devices)])
            killed, source, at = monotonic(), "", record.step
            cluster.kill(fault.victim)
            restarts.spawn(f"restart-{fault.victim}", _restart, cluster, fault.victim, devices, returns)
    restarts.join()


def _restart(cluster: LocalCluster, victim: str, devices: Sequence[str], returns: list[tuple[float, float]]) -> None:
    """Start it again; of the broker see when it listens, and when all ``devices`` are back at it."""
    before, begin, pause = len(cluster.log(BROKER)), monotonic(), threading.Event()
    cluster.restart(victim)
    listens = 0.0
    while victim == BROKER and monotonic() < begin + _RETURN_SECONDS:
        now, told = monotonic(), cluster.log(BROKER)[before:]
        listens = listens or (now if "(members: port" in told else 0.0)
        if listens and all(f"worker {name} joined" in told for name in devices):
            returns.append((listens - begin, now - listens))
            return
        pause.wait(0.01)


def may_die(victim: str, cluster: LocalCluster, client: Client) -> bool:
    """Whether half of the workers are left without one more."""
    if victim == BROKER:
        return True
    members = client.status()["members"]
    assert isinstance(members, list)
    here = {str(member["name"]) for member in members if member.get("state") != "gone"} & set(cluster.names)
    return 2 * (len(here) - 1) >= len(cluster.names)


def differing_tensors(truth: Path, found: Path) -> list[str]:
    """Tensors of the newest checkpoints of two runs, optimizer slots included, that differ in a bit, or that only one has."""
    left, right = (CheckpointReader.from_folder(root / "checkpoints") for root in (truth, found))
    names = sorted(set(left.manifest.home) | set(right.manifest.home))
    both = [name for name in names if name in left.manifest.home and name in right.manifest.home]
    one, two = left.read(both), right.read(both)
    return [name for name in names if name not in one or one[name].tobytes() != two[name].tobytes()]
