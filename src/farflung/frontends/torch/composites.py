"""Composite operators that the allow-list does not have, as the operators that they are made of.

PyTorch defines many operators by calls of others (``CompositeImplicitAutograd``), and autograd sees only these others. A graph
of the parts therefore gives the same bits as the composite operator, forward and backward.
"""

from __future__ import annotations

from typing import Any

import torch
from torch.fx import GraphModule, Node
from torch.fx.experimental.proxy_tensor import make_fx
from torch.fx.node import map_arg

__all__ = ["decomposed"]


def decomposed(node: Node) -> GraphModule | None:
    """The parts of a composite operator as a graph whose placeholders are ``node.all_input_nodes``; ``None`` if it is none."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    if not torch._C._dispatch_has_kernel_for_dispatch_key(target._name, "CompositeImplicitAutograd"):
        return None
    nodes = node.all_input_nodes
    values = [source.meta["val"] for source in nodes]
    if not values or not all(isinstance(value, torch.Tensor) for value in values):
        return None

    def call(*tensors: torch.Tensor) -> Any:
        given = dict(zip(nodes, tensors, strict=True))
        args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda source: given[source])
        result = target(*args, **kwargs)
        return result if isinstance(result, (list, tuple)) else (result,)

    with torch.no_grad():
        parts = make_fx(call, tracing_mode="fake")(*values)
    for part in parts.graph.nodes:
        for key in ("nn_module_stack", "stack_trace"):
            if key in node.meta:
                part.meta[key] = node.meta[key]
    return parts
