"""Which gradients the copies of a plan's stages send each other in a step, in bytes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from farflung.graph.cut import SubGraph
from farflung.job.spec import JobSpec
from farflung.plan.buckets import parts_of
from farflung.plan.estimation.cost_tables import CostTables
from farflung.plan.estimation.results import GradientExchange, StageEstimate
from farflung.plan.model import Plan
from farflung.plan.overlap import hidden_share
from farflung.plan.synchronization import made_strategy
from farflung.plan.traffic import gradient_bytes, sync_bytes, sync_specs, tied_exchanges
from farflung.sync import Sent
from farflung.sync.reductions import transfers


def gradient_exchanges(
    tables: CostTables, plan: Plan, replicas: Sequence[StageEstimate], pieces: Sequence[SubGraph], job: JobSpec
) -> list[GradientExchange]:
    """Replicas send parts to the servers of their stage, these the totals back; then tied uses go to the other stages."""
    graph = tables.graph
    copies: dict[int, list[int]] = {}
    for number, replica in enumerate(replicas):
        copies.setdefault(replica.index, []).append(number)
    found: list[GradientExchange] = []
    traits = None if plan.sync is None else made_strategy(plan.sync).traits
    for stage, held in copies.items():
        if traits is not None:  # once per period
            shapes = [spec.shape for spec in sync_specs(graph, pieces[stage], job.optimizer)]
            each = sync_bytes(traits, shapes, len(held))
            share = hidden_share(plan, graph, job, stage, [_computing(replicas[unit], plan) for unit in held])
            found += [GradientExchange(a, b, each, 0, hidden=share * each) for a in held for b in held if a != b]
            continue
        adds = plan.stages[stage].adds
        if adds is not None:
            size = gradient_bytes(graph, pieces[stage])
            sent = transfers(adds, len(held))
            found += [GradientExchange(held[t.source], held[t.target], size * t.part, t.turn) for t in sent]
            continue
        if len(held) > 1:
            served = tables.served(pieces[stage], job.optimizer, len(held))
            found += _served(held, plan, stage, served, job)
    if traits is not None and traits.sent is Sent.SCALARS:  # it has no gradients
        return found
    last = max((exchange.round for exchange in found), default=0) + 1
    for source, target, size in tied_exchanges(graph, pieces):
        pairs = _tellers(replicas, copies[source], copies[target], alone=traits is not None)
        found += [GradientExchange(here, there, size, last) for here, there in pairs]
    return found


def _computing(stage: StageEstimate, plan: Plan) -> float:
    """Seconds of all forwards and backwards of a copy in a step."""
    sizes = plan.micro_batch_sizes
    return sum(sizes[slice(*stage.micro_batches)]) / max(sizes) * (stage.forward_seconds + stage.backward_seconds)


def _tellers(
    replicas: Sequence[StageEstimate], held: Sequence[int], told: Sequence[int], *, alone: bool
) -> Iterator[tuple[int, int]]:
    """Which of the copies ``held`` gives its gradient of a tied parameter to each of ``told``: that of the same pipeline where
    they train ``alone``, else that on the same device, or the first."""
    if alone:
        yield from zip(held, told, strict=False)
        return
    for there in told:
        here = (index for index in held if replicas[index].device == replicas[there].device)
        yield next(here, held[0]), there


def exchanged_bytes(exchanges: Sequence[GradientExchange], replicas: Sequence[StageEstimate]) -> tuple[float, float]:
    """Bytes of what leaves its device, and of what replicas of a stage send each other."""
    ends = [(sent.total_bytes, replicas[sent.source], replicas[sent.target]) for sent in exchanges]
    leaving = sum(nbytes for nbytes, here, there in ends if here.device != there.device)
    return float(leaving), float(sum(nbytes for nbytes, here, there in ends if here.index == there.index))


def _served(held: Sequence[int], plan: Plan, stage: int, served: Sequence[int], job: JobSpec) -> Iterator[GradientExchange]:
    """The exact exchange: every replica sends its parts of what the others serve as soon as it has them, and gets the totals."""
    parts = parts_of(plan.replicas_of(stage), job.virtual_ends, single=job.verify.share > 0)
    for source, ends in zip(held, parts, strict=True):
        for server, nbytes in zip(held, served, strict=True):
            if source != server and nbytes:
                yield GradientExchange(source, server, nbytes, 0, tuple(end - 1 for end in ends))
                yield GradientExchange(server, source, nbytes, 1)
