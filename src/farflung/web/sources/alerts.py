"""What deserves attention now: in the cluster, and in each run."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from farflung.telemetry.shortage import free_space
from farflung.units import Bytes, Seconds
from farflung.web.sources.broker_poll import ClusterState
from farflung.web.sources.live_run import LiveRun
from farflung.web.sources.run_analysis import Analysis

__all__ = ["Alert", "cluster_alerts", "disk_alert", "run_alerts"]

#: Seconds without a message after which a worker is called silent, and free bytes below which a disk is called nearly full: the
#: broker's, which takes the checkpoints, and a worker's.
_SILENT, _LOW_DISK, _LOW_WORKER_DISK = 5.0, 5e9, 1e9


@dataclass(frozen=True, slots=True)
class Alert:
    """One line. ``severe``: work is lost or in danger; otherwise it is only slow."""

    text: str
    severe: bool = False


def cluster_alerts(cluster: ClusterState) -> list[Alert]:
    """Return what the broker reports: no answer, silent workers, stragglers, relays, full disks, versions."""
    found = [Alert(cluster.problem, severe=True)] if cluster.problem else []
    for member in cluster.members:
        if float(member.get("silence", 0.0)) > _SILENT:
            found.append(Alert(f"{member['name']} has been silent for {Seconds(member['silence'])}.", severe=True))
        if (free := member.get("disk")) is not None and float(free) < _LOW_WORKER_DISK:
            found.append(Alert(f"The disk of {member['name']} has {Bytes(free)} left: free some space there.", severe=True))
        found += [Alert(f"{member['name']}: {warning}") for warning in member.get("warnings", ())]
    for run in cluster.runs:
        found += [Alert(f"{_slow(str(one))} (run {run['run']}).") for one in run.get("slow", ())]
        if run.get("absent"):
            found.append(Alert(f"Run {run['run']} waits for {', '.join(run['absent'])} to come back.", severe=True))
    members = {member["name"] for member in cluster.members}
    relayed = {(min(one.source, one.target), max(one.source, one.target), one.relay) for one in cluster.links if one.relay}
    for source, target, relay in sorted(relayed):
        if {source, target, relay} <= members:
            found.append(Alert(f"{source} and {target} cannot reach each other: {relay} relays their traffic."))
    return found


def _slow(what: str) -> str:
    source, arrow, target = what.partition(" -> ")
    return f"The link from {source} to {target} is slow" if arrow else f"{what} computes slower than usual"


def run_alerts(run: LiveRun, analysis: Analysis | None) -> list[Alert]:
    """Return what a run is in danger of: files that can't be read, stages that no other machine could restore."""
    found = [Alert(problem) for problem in run.problems]
    if run.result is None and analysis is not None and analysis.unprotected:
        names = ", ".join(str(stage) for stage in analysis.unprotected)
        what = f"stage {names} has" if len(analysis.unprotected) == 1 else f"stages {names} have"
        text = f"Run {run.name}: {what} no copy on another machine ({analysis.why_not}); a loss resumes from the checkpoint."
        found.append(Alert(text))
    return found


def disk_alert(place: Path | None, low: float = _LOW_DISK) -> Sequence[Alert]:
    """Return whether the broker's disk is nearly full."""
    free = None if place is None else free_space([place])
    if free is None or free >= low:
        return []
    return [Alert(f"The broker's disk has {Bytes(free)} left: remove old runs, or checkpoints will fail.", severe=True)]
