"""What a stage costs on a site: the memory of all its ranks, and the time in which they exchange parameters and gradients.

An exchange of M bytes among the ranks takes ``rank_latency + M / rank_rate``, both measured in the site. It is added to the
computation: ranks on a CPU exchange with the cores that compute.
Source: ZeRO (Rajbhandari et al. 2020), sections 5 and 7. What differs: blocks, and whole gradients in the job's order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from farflung.cluster import Device
from farflung.cost import StageMemory
from farflung.graph.cut import SubGraph
from farflung.graph.parameter_blocks import gathered_bytes, holders, parameter_blocks, parameters_of
from farflung.job.spec import JobSpec
from farflung.plan.estimation.cost_tables import CostTables
from farflung.plan.estimation.tensor_costs import tensor_costs
from farflung.plan.model import Stage

__all__ = ["RankSeconds", "divides", "rank_seconds", "site_memory", "site_pace", "site_view", "together"]


@dataclass(frozen=True, slots=True)
class _Exchanged:
    """Bytes of a stage: parameters, those that are trained, and by block what a forward and a backward read and its gradients.

    ``largest``: the largest share of the parameters and gradients that a rank owns. ``gathered``: what a rank has beside it.
    """

    parameters: float
    trained: float
    gradients: float
    ahead: tuple[float, ...]
    back: tuple[float, ...]
    block_gradients: tuple[float, ...]
    largest: float
    gathered: float


@dataclass(frozen=True, slots=True)
class RankSeconds:
    """Seconds that the ranks of a site exchange, for a group of micro-batches (one on each rank) and for the update.

    Ranks that compute micro-batches together have groups of one.
    """

    forward: float = 0.0
    backward: float = 0.0
    update: float = 0.0


_FOUND: WeakKeyDictionary[CostTables, dict[tuple[int, int, int], _Exchanged]] = WeakKeyDictionary()
_KEPT = 1 << 12


def divides(stage: Stage, device: Device) -> bool:
    """Return whether the ranks of ``device`` divide the parameters of ``stage``."""
    return stage.shard == "parameters" and device.ranks > 1


def together(stage: Stage, device: Device) -> bool:
    """Return whether the ranks of ``device`` compute each micro-batch of ``stage`` together."""
    return stage.shard == "tensor" and device.ranks > 1


def site_view(tables: CostTables, stage: Stage, sub: SubGraph, device: Device) -> tuple[CostTables, SubGraph]:
    """Return what one rank of ``device`` computes for a micro-batch, and the tables of that."""
    if not together(stage, device):
        return tables, sub
    found = tensor_costs(tables, sub, device.ranks)
    return found.tables, found.sub


def site_memory(memory: StageMemory, tables: CostTables, stage: Stage, sub: SubGraph, device: Device) -> StageMemory:
    """Return the memory of a stage on all ranks of a site together; activations are those of all micro-batches in flight.

    ``memory``: of the stage, or if ranks compute together, of one rank (``site_view``).
    The sums of gradients and the optimizer states are there once. Usually each rank has the parameters, and the gradients of the
    micro-batch that it computed; while ranks add, all gradients but those of the own rank are in buffers of the sender and of
    the receiver. If ranks divide the parameters, each has its part, two blocks, and gradients of two blocks.
    """
    ranks = device.ranks
    if ranks == 1:
        return memory
    if together(stage, device):
        return tensor_costs(tables, sub, ranks).memory(memory)
    each = replace(memory, workspace=ranks * memory.workspace, messages=ranks * memory.messages, update=ranks * memory.update)
    if not divides(stage, device):
        copies = ranks + 1 + 2 * (ranks - 1)
        return replace(each, parameters=ranks * memory.parameters, gradients=copies * memory.gradients)
    found = _exchanged(tables, sub, ranks)
    most = ranks * found.largest
    block = max(found.block_gradients, default=0.0) * (1.0 + 2.0 * (ranks - 1) / ranks)
    return replace(
        each,
        parameters=ranks * (memory.parameters - found.parameters + found.gathered) + most * found.parameters,
        gradients=most * memory.gradients + ranks * block,
        optimizer=most * memory.optimizer,
    )


def site_pace(device: Device, stage: Stage, sub: SubGraph, micro_batches: int) -> float:
    """Return by how much a site is slower than all its ranks together: some have no micro-batch, or only one can compute.

    Ranks that compute together take for one micro-batch what one rank takes for its part.
    """
    if together(stage, device) or any(sub.graph.position[value.op] in sub.positions for _, value in sub.graph.state_updates):
        return float(device.ranks)
    return -(-micro_batches // device.ranks) * device.ranks / micro_batches


def rank_seconds(tables: CostTables, stage: Stage, sub: SubGraph, device: Device, job: JobSpec) -> RankSeconds:
    """Return for how long the ranks of ``device`` exchange (zeros: it is no site, or its links were not measured)."""
    if device.ranks == 1 or device.rank_rate is None:
        return RankSeconds()

    def seconds(*sizes: float) -> float:
        return sum(device.rank_latency + size / device.rank_rate for size in sizes if size and device.rank_rate is not None)

    if together(stage, device):
        added = tensor_costs(tables, sub, device.ranks)
        ahead, back = 2.0 * seconds(*added.ahead), 2.0 * seconds(*added.back)
        return RankSeconds(forward=ahead, backward=back + (ahead if stage.recompute else 0.0), update=seconds(added.shared))
    found = _exchanged(tables, sub, device.ranks)
    if divides(stage, device):
        ahead = seconds(*found.ahead)
        again = ahead if stage.recompute else 0.0
        return RankSeconds(forward=ahead, backward=again + seconds(*found.back, *found.block_gradients))
    summed = seconds(found.gradients)
    in_order = job.sync.order == "job"
    return RankSeconds(backward=summed if in_order else 0.0, update=seconds(found.trained) + (0.0 if in_order else summed))


def _exchanged(tables: CostTables, sub: SubGraph, ranks: int) -> _Exchanged:
    kept = _FOUND.setdefault(tables, {})
    key = (sub.start, sub.stop, ranks)
    if key not in kept:
        if len(kept) >= _KEPT:
            kept.clear()
        kept[key] = _measured(sub, ranks)
    return kept[key]


def _measured(sub: SubGraph, ranks: int) -> _Exchanged:
    graph = sub.graph
    sizes = {name: graph.state[name].spec.nbytes for name in parameters_of(sub)}
    trained = [name for name in sizes if name in graph.trained]
    own = {graph.ops[position].name for position in sub.positions if sub.start <= position < sub.stop}
    gradients: dict[str, float] = {}
    for name in trained:
        for use in graph.gradient_uses[name]:
            if use.op in own:
                gradients[use.op] = gradients.get(use.op, 0.0) + sizes[name]
    blocks = parameter_blocks(sub)
    owner = holders(sizes, ranks, trained)
    loads: Mapping[int, float] = {r: sum(size for name, size in sizes.items() if owner[name] == r) for r in range(ranks)}
    total = float(sum(sizes.values()))
    return _Exchanged(
        parameters=total,
        trained=float(sum(sizes[name] for name in trained)),
        gradients=sum(gradients.values()),
        ahead=tuple(float(sum(sizes[name] for name in block.reads)) for block in blocks),
        back=tuple(float(sum(sizes[name] for name in block.back)) for block in blocks),
        block_gradients=tuple(
            sum(gradients.get(graph.ops[position].name, 0.0) for position in sub.positions[block.start : block.stop])
            for block in blocks
        ),
        largest=max(loads.values()) / total if total else 1.0 / ranks,
        gathered=float(gathered_bytes(sub)),
    )
