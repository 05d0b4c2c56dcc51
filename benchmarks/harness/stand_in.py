"""A broker or worker of a benchmark: ``python -m benchmarks.harness.stand_in FOLDER COMMAND ...`` runs ``farflung COMMAND ...``.

Two members are put in first, which read their wishes from FOLDER each time that they are asked: the planner ``given``, whose
stages are those of ``stages.json`` ([[start, stop, device], ...]); and, where ``speeds.json`` ({device: FLOP/s}) is there when
the process starts, the engine of ``paced`` in the place of torch. Where there is an ``away.json`` then, a worker can be cut
off (``outage``). Everything else is what people run.
"""

from __future__ import annotations

import json
import runpy
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

from benchmarks.harness.outage import AWAY, Outage
from benchmarks.harness.priority import carry_over
from farflung.cluster import Topology
from farflung.engines import ENGINES, Engine
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan import Plan
from farflung.planners.catalog import PLANNERS
from farflung.planners.finish import Problem, settle
from farflung.telemetry import injecting

__all__ = ["SPEEDS", "STAGES", "Given", "main", "registered"]

STAGES, SPEEDS = "stages.json", "speeds.json"


class Given:
    """The planner whose stages are those of a file."""

    name = "given"

    def __init__(self, path: Path) -> None:
        self._path = path

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """See ``Planner.plan``."""
        placed = [(int(start), int(stop), str(device)) for start, stop, device in json.loads(self._path.read_text("utf-8"))]
        return settle(Problem.of(graph, topology, job), placed, self.name)


def _pace(folder: Path, name: str) -> None:
    """Let workers of this process have the speed that ``speeds.json`` gives ``name``."""
    from benchmarks.harness.paced import PacedEngine
    from farflung.engines.torch.engine import TorchEngine

    def speed() -> float:
        return float(json.loads((folder / SPEEDS).read_text("utf-8"))[name])

    def make() -> Engine:
        return PacedEngine(TorchEngine(), speed)

    ENGINES.replace("torch", make)


def register(folder: Path) -> None:
    """Let this process know the planner ``given``, with the stages of ``folder``."""
    put = PLANNERS.replace if Given.name in PLANNERS else PLANNERS.add
    put(Given.name, lambda: Given(folder / STAGES))


@contextmanager
def registered(folder: Path) -> Iterator[None]:
    """The same while the context lasts: jobs that ask for it can be checked."""
    register(folder)
    try:
        yield
    finally:
        PLANNERS.remove(Given.name)


def main(arguments: list[str]) -> None:
    """Run the rest of ``arguments`` as a command of farflung."""
    carry_over()
    folder, command = Path(arguments[0]), arguments[1:]
    register(folder)
    if command[0] == "join" and (folder / SPEEDS).exists():
        _pace(folder, command[command.index("--name") + 1])
        command = [*command, "--isolation", "off"]  # the paced engine is in this process
    sys.argv = ["farflung", *command]
    with _outages(folder, command):
        runpy.run_module("farflung", run_name="__main__", alter_sys=True)


def _outages(folder: Path, command: list[str]) -> AbstractContextManager[None]:
    if command[0] != "join" or not (folder / AWAY).exists():
        return nullcontext()
    outage = Outage(folder, command[command.index("--name") + 1])
    outage.start()
    return injecting(outage)


if __name__ == "__main__":
    main(sys.argv[1:])
