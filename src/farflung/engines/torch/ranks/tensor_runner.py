"""A stage on one rank of a site whose ranks compute each micro-batch together (tensor parallelism).

Each rank has a part of the parameters that are divided, with their gradients and optimizer states. The other parameters are on
all ranks, and so are their gradients, with the same bits. One rank owns each of them: it updates the parameter and sends it to
all, so ranks never drift apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch

from farflung.engines.base import EngineSettings, MicroBatch
from farflung.engines.site.shards import owners
from farflung.engines.stateful_runner import trained_states
from farflung.engines.torch.optimizers.offloaded_update import OffloadedOptimizer
from farflung.engines.torch.optimizers.wide_update import AnyOptimizer
from farflung.engines.torch.ranks.group import RankGroup
from farflung.engines.torch.ranks.runner import RankRunner
from farflung.engines.torch.ranks.tensor_program import divide_program
from farflung.engines.torch.ranks.tensor_states import TensorStates
from farflung.engines.torch.states import StageStates
from farflung.errors import GraphError
from farflung.graph.cut import SubGraph
from farflung.graph.tensor_parallel import Division, divide

__all__ = ["TensorRunner"]


class TensorRunner(RankRunner):
    """See ``RankRunner``. All ranks make the same calls in the same order, each with arrays of its own."""

    def __init__(
        self, subgraph: SubGraph, settings: EngineSettings, at: tuple[torch.device, RankGroup], share: TensorRunner | None
    ) -> None:
        """``at``: the device of this rank, and the group.

        Raises:
            GraphError: micro-batches of another size would divide the parameters in another way.
        """
        device, group = at
        self.division: Division = divide(subgraph, group.size, None if share is None else share.division.states)
        if settings.training and self.division.gathered:
            name = next(iter(self.division.gathered))
            raise GraphError(
                f"stage {subgraph.stage}: operator {name!r} divides its parameters in no other way than the largest micro-batch "
                'does: use equal micro-batches, or plan.shard = "none"'
            )
        owner = owners(subgraph, settings, group.size, self.division.states)
        self._own = {name for name, rank in owner.items() if rank == group.rank} | self.division.states.keys()
        super().__init__(self.division.local, replace(settings, split_backward=False), at, share)
        trained = [name for name in subgraph.states if name in self.state.trained and name in owner]
        self._parameters = [[name for name in trained if owner[name] == rank] for rank in range(group.size)]
        divide_program(self._program, self.division, device, group)

    def make_states(
        self, subgraph: SubGraph, settings: EngineSettings, device: torch.device, share: StageStates | None
    ) -> StageStates:
        """See ``TorchRunner``."""
        return TensorStates(self.division, (device, self._group), trained_states(subgraph, settings), settings.budget, share)

    def make_optimizer(self, names: Sequence[str]) -> AnyOptimizer | OffloadedOptimizer:
        """See ``StatefulRunner``: of the parts that lie here, and of the whole parameters that this rank owns."""
        return super().make_optimizer([name for name in names if name in self._own])

    def backward_weights(self, key: MicroBatch) -> None:
        """Nothing: ``backward`` has computed all gradients."""
        del key

    def _set_apart(self, key: MicroBatch) -> None:
        """Nothing: no other rank has gradients to add."""
