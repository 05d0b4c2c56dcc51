"""The exchange of gradients at the end of a step: what a backward ends, and who gets the totals."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farflung.engines.base import Array, StageRunner
from farflung.graph.ir import Use
from farflung.messages.router import PeerRouter
from farflung.step.inbox import Inbox
from farflung.step.reduction.base import GradientPart, Reduction
from farflung.step.reduction.gradient_sums import GradientSums
from farflung.step.reduction.orders import AddOrder, PartEnd, add_order
from farflung.step.run_setup import RunSetup
from farflung.step.transfer.outbox import Outbox
from farflung.step.transfer.spoilt_values import SpoiltValues

__all__ = ["GradientExchange", "gradient_exchange"]


class GradientExchange:
    """Between the runners of a worker's stages and a ``Reduction`` of gradients. ``order``: where parts of sums end."""

    def __init__(
        self,
        order: AddOrder,
        reduction: Reduction[GradientPart, Mapping[Use, Array]],
        on_part: Callable[[GradientPart], None] = lambda part: None,
    ) -> None:
        """``on_part`` is told each part of the own gradients that the group adds."""
        self._order, self._reduction, self._on_part = order, reduction, on_part

    def after_backward(self, step: int, stage: int, micro_batch: int, runner: StageRunner) -> None:
        """End the part of the sum that ends with this backward, if any (compute thread)."""
        match self._order.ends(stage, micro_batch):
            case PartEnd.OWN:
                runner.close_part()
            case PartEnd.WHOLE:
                runner.close_part(last=True)
            case PartEnd.SENT:
                part = GradientPart(step=step, stage=stage, end=micro_batch + 1, gradients=runner.take_gradients())
                self._on_part(part)
                self._reduction.contribute(part)

    def finish(self, step: int, runners: Mapping[int, StageRunner]) -> None:
        """Wait for the totals of ``step`` and give them to the runners of replicated stages (compute thread)."""
        for stage in self._order.stages:
            runners[stage].put_gradients(self._reduction.wait(stage, str(step)))

    def register(self, router: PeerRouter) -> None:
        """See ``Reduction.register``."""
        self._reduction.register(router)


def gradient_exchange(
    setup: RunSetup, inbox: Inbox, links: Outbox, spoilt: SpoiltValues, on_part: Callable[[GradientPart], None]
) -> GradientExchange:
    """Return the exchange of ``setup``'s run: in the job's order, or along the plan's routes where the job allows any order.

    ``spoilt`` notes who sent what is not finite. ``on_part``: see ``GradientExchange``.
    """
    order = add_order(setup)
    return GradientExchange(order, GradientSums(setup.run, order, inbox, links, spoilt), on_part)
