"""What an action of a step takes and gives, and its computation on a stage runner."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from farflung.engines.base import Array, MicroBatch, StageRunner
from farflung.engines.encoded_value import SentValues
from farflung.engines.site.runner import SiteRunner
from farflung.graph.ir import Use, ValueRef
from farflung.schedules.base import ActionKind

__all__ = ["ActionInputs", "ActionResult", "begin", "compute", "lanes"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionInputs:
    """Forward, or a backward that begins with the forward again: ``values`` from other stages, and ``data``.

    Backward: ``gradients`` as the engine takes them, and the ``weight`` of the loss.
    """

    values: Mapping[ValueRef, Array] | None = None
    data: Mapping[str, Array] = field(default_factory=dict)
    gradients: Mapping[ValueRef, Sequence[Array]] = field(default_factory=dict)
    weight: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionResult:
    """Forward: ``values`` for other stages, ``outputs`` of the graph made here, the ``loss`` if it is one of them.

    Backward: ``values`` are the gradients of the values that came in. A slice's ``gradients`` are those of the stage's parameters
    by use, and ``seconds`` the time that it took.
    """

    values: SentValues = field(default_factory=dict)
    outputs: Mapping[str, Array] = field(default_factory=dict)
    loss: float | None = None
    gradients: Mapping[Use, Array] = field(default_factory=dict)
    seconds: float = 0.0


def lanes(runner: StageRunner) -> int:
    """How many micro-batches ``runner`` computes at the same time."""
    return runner.lanes if isinstance(runner, SiteRunner) else 1


def begin(runner: StageRunner, work: Sequence[tuple[MicroBatch, ActionInputs]], kind: ActionKind) -> None:
    """Let the runner of a site begin several actions of one kind; ``compute`` then waits for each of them."""
    assert isinstance(runner, SiteRunner)
    if kind is ActionKind.FORWARD:
        runner.begin_forwards([(key, inputs.values or {}, inputs.data) for key, inputs in work])
    elif kind is ActionKind.BACKWARD:
        runner.begin_backwards([(key, inputs.gradients, inputs.weight) for key, inputs in work])
    else:
        runner.begin_weights([key for key, _ in work])


def compute(runner: StageRunner, key: MicroBatch, inputs: ActionInputs, kind: ActionKind) -> ActionResult:
    """Compute the action ``kind`` of micro-batch ``key``; gradients of parameters stay in ``runner``."""
    if kind is ActionKind.WEIGHT:
        runner.backward_weights(key)
        return ActionResult()
    if kind is ActionKind.FORWARD:
        assert inputs.values is not None
        result = runner.forward(key, inputs.values, inputs.data)
        loss = result.outputs.get("loss")
        return ActionResult(values=result.values, outputs=result.outputs, loss=None if loss is None else float(loss))
    if inputs.values is not None:
        runner.forward(key, inputs.values, inputs.data)
    return ActionResult(values=runner.backward(key, inputs.gradients, inputs.weight))
