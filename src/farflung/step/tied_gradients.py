"""Tied parameters: every stage that has one gets the gradients of its uses in other stages, and adds them in program order."""

from __future__ import annotations

from farflung.graph.ir import Use
from farflung.job.groups import is_frozen
from farflung.messages.data import UseKey
from farflung.plan.model import Stage
from farflung.step.context import StepContext
from farflung.step.stages.local_stages import LocalStages

__all__ = ["exchange_uses"]


def exchange_uses(context: StepContext, stages: LocalStages, step: int) -> None:
    """Send the gradients of uses here to the stages that share the parameter, wait for theirs, and finish the sums."""
    setup = context.setup
    for index, runner in stages.bases.items():
        for use, gradient in runner.use_gradients().items():
            for stage in setup.plan.stages:
                if stage.index != index and use.state in setup.subgraphs[stage.index].states:
                    for device in _receivers(context, index, stage):
                        context.transfer.send_use(step, (index, stage.index), device, use, gradient)
    for index, runner in stages.bases.items():
        uses = {
            use: context.inbox.take(UseKey(step=step, stage=index, state=use.state, op=use.op))
            for use in _foreign_uses(context, index)
        }
        runner.finish_gradients(uses)


def _receivers(context: StepContext, index: int, stage: Stage) -> list[str]:
    """Return the replicas of ``stage`` to which this worker sends the gradients of uses in its own stage ``index``.

    These are the replica on this worker and, if this worker owns ``index``, those on devices that do not have ``index``
    themselves. With a sync strategy uses are added inside each pipeline.
    """
    setup = context.setup
    if setup.plan.sync is not None:
        return [stage.devices[setup.number]]
    mine, owns = setup.plan.stages[index].devices, index in setup.primary_stages
    return [device for device in stage.devices if device == setup.device or (owns and device not in mine)]


def _foreign_uses(context: StepContext, stage: int) -> list[Use]:
    """Return the uses in other stages of the parameters that ``stage`` trains. Engines leave out what the job freezes, too."""
    graph, spec = context.setup.graph, context.setup.job.optimizer
    piece = context.setup.subgraphs[stage]
    trained = {name for name in piece.states if name in graph.trained and not is_frozen(spec, name)}
    positions = set(piece.positions)
    return [use for name in sorted(trained) for use in graph.gradient_uses[name] if graph.position[use.op] not in positions]
