"""The states of a stage of which each rank has a part (tensor parallelism)."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from farflung.engines.torch.initialize import initial_value
from farflung.engines.torch.ranks.group import RankGroup
from farflung.engines.torch.states import StageStates
from farflung.graph.tensor_parallel import Division, Split
from farflung.memory_budget import MemoryBudget

__all__ = ["TensorStates", "part_of"]


def part_of(whole: torch.Tensor, split: Split, group: RankGroup) -> torch.Tensor:
    """A copy of this rank's part of ``whole``, with zeros for padding."""
    ranges = split.ranges(group.rank, group.size)
    parts = [whole.narrow(split.dim, start, stop - start) for start, stop in ranges]
    missing = split.part(group.size) - sum(part.shape[split.dim] for part in parts)
    if missing:
        parts.append(whole.new_zeros((*whole.shape[: split.dim], missing, *whole.shape[split.dim + 1 :])))
    return torch.cat(parts, split.dim)


class TensorStates(StageStates):
    """See ``StageStates``. Arrays that come and go are those of this rank."""

    def __init__(
        self,
        division: Division,
        at: tuple[torch.device, RankGroup],
        trained: frozenset[str],
        budget: MemoryBudget,
        share: StageStates | None,
    ) -> None:
        """``at``: the device of this rank, and the group."""
        self._division, self._group = division, at[1]
        super().__init__(division.local, at[0], trained, budget, share)

    def initialize(self, names: Sequence[str], seed: int) -> None:
        """Replay the recorded initializers, each of a whole state, and store this rank's part."""
        split = self._division.states
        super().initialize([name for name in names if name not in split], seed)
        for name in names:
            if name in split:
                value = initial_value(self._division.whole.graph.state[self._known(name)], seed, self._budget)
                self._set(name, part_of(value, split[name], self._group))
