"""Which replicas take part in a step: all, or with a strategy ``by_speed`` those that do not rest in it."""

from __future__ import annotations

from collections.abc import Sequence
from math import isfinite

from farflung.step.run_setup import RunSetup
from farflung.step.sync.interpreter import Synchronizer

__all__ = ["Participation"]


class Participation:
    """For one worker; ``sync``: how replicas agree (None: gradients are summed, and nobody rests)."""

    def __init__(self, setup: RunSetup, sync: Synchronizer | None) -> None:
        self._setup, self._sync = setup, sync

    def takes_part(self, step: int, device: str) -> bool:
        """Whether ``device`` computes in ``step``."""
        if self._sync is None:
            return True
        number = next(stage.devices.index(device) for stage in self._setup.plan.stages if device in stage.devices)
        return number in self._sync.participants(step)

    def due(self, step: int) -> dict[str, int]:
        """The devices whose losses count in ``step``, and the step in which each made them."""
        setup = self._setup
        devices = setup.plan.stages[setup.loss_stage].devices
        if self._sync is None:
            return dict.fromkeys(devices, step)
        return {devices[rank]: made for rank, made in self._sync.due(step).items()}

    def mean(self, step: int, losses: Sequence[float]) -> float:
        """Return the mean of ``losses``: of the micro-batches of the replicas whose losses count in ``step``, in order.

        A strategy that tolerates faulty replicas leaves out losses that are not finite, unless all are. So does one in float16,
        because a replica leaves out a step that overflows.
        """
        job = self._setup.job
        sizes = [1] * len(losses) if job.weighting == "equal" else self._sizes(step)
        counted = list(zip(sizes, losses, strict=True))
        if self._sync is not None and (self._sync.strategy.traits.faulty or job.precision == "fp16"):
            counted = [(size, loss) for size, loss in counted if isfinite(loss)] or counted
        return sum(size * loss for size, loss in counted) / sum(size for size, _ in counted)

    def samples(self, step: int) -> int:
        """How many samples ``step`` counts."""
        return sum(self._sizes(step))

    @property
    def own_samples(self) -> int:
        """The samples of a step whose losses this worker makes."""
        setup = self._setup
        places = setup.places[setup.loss_stage]
        return sum(size for size, place in zip(setup.job.micro_batch_sizes, places, strict=True) if place == setup.device)

    def rested(self, step: int) -> int:
        """How many samples of ``step`` nobody computes."""
        return sum(self._setup.job.micro_batch_sizes) - self.samples(step)

    def _sizes(self, step: int) -> list[int]:
        sizes, places, due = self._setup.job.micro_batch_sizes, self._setup.places[self._setup.loss_stage], self.due(step)
        return [size for size, place in zip(sizes, places, strict=True) if place in due]
