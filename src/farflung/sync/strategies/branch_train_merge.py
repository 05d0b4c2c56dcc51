"""Branch-Train-Merge: replicas train together at first, then each on its own samples alone, and become one model by a mean.

Source: Li et al., "Branch-Train-Merge: Embarrassingly Parallel Training of Expert Language Models" (2022). What differs: experts
end as the mean of their parameters; weights of the mean by domain are left out. ``integrations.experts`` has ensembles.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farflung.sync.base import Sent, Strategy, StrategyDefaults, Traits
from farflung.sync.commands import Program, Update
from farflung.sync.settings import check_codec, check_steps
from farflung.sync.strategies.local_sgd import averaged
from farflung.sync.world import World

__all__ = ["STRATEGIES", "BranchTrainMerge"]

#: Steps of a period, for predictions, where replicas only merge at the end of a run.
_NEVER = 10_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BranchTrainMerge(StrategyDefaults):
    """In the first ``branch_at`` steps all parameters are averaged after each step (the paper's seed model). Then replicas train
    alone. ``merge_every``: steps after which they merge and branch again (0: they merge at the end of the run).
    """

    branch_at: int = 100
    merge_every: int = 0
    codec: str = "identity"

    def __post_init__(self) -> None:
        check_steps("branch_at", self.branch_at, low=0)
        check_steps("merge_every", self.merge_every, low=0)
        check_codec(self.traits)

    @property
    def traits(self) -> Traits:
        """Parameters, seldom; predictions are those of the steps after the branch."""
        return Traits(
            name="branch_train_merge",
            sent=Sent.PARAMETERS,
            codec=self.codec,
            sync_every=self.merge_every or _NEVER,
        )

    def step(self, step: int, world: World) -> Program:
        """Update; before the branch, and where replicas merge, exchange and mean."""
        update = Update(layers=world.every)
        alone = step + 1 - self.branch_at
        if alone > 0 and (not self.merge_every or alone % self.merge_every):
            return Program(after=(update,))
        return Program(after=(update, *averaged(f"{step}", world, world.every, self.codec)))


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {"branch_train_merge": BranchTrainMerge}
