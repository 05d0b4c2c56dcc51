"""``farflung.gradient``: values whose gradients a program makes that the graph carries.

The operator has four arguments: the tensors that get a gradient, the values that it returns, the values that its backward reads,
and the backward. A value of the second and third list that is also a tensor of the first stands there as its place, an integer.
The backward is ``(steps, results)``. A step is ``(target, args, kwargs)``, with keyword arguments as pairs; ``LocalRef`` numbers
first the gradients of the returned values, then the values that the backward reads, then the outputs of the steps. ``results``
has one ``LocalRef`` for each tensor of the first list, or ``None`` where no gradient exists.
"""

from __future__ import annotations

from dataclasses import dataclass

from farflung.errors import GraphError
from farflung.graph.nodes import Arg, LocalRef, Op, StateRef, ValueRef, iter_refs
from farflung.graph.opset import check_target
from farflung.graph.signatures import check_call, signature

__all__ = ["GRADIENT", "GradientOp", "GradientStep", "read_gradient"]

#: The operator's name.
GRADIENT = "farflung.gradient"
#: Steps that a backward may have.
_STEPS = 4096


@dataclass(frozen=True, slots=True)
class GradientStep:
    """One call of a backward."""

    target: str
    args: tuple[Arg, ...]
    kwargs: tuple[tuple[str, Arg], ...]


@dataclass(frozen=True, slots=True)
class GradientOp:
    """The arguments of ``farflung.gradient``, read and checked."""

    inputs: tuple[Arg, ...]
    outputs: tuple[Arg, ...]
    saved: tuple[Arg, ...]
    steps: tuple[GradientStep, ...]
    results: tuple[LocalRef | None, ...]


def read_gradient(op: Op, where: str = "") -> GradientOp:
    """The parts of a ``farflung.gradient``.

    Raises:
        GraphError: the arguments are not as the head of this module says, or a step's operator is not allowed.
    """
    where = where or f"operator {op.name[:100]!r} ({op.target})"
    match op.args, op.kwargs:
        case (tuple() as inputs, tuple() as outputs, tuple() as saved, (tuple() as steps, tuple() as results)), ():
            found = GradientOp(inputs, outputs, saved, tuple(_step(step, where) for step in steps), _results(results, where))
        case _:
            raise GraphError(f"{where}: its arguments must be three lists and a backward (steps, results)")
    if len(found.outputs) != len(op.outputs) or len(found.results) != len(found.inputs) or len(steps) > _STEPS:
        raise GraphError(f"{where}: it needs a result for each input, a value for each output, and at most {_STEPS} steps")
    if not all(isinstance(item, (ValueRef, StateRef)) for item in found.inputs):
        raise GraphError(f"{where}: its inputs must be tensors")
    for item in (*found.outputs, *found.saved):
        place = isinstance(item, int) and not isinstance(item, bool) and 0 <= item < len(found.inputs)
        if not (place or isinstance(item, (ValueRef, StateRef))):
            raise GraphError(f"{where}: what it returns or reads must be a tensor, or the place of one among its inputs")
    for step in found.steps:
        for ref in iter_refs((step.args, tuple(value for _, value in step.kwargs))):
            if not isinstance(ref, LocalRef) or ref.index < 0:
                raise GraphError(f"{where}: a step of its backward reads {ref}, but sees only its own values")
    return found


def _step(raw: Arg, where: str) -> GradientStep:
    match raw:
        case (str() as target, tuple() as args, tuple() as kwargs):
            pass
        case _:
            raise GraphError(f"{where}: a step of its backward must be (target, args, kwargs)")
    pairs: list[tuple[str, Arg]] = []
    for pair in kwargs:
        match pair:
            case (str() as key, value) if key.isidentifier() and len(key) <= 64:
                pairs.append((key, value))
            case _:
                raise GraphError(f"{where}: keyword arguments of a step must be pairs of a name and a value")
    known = check_target(target)
    if known.random or not target.startswith("aten."):
        raise GraphError(f"{where}: a backward can't use {target[:60]!r}")
    check_call(signature(target), args, pairs, f"{where}, step {target} of its backward")
    return GradientStep(target, args, tuple(pairs))


def _results(raw: tuple[Arg, ...], where: str) -> tuple[LocalRef | None, ...]:
    found: list[LocalRef | None] = []
    for item in raw:
        if not (item is None or (isinstance(item, LocalRef) and item.index >= 0)):
            raise GraphError(f"{where}: a result of its backward must be a step's value or nothing")
        found.append(item)
    return tuple(found)
