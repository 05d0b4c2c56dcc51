"""Which gradients of a stage's replicas travel together in the exact exchange, and who adds them up.

Source: a colocated sharded parameter server (DT-FM, equation (2)). What differs: whole uses of parameters are packed, so
servers are balanced only as well as buckets can be dealt out; a stage with less than one bucket has one server. The runtime
exchanges by this list and the estimate counts by it. Cost: linear in the uses of the stage.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph, TensorSpec, Use
from farflung.job.groups import is_frozen
from farflung.job.spec import OptimizerSpec
from farflung.plan.model import Replica

__all__ = ["BUCKET_BYTES", "Bucket", "buckets_of", "parts_of", "served_bytes", "trained_uses"]

#: A bucket is closed when it has so many bytes, or so many uses.
BUCKET_BYTES = 4 << 20
_BUCKET_USES = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """Uses whose gradients travel together; ``server`` adds them up."""

    uses: tuple[Use, ...]
    specs: tuple[TensorSpec, ...]
    server: str

    @property
    def nbytes(self) -> int:
        """Bytes of one sum."""
        return sum(spec.nbytes for spec in self.specs)


def trained_uses(graph: Graph, piece: SubGraph, optimizer: OptimizerSpec) -> list[Use]:
    """The uses in ``piece`` through which its parameters are trained, by parameter and program order."""
    own = range(piece.start, piece.stop)
    trained = [name for name in piece.states if name in graph.trained and not is_frozen(optimizer, name)]
    return [use for name in trained for use in graph.gradient_uses[name] if graph.position[use.op] in own]


def buckets_of(graph: Graph, piece: SubGraph, optimizer: OptimizerSpec, devices: Sequence[str]) -> tuple[Bucket, ...]:
    """The buckets of a stage held by ``devices``, by program order; each is served by who serves the fewest bytes so far."""
    uses = trained_uses(graph, piece, optimizer)
    specs = [graph.state[use.state].spec for use in uses]
    return tuple(
        Bucket(uses=tuple(uses[start:stop]), specs=tuple(specs[start:stop]), server=devices[server])
        for start, stop, server, _ in _dealt([spec.nbytes for spec in specs], len(devices))
    )


def served_bytes(graph: Graph, piece: SubGraph, optimizer: OptimizerSpec, devices: int) -> list[int]:
    """Bytes of one sum that each of so many devices serves: ``buckets_of`` in numbers only."""
    made, own = graph.made_gradients, range(piece.start, piece.stop)
    names = [n for n in piece.states if n in made and not (optimizer.groups and is_frozen(optimizer, n))]
    served = [0] * devices
    for _, _, server, size in _dealt([size for n in names for position, size in made[n] if position in own], devices):
        served[server] += size
    return served


def _dealt(sizes: Sequence[int], servers: int) -> Iterator[tuple[int, int, int, int]]:
    """Runs of uses that are a bucket each: (start, stop, number of the server, bytes)."""
    served = [0] * servers
    start, total = 0, 0
    for index, size in enumerate(sizes):
        total += size
        if total >= BUCKET_BYTES or index + 1 - start >= _BUCKET_USES or index + 1 == len(sizes):
            server = served.index(min(served))
            served[server] += total
            yield start, index + 1, server, total
            start, total = index + 1, 0


def parts_of(replicas: Sequence[Replica], virtual_ends: Sequence[int], *, single: bool = False) -> list[tuple[int, ...]]:
    """For each replica the micro-batches before whose numbers its parts of a sum end, which it sends to the servers.

    The first sends one sum over all that it computes, since its micro-batches come first anyway; each other one a sum over each
    of its virtual replicas (``virtual_ends``), because the order of additions is the job's. ``single``: the first one, too,
    because parts are verified one by one.
    """
    first, *others = replicas
    if single:
        return [tuple(end for end in virtual_ends if replica.first < end <= replica.end) for replica in replicas]
    return [(first.end,), *(tuple(end for end in virtual_ends if replica.first < end <= replica.end) for replica in others)]
