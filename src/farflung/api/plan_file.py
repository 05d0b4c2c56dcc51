"""Plan files: a plan with the job and the topology that it was made for, as ``farflung plan --json`` writes them."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from farflung.cluster import Topology
from farflung.errors import FarflungError, GraphError, InputError, PlanError
from farflung.graph.ir import Graph
from farflung.job.load import from_json as job_from_json
from farflung.job.load import to_json as job_to_json
from farflung.job.spec import JobSpec
from farflung.plan import Plan

__all__ = ["PlanFile", "read_plan_file"]


@dataclass(frozen=True, kw_only=True)
class PlanFile:
    """A plan. ``job`` and ``topology`` are ``None`` where the file holds only the plan, as ``plan.json`` of a run does.

    ``graph``: the model, where it can't be captured from the job again.
    """

    plan: Plan
    job: JobSpec | None = None
    topology: Topology | None = None
    graph: Graph | None = None

    def to_dict(self) -> dict[str, Any]:
        """Return plain values for JSON, which ``read_plan_file`` reads."""
        body: dict[str, Any] = {"plan": json.loads(self.plan.to_json())}
        if self.job is not None:
            body["job"] = json.loads(job_to_json(self.job))
        if self.topology is not None:
            body["topology"] = json.loads(self.topology.to_json())
        if self.graph is not None:
            body["graph"] = json.loads(self.graph.to_json())
        return body


def read_plan_file(text: str, source: str) -> PlanFile:
    """Read a plan file, or a plan document alone.

    Args:
        text: the content of the file.
        source: its name in errors.

    Raises:
        InputError: the text is neither.
        VersionError: another version of farflung with another plan format wrote it.
    """
    try:
        body = json.loads(text)
    except (ValueError, RecursionError):
        body = None
    parts = body if isinstance(body, dict) and isinstance(body.get("plan"), dict) else {}
    try:
        plan = Plan.from_json(json.dumps(parts["plan"]) if parts else text)
        job = job_from_json(json.dumps(parts["job"])) if "job" in parts else None
        topology = Topology.from_json(json.dumps(parts["topology"])) if "topology" in parts else None
        graph = Graph.from_json(json.dumps(parts["graph"])) if "graph" in parts else None
    except (PlanError, InputError, GraphError) as error:
        raise _not_a_plan(source, error) from None
    return PlanFile(plan=plan, job=job, topology=topology, graph=graph)


def _not_a_plan(source: str, error: FarflungError) -> InputError:
    return InputError(f"{source} is not a plan file: {error}")
