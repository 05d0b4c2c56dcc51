"""A backward in two parts: first the gradients that earlier stages wait for, later the gradients of parameters.

Source: Qi et al. 2023 (zero bubble), section 2. The first part runs autograd from the stage's results to the values that it
received, and keeps the gradient at each operator that also leads to a parameter. The second part starts autograd at each of these
operators. Autograd computes for each operator only the gradients that a part asks for, with the kernels of the whole backward. So
the sums have the same bits.

What differs: a parameter that several of these operators lead to has its gradient computed in the first part, because a start at
one of the operators would pass the others again. The second part only adds this gradient.
Cost: one walk over the autograd graph, and in the second part one call of autograd per operator. The values that autograd saves
stay until the second part, and so do the kept gradients.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.autograd.graph import GradientEdge, get_gradient_edge

__all__ = ["WeightWork", "backward_inputs", "backward_weights"]


@dataclass(slots=True)
class WeightWork:
    """What the second part computes: edges with their gradients and the leaves that they lead to; and leaves' ready gradients."""

    parts: list[tuple[list[GradientEdge], list[torch.Tensor], list[torch.Tensor]]] = field(default_factory=list)
    ready: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def memory(self) -> frozenset[int]:
        """Addresses of the kept gradients: the second part may make them gradients of parameters, which change in place."""
        kept = [gradient for _, gradients, _ in self.parts for gradient in gradients]
        return frozenset(tensor.untyped_storage().data_ptr() for tensor in (*kept, *(gradient for _, gradient in self.ready)))


def backward_inputs(roots: Sequence[torch.Tensor], seeds: Sequence[torch.Tensor | None], entry: torch.Tensor) -> WeightWork:
    """Run the first part from ``roots`` to ``entry``, the leaf that all received values depend on; return the second part."""
    edges = [get_gradient_edge(root) for root in roots]
    above = _leads_to(get_gradient_edge(entry).node, [edge.node for edge in edges])
    starts = _starts(above, edges)
    #: Leaves by the place that leads to them: an operator above ``entry``, or None: roots that no received value reaches.
    reached: dict[Any, dict[int, torch.Tensor]] = {
        node: _leaves([child for child, _ in node.next_functions if child is not None and not above[child]]) for node in starts
    }
    apart = [index for index, edge in enumerate(edges) if not above[edge.node]]
    reached[None] = _leaves([edges[index].node for index in apart])
    count: dict[int, int] = {}
    for leaves in reached.values():
        for identity in leaves:
            count[identity] = count.get(identity, 0) + 1
    early = {identity: leaf for leaves in reached.values() for identity, leaf in leaves.items() if count[identity] > 1}
    later = {place: [leaf for key, leaf in leaves.items() if key not in early] for place, leaves in reached.items()}
    wanted = [GradientEdge(node, number) for node in starts if later[node] for number in sorted(starts[node])]
    work = WeightWork()
    if any(above.values()) or early:
        inputs = [get_gradient_edge(entry), *map(get_gradient_edge, early.values()), *wanted]
        found: Sequence[torch.Tensor | None] = torch.autograd.grad(edges, inputs, seeds, retain_graph=True, allow_unused=True)
        given, kept = found[1 : 1 + len(early)], found[1 + len(early) :]
        work.ready = [(leaf, made) for leaf, made in zip(early.values(), given, strict=True) if made is not None]
        own: dict[Any, list[tuple[GradientEdge, torch.Tensor]]] = {}
        for edge, made in zip(wanted, kept, strict=True):
            if made is not None:
                own.setdefault(edge.node, []).append((edge, made))
        work.parts = [([e for e, _ in pairs], [made for _, made in pairs], later[node]) for node, pairs in own.items()]
    if later[None]:
        work.parts.append(([edges[index] for index in apart], [_seed(roots[i], seeds[i]) for i in apart], later[None]))
    return work


def backward_weights(work: WeightWork) -> None:
    """Run the second part: accumulate the gradients of the leaves."""
    for edges, gradients, leaves in work.parts:
        torch.autograd.backward(edges, gradients, inputs=leaves)
    for leaf, gradient in work.ready:
        torch.autograd.backward([leaf], [gradient])


def _seed(root: torch.Tensor, seed: torch.Tensor | None) -> torch.Tensor:
    return torch.ones_like(root) if seed is None else seed


def _leads_to(target: Any, starts: Sequence[Any]) -> dict[Any, bool]:
    """For each node of the autograd graph under ``starts``: whether ``target`` lies under it."""
    found: dict[Any, bool] = {}
    for start in starts:
        stack = [(start, iter(start.next_functions))] if start not in found else []
        found.setdefault(start, start == target)
        while stack:
            node, rest = stack[-1]
            child = next((child for child, _ in rest if child is not None and child not in found), None)
            if child is not None:
                found[child] = child == target
                stack.append((child, iter(child.next_functions)))
                continue
            stack.pop()
            found[node] = found[node] or any(found[one] for one, _ in node.next_functions if one is not None)
    return found


def _starts(above: dict[Any, bool], edges: Sequence[GradientEdge]) -> dict[Any, set[int]]:
    """The operators above the entry that also lead elsewhere, with the numbers of their results that are used."""
    found: dict[Any, set[int]] = {
        node: set()
        for node, is_above in above.items()
        if is_above and any(child is not None and not above[child] for child, _ in node.next_functions)
    }
    used = [(edge.node, edge.output_nr) for edge in edges]
    used += [pair for node, is_above in above.items() if is_above for pair in node.next_functions if pair[0] is not None]
    for node, number in used:
        if node in found:
            found[node].add(number)
    return found


def _leaves(nodes: Sequence[Any]) -> dict[int, torch.Tensor]:
    """The leaves under ``nodes``, by identity, in the order of a walk."""
    return {id(leaf): leaf for leaf in _walk(nodes)}


def _walk(nodes: Sequence[Any]) -> Iterator[torch.Tensor]:
    seen, stack = set(nodes), list(nodes)
    while stack:
        node = stack.pop()
        if hasattr(node, "variable"):
            yield node.variable
        for child, _ in node.next_functions:
            if child is not None and child not in seen:
                seen.add(child)
                stack.append(child)
