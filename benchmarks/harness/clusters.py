"""Clusters of processes for benchmarks: workers that watch their memory, and processes with given plans and speeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from farflung.api.submission import bundle_job
from farflung.chaos.local_cluster import LocalCluster
from farflung.cluster import Topology
from farflung.job import JobSpec
from farflung.messages.submission import Bundle

__all__ = ["EngineCluster", "PacedCluster", "ProbedCluster", "bundle_of"]


class ProbedCluster(LocalCluster):
    """Its workers run under ``harness.probe`` and write their memory figures to ``probe_file(name)``."""

    def probe_file(self, name: str) -> Path:
        """Where worker ``name`` writes its memory figures when it ends."""
        return self.folder / f"probe-{name}.json"

    def start_process(self, name: str, arguments: list[str]) -> None:
        """See ``LocalCluster.spawn``: workers run under ``harness.probe``."""
        if name not in self._commands and "join" in arguments:
            at = arguments.index("farflung")
            arguments = ["-m", "benchmarks.harness.probe", str(self.probe_file(name)), *arguments[at + 1 :]]
        super().start_process(name, arguments)


class PacedCluster(LocalCluster):
    """Its processes are those of ``harness.stand_in``, which read from the cluster's folder: speeds, stages, who is away."""

    def start_process(self, name: str, arguments: list[str]) -> None:
        """See ``LocalCluster.spawn``: the process is a stand-in."""
        if name not in self._commands:
            at = arguments.index("farflung")
            arguments = ["-m", "benchmarks.harness.stand_in", str(self.folder), *arguments[at + 1 :]]
        super().start_process(name, arguments)


class EngineCluster(LocalCluster):
    """Its workers have engines, each in an environment of its own: ``workers`` maps a name to an engine and its interpreter."""

    def __init__(self, folder: Path, workers: Mapping[str, Sequence[str]]) -> None:
        self._workers = dict(workers)
        super().__init__(folder, list(workers))

    def start_process(self, name: str, arguments: list[str]) -> None:
        """See ``LocalCluster.spawn``: workers get ``--engine``."""
        if name in self._workers and name not in self._commands:
            arguments = [*arguments, "--engine", self._workers[name][0]]
        super().start_process(name, arguments)

    def interpreter(self, name: str) -> str:
        """See ``LocalCluster.interpreter``: that of the worker's environment."""
        return self._workers[name][1] if name in self._workers else super().interpreter(name)


def bundle_of(job: JobSpec, *, base: Path, topology: Topology | None = None, emulate: bool = False) -> Bundle:
    """``job`` as ``farflung submit`` packs it; a worker that dies ends it, or a figure would hold its loss."""
    return bundle_job(job.model_copy(update={"on_loss": "stop"}), base=base, topology=topology, emulate=emulate)
