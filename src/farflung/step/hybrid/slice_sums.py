"""The sum of a stage's gradients over the slices of one step, in the order of the job, whoever computed them and when."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from farflung.engines.base import Array, StageRunner
from farflung.graph.ir import Use
from farflung.protocol.pool.ordered_items import InOrder
from farflung.step.reduction.gradient_exchange import GradientExchange
from farflung.step.run_setup import RunSetup

__all__ = ["SliceSums"]

Gradients = Mapping[Use, Array]


class SliceSums:
    """One stage in one step (compute thread). Cost: the gradients of each slice that is done before an earlier one."""

    def __init__(
        self, setup: RunSetup, at: tuple[int, int], slices: tuple[int, ...], runner: StageRunner, sums: GradientExchange
    ) -> None:
        """``at``: step and stage. ``runner``: gets the sums, which ``sums`` adds over the replicas of the stage."""
        self._setup, self._at, self._slices, self._runner, self._sums = setup, at, slices, runner, sums
        self._order: InOrder[Gradients] = InOrder(slices)
        #: The sum of the virtual replica under way, and of those before it.
        self._part: Gradients = {}
        self._total: Gradients = {}

    def put(self, index: int, gradients: Gradients) -> None:
        """Add the gradients of slice ``index`` when those of all earlier ones are added."""
        for number, ready in self._order.put(index, gradients):
            self._add(number, ready)

    def _add(self, index: int, gradients: Gradients) -> None:
        """Add inside a virtual replica, then these sums; the buckets' servers add those of replicas that are not the first."""
        step, stage = self._at
        self._part = _sum(self._part, gradients)
        if index + 1 not in self._setup.job.virtual_ends:
            return
        first = self._setup.plan.replicas_of(stage)[0].device == self._setup.device
        part, self._part = self._part, {}
        if first:
            self._total = _sum(self._total, part)
            if index != self._slices[-1]:
                return
            part, self._total = self._total, {}
        self._runner.put_gradients(part)
        self._sums.after_backward(step, stage, index, self._runner)


def _sum(before: Gradients, more: Gradients) -> Gradients:
    """Return the sum in new memory, but for what only one of them has."""
    with np.errstate(over="ignore", invalid="ignore"):  # the step is judged when all gradients are known
        return {**before, **{use: np.add(before[use], array) if use in before else array for use, array in more.items()}}
