"""States that a stage's own forwards change and read: whoever runs a forward again needs them as they were."""

from __future__ import annotations

from farflung.graph.cut import SubGraph
from farflung.graph.ir import StateRef, ValueRef, iter_refs

__all__ = ["drifting"]


def drifting(subgraph: SubGraph) -> frozenset[str]:
    """The states that forwards of the stage change and that reach what it sends or the graph's outputs.

    A forward that is run again must read them as they were the first time. Statistics of a batch normalization in training
    are not among them as long as nothing but their own update reads the new ones. Cost: O(operators of the stage).
    """
    graph = subgraph.graph
    changing = {name for name, value in graph.state_updates if graph.position[value.op] in subgraph.positions}
    own = range(subgraph.start, subgraph.stop)
    wanted = {edge.value for edge in subgraph.gives}
    wanted |= {value for _, value in graph.outputs if graph.position[value.op] in own}
    found: set[str] = set()
    for position in reversed(subgraph.positions if changing else ()):
        op = graph.ops[position]
        made = {index for index in range(len(op.outputs)) if ValueRef(op.name, index) in wanted}
        if not made:
            continue
        args = op.args[:3] if op.target == "farflung.batch_norm" and made == {0} else (op.args, op.kwargs)
        for ref in iter_refs(args):
            if isinstance(ref, ValueRef):
                wanted.add(ref)
            elif isinstance(ref, StateRef) and ref.name in changing:
                found.add(ref.name)
    return frozenset(found)
