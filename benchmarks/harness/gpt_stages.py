"""A small GPT for benchmarks that say themselves which blocks are a stage: its job, its bundle, and where the cuts stand."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path

from benchmarks.harness.clusters import bundle_of
from benchmarks.harness.emulated import Placed
from benchmarks.harness.stand_in import registered
from farflung.cluster import Topology
from farflung.errors import InputError
from farflung.graph.ir import Graph
from farflung.ids import new_id
from farflung.job.spec import CheckpointSpec, CodecSpec, DataSpec, JobSpec, ModelSpec, OptimizerSpec, PlanSpec
from farflung.messages.submission import Bundle

__all__ = ["GptSize", "place_blocks", "small_gpt", "variant"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GptSize:
    """The model (bytes as tokens) and ``rows`` samples of a micro-batch."""

    blocks: int
    width: int
    sequence: int
    rows: int
    heads: int = 4

    @property
    def args(self) -> dict[str, int]:
        """What the recipe ``gpt`` takes."""
        return {
            "vocab": 256,
            "layers": self.blocks,
            "width": self.width,
            "heads": self.heads,
            "sequence": self.sequence,
            "tied": 0,
        }

    @property
    def value_bytes(self) -> int:
        """Bytes of what crosses from one block to the next, for a micro-batch."""
        return 4 * self.rows * self.sequence * self.width


def small_gpt(size: GptSize, topology: Topology, *, threads: int = 1, seed: int = 0) -> Bundle:
    """The model captured, as a job of one micro-batch and one step; ``variant`` changes that."""
    job = JobSpec(
        name="bench-gpt",
        threads=threads,
        seed=seed,
        micro_batch_sizes=(size.rows,),
        model=ModelSpec(recipe="gpt", args=dict(size.args)),
        data=DataSpec(kind="text", path="{stdlib}", glob="*.py", sequence=size.sequence),
        optimizer=OptimizerSpec(name="adamw", lr=1e-3),
        checkpoint=CheckpointSpec(at_end=False),
        plan=PlanSpec(planner="given", recompute="never"),
    )
    # jobs are checked here before they are sent; the broker of the bench has the stages
    with tempfile.TemporaryDirectory() as folder, registered(Path(folder)):
        return bundle_of(job, base=Path(folder), topology=topology)


def variant(base: Bundle, topology: Topology, micro_batches: int, steps: int, more: Mapping[str, object]) -> Bundle:
    """A run of its own; ``more``: ``schedule`` and ``codec``."""
    schedule, codec = more.get("schedule", "1f1b"), more.get("codec", CodecSpec())
    job = base.job.model_copy(
        update={
            "steps": steps,
            "micro_batch_sizes": base.job.micro_batch_sizes[:1] * micro_batches,
            "plan": base.job.plan.model_copy(update={"schedule": schedule}),
            "codec": codec,
        }
    )
    return replace(base, run=new_id("run"), job=job, topology=topology)


def place_blocks(graph: Graph, blocks: Sequence[int], devices: Sequence[str]) -> Placed:
    """Stages of so many blocks each; what stands before the first block goes to it, what stands behind the last to that.

    Raises:
        InputError: there are not so many blocks.
    """
    first: dict[int, int] = {}
    for position, op in enumerate(graph.ops):
        parts = (op.module or "").split(".")
        if parts[0] == "blocks" and len(parts) > 1:
            first.setdefault(int(parts[1]), position)
    if sum(blocks) != len(first) or min(blocks) < 1:
        raise InputError(f"the split {tuple(blocks)} must deal out {len(first)} blocks, at least one to each stage")
    bounds = [0, *(first[number] for number in list(accumulate(blocks))[:-1]), len(graph.ops)]
    return [(bounds[i], bounds[i + 1], device) for i, device in enumerate(devices)]
