"""Exchanges of which only a weighted mean counts: added up on the way (``reduction.averaging``)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from farflung.step.reduction.averaging import Averaging, Outcome
from farflung.step.reduction.base import Reduction
from farflung.step.run_setup import RunSetup
from farflung.step.sync.stage_replica import MeanUnderWay, StageReplica
from farflung.sync.commands import Exchange, Mean

__all__ = ["MeanExchange"]


class MeanExchange:
    """Between the registers of replicas and a ``Reduction`` of means."""

    def __init__(self, setup: RunSetup, reduction: Reduction[Averaging, Outcome]) -> None:
        self._setup, self._reduction = setup, reduction

    def begin(self, replica: StageReplica, command: Exchange, names: Sequence[str]) -> None:
        """Begin a mean: of parameters in the engine's memory, of anything else in a copy."""
        shapes = {name: self._setup.graph.state[name].spec.shape for name in names}
        arrays = dict(replica.runner.exposed(names)) if command.source == "parameters" else {}
        in_place = len(arrays) == len(names)
        if not in_place:
            values = replica.read(command.source, names)
            arrays = {name: np.array(values[name]).reshape(-1) for name in shapes}
        replica.exchanges.means[command.tag] = MeanUnderWay(arrays=arrays, in_place=in_place)
        self._reduction.contribute(
            Averaging(
                stage=replica.stage,
                tag=command.tag,
                rank=replica.world.rank,
                devices=self._setup.plan.stages[replica.stage].devices,
                weights=command.weights,
                arrays=tuple(arrays[name] for name in names),
                first=replica.first_servers[min(command.layers)],
                patience=self._setup.job.sync.patience or None,
                quorum=self._setup.job.sync.quorum,
            )
        )

    def end(self, replica: StageReplica, command: Mean) -> tuple[MeanUnderWay, Outcome]:
        """Wait for the mean; ``write`` puts it where it belongs.

        Raises:
            BaseException: what ended the run meanwhile.
        """
        outcome = self._reduction.wait(replica.stage, command.tag)
        return replica.exchanges.means.pop(command.tag), outcome

    def write(self, replica: StageReplica, command: Mean, ended: MeanUnderWay) -> None:
        """Put a mean where ``command`` wants it; one in place is there already."""
        if not (ended.in_place and command.into == "parameters"):
            shapes = {name: self._setup.graph.state[name].spec.shape for name in ended.arrays}
            replica.write(command.into, {name: array.reshape(shapes[name]) for name, array in ended.arrays.items()})
