"""What ``auto`` has chosen of a plan's codecs, and why, as lines for people."""

from __future__ import annotations

from farflung.cluster import Topology
from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.plan.codec_choice.compression import codec_lines
from farflung.plan.codec_choice.exchange_codec import why_sync
from farflung.plan.model import Plan
from farflung.plan.synchronization import sync_groups

__all__ = ["chosen_lines"]


def chosen_lines(plan: Plan, graph: Graph, topology: Topology, job: JobSpec) -> list[str]:
    """Of each link and direction, and of what replicas exchange; none where the job names its codecs."""
    pieces = cut(graph, plan.bounds)
    lines = codec_lines(plan, pieces, topology, job)
    told = "" if plan.sync is None else why_sync(job, sync_groups(plan, graph, pieces, topology, job))
    return [*lines, told] if told else lines
