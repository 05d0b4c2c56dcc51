"""A real broker and real workers in the nodes of an emulated network, for benchmarks: plans as given, speeds as modelled."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any

from benchmarks.harness.stand_in import SPEEDS, STAGES
from farflung.chaos.local_cluster import Finished, finished
from farflung.cluster import Topology
from farflung.emulation import Emulation
from farflung.emulation.programs import start_cluster
from farflung.errors import TrainingError
from farflung.messages.submission import Bundle

__all__ = ["EmulatedCluster", "Placed"]

#: Stages as (start, stop, device).
Placed = Sequence[tuple[int, int, str]]
#: A link that hears nothing is given up after 2 s, and dialled again when there is something to send.
_GIVE_UP = 3.5
_TICKET = re.compile(r"--ticket (\S+)")


class EmulatedCluster:
    """A context: the network of ``topology`` with a broker in its first node and a worker in each.

    ``speeds``: FLOP/s of each device, which then holds every action until its modelled time has passed (``paced``); None:
    devices are as fast as they are. ``probe``: programs write what memory they took (``probe_file``), and plan as jobs say. Needs
    Linux and root.
    """

    def __init__(self, topology: Topology, *, speeds: Mapping[str, float] | None = None, probe: bool = False) -> None:
        self.topology = topology
        self._probe = probe
        self.emulation = Emulation(topology)
        self._speeds = speeds
        self._folder: tempfile.TemporaryDirectory[str] | None = None
        self._submitter: subprocess.Popen[str] | None = None

    def __enter__(self) -> EmulatedCluster:
        self.emulation.__enter__()
        try:
            self._start()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        submitter, self._submitter = self._submitter, None
        if submitter is not None and submitter.stdin is not None:
            submitter.stdin.close()
        try:
            self.emulation.__exit__(kind, error, trace)
        finally:  # interrupted or not, all programs have ended
            if submitter is not None and submitter.stdout is not None:
                submitter.stdout.close()
                submitter.wait()
            if self._folder is not None:
                self._folder.cleanup()

    @property
    def folder(self) -> Path:
        """Where logs and runs are kept while the cluster lives."""
        assert self._folder is not None
        return Path(self._folder.name)

    def probe_file(self, name: str) -> Path:
        """Where worker ``name`` writes its memory figures when the cluster ends: before its folder goes, see ``end``."""
        return self.folder / f"probe-{name}-join.json"

    def end(self) -> None:
        """End all programs; the folder stays until the context is left."""
        self.emulation.__exit__(None, None, None)

    def set_speeds(self, speeds: Mapping[str, float]) -> None:
        """Other speeds, from the next run on; only for a cluster that began with some."""
        (self.folder / SPEEDS).write_text(json.dumps(dict(speeds)), encoding="utf-8")

    def set_links(self, topology: Topology) -> None:
        """Other latencies and rates between the same devices, from now on."""
        self._change_links(topology)

    def renew_links(self, topology: Topology) -> None:
        """The same, over connections that know nothing of the links before: nobody reaches anybody until all have given up.

        Over connections that had known a faster link, packets were dropped in every later run (see ``network.overlap``).
        """
        self.emulation.change({"partition": [[name] for name in topology.names]})
        time.sleep(_GIVE_UP)
        self._change_links(topology)
        self.emulation.change({"heal": True})

    def _change_links(self, topology: Topology) -> None:
        for i, source in enumerate(topology.names):
            for j, target in enumerate(topology.names):
                if i != j:
                    link = {"latency": float(topology.alpha[i, j]), "bandwidth": f"{topology.beta[i, j] * 8e-6:f} Mbit/s"}
                    self.emulation.change({"from": source, "to": target, **link})

    def run(self, bundle: Bundle, placed: Placed = ()) -> Finished:
        """Run ``bundle``, with these stages if its planner is ``given``; wait until it is over.

        Raises:
            TrainingError: the run failed.
        """
        (self.folder / STAGES).write_text(json.dumps(list(placed)), encoding="utf-8")
        packed = self.folder / "job.frame"
        packed.write_bytes(bundle.to_bytes())
        assert self._submitter is not None
        assert self._submitter.stdin is not None
        assert self._submitter.stdout is not None
        self._submitter.stdin.write(f"{packed}\n")
        self._submitter.stdin.flush()
        line = self._submitter.stdout.readline()
        answer: dict[str, Any] = json.loads(line) if line else {"error": "the submitting process ended"}
        if "error" in answer:
            raise TrainingError(f"the run of the benchmark failed: {answer['error']}")
        return finished(Path(answer["folder"]))

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory(prefix="farflung-bench-")
        if self._speeds is not None:
            self.set_speeds(self._speeds)
        stand_in = ("-m", "benchmarks.harness.stand_in", str(self.folder))
        probe = ("-m", "benchmarks.harness.probe", str(self.folder / "probe-{node}-{command}.json"))
        start_cluster(self.emulation, self.folder, program=probe if self._probe else stand_in)
        found = _TICKET.search((self.folder / "broker.log").read_text(encoding="utf-8", errors="replace"))
        assert found is not None
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
        first = next(iter(self.emulation.nodes.values()))
        self._submitter = first.start([sys.executable, "-m", "benchmarks.harness.submitter", found[1]], **pipes)
