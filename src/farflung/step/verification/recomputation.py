"""Units that are computed again, on runners of their own, from the states with which their step began."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import NamedTuple

import numpy as np

from farflung.engines.base import Array, MicroBatch, StageRunner
from farflung.engines.encoded_value import arrays_of
from farflung.plan.verification import Digests, Unit
from farflung.step.context import StepContext
from farflung.step.run_setup import Phase
from farflung.step.stages.local_stages import LocalStages
from farflung.step.stages.stage_runners import open_stage
from farflung.step.verification.unit_digests import given_gradients, given_values, part_digest
from farflung.step.verification.unit_inputs import UnitInputArrays

__all__ = ["Recomputation"]

#: Stages of past steps whose states are retained at once.
_MOST = 6


class _Place(NamedTuple):
    step: int
    stage: int


class Recomputation:
    """The states of past steps, and the runners that compute with them (compute thread)."""

    def __init__(self, context: StepContext, stages: LocalStages) -> None:
        self._context, self._stages = context, stages
        self._states: dict[_Place, Mapping[str, Array]] = {}
        #: The loss scale of each of these steps.
        self._scales: dict[int, float] = {}
        #: stage -> samples in the micro-batch -> runner
        self._runners: dict[int, dict[int, StageRunner]] = {}

    def retain(self, units: Collection[Unit]) -> None:
        """Retain the present states for ``units`` of this step, before it is applied."""
        for step, stage in sorted({(unit.step, unit.stage) for unit in units}):
            base = self._stages.base(stage)
            self._states[_Place(step, stage)] = base.states(list(base.subgraph.states))
            self._scales[step] = self._stages.loss_scale.factor
        while len(self._states) > _MOST:
            del self._states[next(iter(self._states))]
        self._scales = {place.step: self._scales[place.step] for place in self._states}

    def can(self, unit: Unit) -> bool:
        """Return whether the states for ``unit`` are retained."""
        return _Place(unit.step, unit.stage) in self._states

    def compute(self, unit: Unit, inputs: UnitInputArrays) -> Digests:
        """Return the digests of what ``unit`` gives for ``inputs``.

        Raises:
            FarflungError: the inputs do not fit the stage.
        """
        setup, key = self._context.setup, MicroBatch(unit.step, unit.micro_batch)
        runner = self._runner(unit)
        piece = runner.subgraph
        data = self._context.data(piece, Phase.TRAIN, unit.step, unit.micro_batch)
        try:
            values = arrays_of(runner.forward(key, inputs.values, data).values)
            weight = setup.job.weight(unit.micro_batch) * self._scales[unit.step]
            gradients = arrays_of(runner.backward(key, inputs.gradients, weight))
            part = part_digest(unit.stage, unit.micro_batch, runner.take_gradients())
        finally:
            runner.discard()
        given = given_values(piece, unit.micro_batch, values), given_gradients(piece, unit.micro_batch, gradients)
        return {**given[0], **given[1], **part}

    def _runner(self, unit: Unit) -> StageRunner:
        context, stage = self._context, unit.stage
        states = self._states[_Place(unit.step, stage)]
        runners = self._runners.get(stage)
        if runners is None:
            pieces = {rows: cuts[stage] for rows, cuts in self._stages.cuts.items()}
            runners = self._runners[stage] = open_stage(context.engine, context.device, context.setup, stage, pieces)
            base = next(iter(runners.values()))
            base.initialize([name for name in base.subgraph.states if name not in states])
        # Copies: an engine may take the arrays over as its own memory, and a second verifier needs the states again.
        next(iter(runners.values())).load({name: np.array(value) for name, value in states.items()})
        return runners[context.setup.job.micro_batch_sizes[unit.micro_batch]]
