"""What a plan moves: bytes per micro-batch on each link, dense and after its codecs, and the gradients of tied parameters."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from farflung.cluster import Topology
from farflung.codecs import CODECS, foretold_bytes, get_codec
from farflung.codecs.exchanged import coded_bytes
from farflung.graph.cut import Edge, SubGraph
from farflung.graph.ir import DTYPES, Graph, TensorSpec
from farflung.job.groups import is_frozen
from farflung.job.spec import OptimizerSpec
from farflung.plan.model import CodecChoice, Plan
from farflung.sync import Traits

__all__ = [
    "LinkTraffic",
    "edges_by_link",
    "gradient_bytes",
    "sync_bytes",
    "sync_specs",
    "tied_exchanges",
    "traffic",
    "wire_bytes",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkTraffic:
    """Bytes per micro-batch between stages ``source`` and ``target``: dense and as they travel."""

    source: int
    target: int
    forward_dense: float
    backward_dense: float
    forward_bytes: float
    backward_bytes: float


@lru_cache(maxsize=65536)
def _codec_bytes(choice: CodecChoice, shape: tuple[int, ...], itemsize: int) -> float:
    codec = get_codec(choice.name, **dict(choice.params))
    with CODECS.blame(choice.name, "can't say its wire_bytes"):
        return foretold_bytes(codec, shape, itemsize)


def wire_bytes(choice: CodecChoice, spec: TensorSpec) -> float:
    """Expected bytes of a tensor after ``choice`` (tensors without floating-point elements travel as they are)."""
    if not spec.floating:
        return float(spec.nbytes)
    return _codec_bytes(choice, spec.shape, DTYPES[spec.dtype])


def sync_bytes(traits: Traits, shapes: Iterable[tuple[int, ...]], members: int) -> float:
    """What a link between two of ``members`` replicas carries in a step, on average over a period, of arrays of float32 that have
    ``shapes``."""
    return coded_bytes(traits.codec, shapes) * traits.link_share(members) / traits.sync_every


def sync_specs(graph: Graph, subgraph: SubGraph, optimizer: OptimizerSpec) -> list[TensorSpec]:
    """The arrays that the replicas of a stage exchange by a strategy: one for each parameter that is trained
    there, however often it is used."""
    own, made = range(subgraph.start, subgraph.stop), graph.made_gradients
    return [
        graph.state[name].spec
        for name in subgraph.states
        if any(position in own for position, _ in made.get(name, ())) and not (optimizer.groups and is_frozen(optimizer, name))
    ]


def edges_by_link(subgraphs: Iterable[SubGraph]) -> dict[tuple[int, int], list[Edge]]:
    """(source, target) -> the edges between the two stages, pairs ascending."""
    table: dict[tuple[int, int], list[Edge]] = {}
    for sub in subgraphs:
        for edge in sub.requires_activations:
            table.setdefault((edge.source, edge.target), []).append(edge)
    return dict(sorted(table.items()))


def traffic(plan: Plan, subgraphs: Sequence[SubGraph], topology: Topology, part: float = 1.0) -> tuple[LinkTraffic, ...]:
    """The traffic of every link; between two stages on one device nothing is encoded.

    ``part``: micro-batches have this part of the samples that the graph was captured for.

    Raises:
        PlanError: the plan has no link for a pair of stages that exchange values.
    """
    found = []
    for (source, target), edges in edges_by_link(subgraphs).items():
        link = plan.link.get((source, target))
        activations, gradients = (link.activations, link.gradients) if link else (CodecChoice(), CodecChoice())
        forward = [edge.spec for edge in edges if edge.forward_bytes]
        backward = [edge.spec for edge in edges if edge.backward_bytes]
        local = plan.stages[source].device == plan.stages[target].device
        found.append(
            LinkTraffic(
                source=source,
                target=target,
                forward_dense=part * float(sum(spec.nbytes for spec in forward)),
                backward_dense=part * float(sum(spec.nbytes for spec in backward)),
                forward_bytes=0.0 if local else part * sum(wire_bytes(activations, spec) for spec in forward),
                backward_bytes=0.0 if local else part * sum(wire_bytes(gradients, spec) for spec in backward),
            )
        )
    return tuple(found)


def tied_exchanges(graph: Graph, subgraphs: Sequence[SubGraph]) -> tuple[tuple[int, int, float], ...]:
    """(source, target, bytes) per step: a stage sends the gradients of its uses of a parameter to the other stages reading it."""
    starts = [sub.start for sub in subgraphs]
    found: dict[tuple[int, int], float] = {}
    for nbytes, uses in graph.tied:
        stages = [(subgraphs[bisect_right(starts, position) - 1].stage, grad) for position, grad in uses]
        readers = {stage for stage, _ in stages}
        for home in (stage for stage, grad in stages if grad):
            for other in sorted(readers - {home}):
                found[home, other] = found.get((home, other), 0.0) + nbytes
    return tuple((source, target, size) for (source, target), size in sorted(found.items()))


def gradient_bytes(graph: Graph, subgraph: SubGraph) -> float:
    """Dense bytes of the gradients that a stage's replicas add up without a strategy: one for each use of what it trains."""
    before = graph.gradient_sums
    return float(before[subgraph.stop] - before[subgraph.start])
