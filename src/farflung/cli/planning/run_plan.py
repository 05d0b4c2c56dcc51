"""The plan of a run, read from the run's folder, so that ``farflung plan RUN`` can explain it."""

from __future__ import annotations

from pathlib import Path

from farflung.api.what_if.sources import run_documents
from farflung.cli.home import broker_folder, newest_runs, run_folder
from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.messages.submission import Bundle
from farflung.plan import Plan
from farflung.telemetry import RunFolder

__all__ = ["FixedPlan", "find_run", "read_run"]


class FixedPlan:
    """A planner that always returns ``plan``, so that an existing plan is checked and estimated like a new one."""

    def __init__(self, plan: Plan) -> None:
        self._plan, self.name = plan, plan.planner

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        """Return the plan."""
        return self._plan


def find_run(text: str, home: Path | None) -> RunFolder | None:
    """Return the folder of the run ``text`` (its name at this machine's broker, or a path). ``None``: ``text`` is a job file.

    Raises:
        InputError: ``text`` is neither a run nor a job file.
    """
    path = Path(text)
    if path.is_file() or path.suffix == ".toml":
        return None
    runs = broker_folder(home) / "runs"
    if not path.is_dir() and not (runs / text).is_dir():
        raise InputError(
            f"{text!r} is neither a job file nor a run in {runs}: name a job file (TOML), a run, or the folder of a run; "
            f"runs there: {newest_runs(runs)}"
        )
    folder = RunFolder(run_folder(text, home))
    if not folder.job.is_file():
        raise InputError(f"the folder {text} holds no run (it has no job.json): name a job file (TOML), a run, or its folder")
    return folder


def read_run(folder: RunFolder) -> tuple[Bundle, Topology, Plan]:
    """Return the job with its graph, the topology and the newest plan of a run.

    Raises:
        InputError: the folder lacks one of these documents, because the run still waits for workers.
    """
    found = run_documents(folder)
    assert found.job is not None
    assert found.graph is not None
    assert found.topology is not None
    graphs = {max(found.plan.micro_batch_sizes): found.graph}
    return Bundle(run=folder.root.name, job=found.job, graphs=graphs), found.topology, found.plan
