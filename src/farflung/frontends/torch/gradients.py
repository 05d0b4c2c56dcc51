"""The traced backward of a custom function as an argument of the operator ``farflung.gradient`` (see ``graph.gradient``)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from torch.fx import GraphModule, Node

from farflung.errors import CaptureError
from farflung.frontends.torch.arguments import Call, Ready
from farflung.frontends.torch.drafts import Draft
from farflung.frontends.torch.functions import Backward
from farflung.graph.ir import Arg, LocalRef, ValueRef

__all__ = ["BackwardLowering", "gradient_call"]


class BackwardLowering(Protocol):
    """The pass that lowers the nodes of a backward (``lowering.Lowering``)."""

    drafts: list[Draft]
    env: dict[Node, Any]

    def run(self, module: GraphModule) -> tuple[Any, ...]:
        """Lower all nodes of ``module``; return the output's references."""

    def read(self, node: Node) -> Any:
        """Return the reference to the result of ``node``."""


def gradient_call(
    backward: Backward, inputs: Sequence[Node], outputs: Sequence[Any], saved: Sequence[Any], body: BackwardLowering
) -> Call:
    """The call of ``farflung.gradient``: inputs, outputs, saved tensors, and the backward as steps.

    ``body``: a pass that has lowered nothing yet.

    Raises:
        CaptureError: the backward uses an operator that is not allowed, draws random numbers or holds tensors of its own.
    """
    placeholders = [node for node in backward.body.graph.nodes if node.op == "placeholder"]
    for number, node in enumerate(placeholders):
        body.env[node] = LocalRef(number)
    if any(node.op == "get_attr" for node in backward.body.graph.nodes):
        raise CaptureError(
            f"the backward of {backward.name} reads a tensor that is neither saved nor a gradient: "
            "keep it with ctx.save_for_backward"
        )
    try:
        results = body.run(backward.body)
    except CaptureError as error:
        raise CaptureError(f"in the backward of {backward.name}: {error}") from error
    if any(draft.draws for draft in body.drafts):
        raise CaptureError(f"the backward of {backward.name} draws random numbers: draw them in the forward and save them")
    numbers: dict[ValueRef, int] = {}
    next_number = len(placeholders)
    for draft in body.drafts:
        for index in range(len(draft.outputs)):
            numbers[ValueRef(draft.name, index)] = next_number
            next_number += 1

    def local(arg: Any) -> Arg:
        if isinstance(arg, tuple):
            return tuple(local(item) for item in arg)
        return LocalRef(numbers[arg]) if isinstance(arg, ValueRef) else arg

    steps = tuple(
        (draft.target, local(draft.args), tuple((key, local(value)) for key, value in sorted(draft.kwargs.items())))
        for draft in body.drafts
    )
    made = iter(results)
    ends = tuple(local(body.read(next(made))) if makes else None for makes in backward.made)
    return Call("farflung.gradient", (list(inputs), list(outputs), list(saved), Ready((steps, ends))), {})
