"""The states of a stage whose parameters are divided among the ranks of a site."""

from __future__ import annotations

from collections.abc import Collection, Sequence

import torch

from farflung.engines.base import Array
from farflung.engines.torch.ranks.shards import Shards
from farflung.engines.torch.states import StageStates
from farflung.graph.cut import SubGraph
from farflung.memory_budget import MemoryBudget

__all__ = ["ShardedStates"]


class ShardedStates(StageStates):
    """See ``StageStates``. Parameters of other ranks have tensors here whose memory comes and goes."""

    def __init__(
        self,
        subgraph: SubGraph,
        at: tuple[torch.device, MemoryBudget],
        trained: frozenset[str],
        shards: Shards,
        share: StageStates | None,
    ) -> None:
        """``at``: the device of this rank, and the budget that its states count in."""
        self.shards = shards
        super().__init__(subgraph, at[0], trained, at[1], share)
        if share is None:
            for name in shards.of:
                if not shards.owned(name):
                    tensor = shards.tensor(name)
                    self.tensors[name] = tensor.requires_grad_() if name in trained else tensor

    def _set(self, name: str, value: torch.Tensor) -> None:
        if self.shards.owned(name):  # also of values that the graph has: there is no memory for others
            super()._set(name, value)

    def _own_copy(self, name: str, value: torch.Tensor) -> torch.Tensor:
        if name not in self.shards.of:
            return super()._own_copy(name, value)
        tensor = self.shards.tensor(name)
        tensor.copy_(value)
        return tensor

    def initialize(self, names: Sequence[str], seed: int) -> None:
        """Replay the recorded initializers of those ``names`` that lie here."""
        super().initialize([name for name in names if self.shards.owned(name)], seed)

    def export(self, names: Collection[str] | None = None, *, copy: bool = True) -> dict[str, Array]:
        """Those of the states ``names`` that lie here, or of all parameters and persistent buffers."""
        chosen = [name for name in (self._names if names is None else names) if self.shards.owned(name)]
        kept = [name for name in chosen if names is not None or self._graph.state[name].persistent]
        return super().export(kept, copy=copy)
