"""Blocks of a stage: operators that follow each other, with the parameters that they read.

A site that shards parameters gathers those of one block before the block computes, and frees them afterwards.
Source: ZeRO stage 3 (Rajbhandari et al. 2020, section 5.3). What differs: blocks come from the graph, not from modules.
Cost: O(operators).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from farflung.graph.cut import SubGraph
from farflung.graph.gradient import GRADIENT
from farflung.graph.ir import Op, StateKind, ValueRef
from farflung.graph.opset import OpClass, info

__all__ = ["Block", "gathered_bytes", "holders", "may_alias", "parameter_blocks", "parameters_of"]

#: Blocks that a stage of equal layers has, roughly. More blocks take less memory and more messages.
_BLOCKS = 12
#: Operators that may return their argument itself, and that are no views.
_IDENTITIES = ("to.", "type_as.", "dropout.", "feature_dropout.", "alpha_dropout.", "feature_alpha_dropout.", "positive.")
#: The backward of a look-up needs the indices and the shape of the table only.
_UNREAD = frozenset({"aten.embedding.default"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Block:
    """The operators ``start`` to ``stop`` (exclusive) of ``SubGraph.positions``.

    ``reads``: the parameters that a forward reads. ``back``: those that a backward reads.
    """

    start: int
    stop: int
    reads: frozenset[str]
    back: frozenset[str]


def parameters_of(subgraph: SubGraph) -> tuple[str, ...]:
    """The parameters of a stage, trained and frozen, in the stage's order."""
    state = subgraph.graph.state
    return tuple(name for name in subgraph.states if state[name].kind is StateKind.PARAMETER)


def holders(sizes: Mapping[str, int], ranks: int, first: Sequence[str]) -> dict[str, int]:
    """The rank of each parameter: the largest first, to the rank that has the fewest bytes.

    ``sizes``: bytes by name. The parameters ``first`` are dealt before the others: each of both has an even share.
    """
    found: dict[str, int] = {}
    for names in (first, [name for name in sizes if name not in set(first)]):
        loads = [0] * ranks
        for name in sorted(names, key=lambda name: -sizes[name]):
            found[name] = min(range(ranks), key=loads.__getitem__)
            loads[found[name]] += sizes[name]
    return found


def may_alias(op: Op) -> bool:
    """Whether a result of ``op`` may lie in the memory of an argument."""
    known = info(op.target)
    short = op.target.removeprefix("aten.")
    return known.view or known.op_class is OpClass.VIEW or short.startswith(_IDENTITIES) or op.target == GRADIENT


def parameter_blocks(subgraph: SubGraph) -> tuple[Block, ...]:
    """Cut the operators of a stage into blocks, which have no more parameters than the largest one or a small share of all.

    A parameter counts as read wherever a view of it is. What leaves the stage is read by the last block, too.
    """
    graph, names = subgraph.graph, parameters_of(subgraph)
    sizes = {name: graph.state[name].spec.nbytes for name in names}
    limit = max([sum(sizes.values()) / _BLOCKS, *sizes.values()])
    views: dict[ValueRef, frozenset[str]] = {}
    reads: list[frozenset[str]] = []
    for position in subgraph.positions:
        op, (states, values) = graph.ops[position], graph.reads[position]
        read = frozenset(name for name in states if name in sizes).union(*(views.get(value, ()) for value in values))
        reads.append(read)
        if read and may_alias(op):
            views |= {ValueRef(op.name, index): read for index in range(len(op.outputs))}
    bounds, have = [0], frozenset[str]()
    for index, read in enumerate(reads):
        if have and not read <= have and sum(sizes[name] for name in have | read) > limit:
            bounds.append(index)
            have = frozenset()
        have |= read
    bounds.append(len(reads))
    leaving = [*(edge.value for edge in subgraph.gives), *(value for _, value in graph.outputs)]
    kept = frozenset[str]().union(*(views.get(value, ()) for value in leaving))
    return tuple(
        Block(
            start=start,
            stop=stop,
            reads=frozenset[str]().union(*reads[start:stop], kept if stop == len(reads) else ()),
            back=frozenset[str]().union(*(reads[i] for i in range(start, stop) if _reads_back(subgraph, i))),
        )
        for start, stop in pairwise(bounds)
    )


def _reads_back(subgraph: SubGraph, index: int) -> bool:
    """Whether the backward of an operator reads its parameters."""
    op = subgraph.graph.ops[subgraph.positions[index]]
    view = info(op.target).view or info(op.target).op_class is OpClass.VIEW
    return op.name in subgraph.graph.grad_ops and not view and op.target not in _UNREAD


def gathered_bytes(subgraph: SubGraph) -> int:
    """The most bytes of parameters that a rank has gathered at a time: those of two blocks, one of them ahead."""
    state = subgraph.graph.state
    blocks = parameter_blocks(subgraph)
    found = [sum(state[name].spec.nbytes for name in block.reads) for block in blocks]
    several = [
        sum(state[name].spec.nbytes for name in getattr(a, item) | getattr(b, item))
        for a, b in pairwise(blocks)
        for item in ("reads", "back")
    ]
    return max([*found, *several], default=0)
