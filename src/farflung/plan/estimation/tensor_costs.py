"""What a stage costs whose micro-batches the ranks of a site compute together.

Each rank computes the local graph of ``graph.tensor_parallel``. Ranks add values at its sums. A sum of M bytes is counted as two
exchanges of M bytes, because each rank first adds its part of the bytes, and then all ranks collect the parts.
Source: Megatron-LM (Shoeybi et al. 2019), section 3: two sums in the forward of a layer, and two in its backward. A divided
embedding adds what it looked up, and a loss over divided logits exchanges three numbers for each token.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from weakref import WeakKeyDictionary

from farflung.cost import StageMemory
from farflung.graph.cut import SubGraph
from farflung.graph.parameter_blocks import holders, parameters_of
from farflung.graph.tensor_parallel import Division, divide
from farflung.plan.estimation.cost_tables import CostTables

__all__ = ["TensorCosts", "tensor_costs"]


@dataclass(frozen=True, slots=True, eq=False)
class TensorCosts:
    """``tables`` and ``sub`` are those of one rank. ``ahead``, ``back``: bytes of each sum of a forward and of a backward.

    ``shared``: bytes of trained parameters that all ranks have, which are sent after the update. ``largest``: the largest share
    of a rank's trained parameters that it updates. ``divided``: the share of the stage's parameters of which ranks have parts.
    """

    division: Division
    tables: CostTables
    sub: SubGraph
    ahead: tuple[float, ...]
    back: tuple[float, ...]
    shared: float
    largest: float
    divided: float

    def memory(self, rank: StageMemory) -> StageMemory:
        """Return the memory of all ranks together; ``rank``: that of the local graph."""
        ranks = self.division.ranks
        added = 2.0 * max([*self.ahead, *self.back], default=0.0)
        return replace(
            rank,
            parameters=ranks * rank.parameters,
            gradients=ranks * rank.gradients,
            optimizer=ranks * self.largest * rank.optimizer,
            activations=ranks * rank.activations,
            workspace=ranks * (rank.workspace + added),
            messages=ranks * rank.messages,
            update=ranks * (rank.update + self.shared),
            serving=ranks * rank.serving,
        )


_FOUND: WeakKeyDictionary[CostTables, dict[tuple[int, int, int], TensorCosts]] = WeakKeyDictionary()
_KEPT = 1 << 8


def tensor_costs(tables: CostTables, sub: SubGraph, ranks: int) -> TensorCosts:
    """Return what ``sub`` costs on ``ranks`` ranks, computed once for each stage."""
    kept = _FOUND.setdefault(tables, {})
    key = (sub.start, sub.stop, ranks)
    if key not in kept:
        if len(kept) >= _KEPT:
            kept.clear()
        kept[key] = _costs(tables, sub, ranks)
    return kept[key]


def _costs(tables: CostTables, sub: SubGraph, ranks: int) -> TensorCosts:
    division = divide(sub, ranks)
    local = division.local
    sizes = {name: local.graph.state[name].spec.nbytes for name in parameters_of(local) if name in local.graph.trained}
    whole = {name: size for name, size in sizes.items() if name not in division.states}
    owner, total = holders(whole, ranks, tuple(whole)), sum(sizes.values())
    shared = sum(whole.values())
    every = {name: sub.graph.state[name].spec.nbytes for name in parameters_of(sub)}
    own = max(sum(size for name, size in whole.items() if owner[name] == rank) for rank in range(ranks))
    return TensorCosts(
        division=division,
        tables=CostTables.of(local.graph).scaled(tables.part),
        sub=local,
        ahead=tuple(tables.part * size for size in division.added_ahead),
        back=tuple(tables.part * size for size in division.added_back),
        shared=float(shared),
        largest=(total - shared + own) / total if total else 1.0,
        divided=sum(size for name, size in every.items() if name in division.states) / max(sum(every.values()), 1),
    )
