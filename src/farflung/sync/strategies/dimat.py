"""DIMAT: replicas train alone, and match their hidden units before they average.

Source: Saadati et al., "DIMAT: Decentralized Iterative Merging-And-Training for Deep Learning Models" (2024). What differs: units
are matched by weights (``unit_matching``) instead of by activations, which would need samples that all replicas have; and every
replica merges with all others, where the paper's agents have neighbors.
Cost: every replica sends its parameters to every other one, and matches each of them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farflung.errors import InputError
from farflung.sync.base import NeedsOneStage, Sent, Strategy, StrategyDefaults, Traits
from farflung.sync.commands import Commands, Exchange, Mean, Program, Update
from farflung.sync.settings import check_codec, check_steps
from farflung.sync.unit_matching import read_units
from farflung.sync.world import World

__all__ = ["STRATEGIES", "Dimat"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Dimat(StrategyDefaults):
    """Every ``sync_every`` steps a replica takes the mean of all, with the units of the others in its own order.

    The order stays its own, so the state of its optimizer stays valid. At the end of a run all take the order of the first one.
    ``units``: parameters and axes along which the same units lie, groups of them divided by semicolons.
    """

    sync_every: int = 100
    units: str = ""
    codec: str = "identity"

    def __post_init__(self) -> None:
        check_steps("sync_every", self.sync_every)
        check_codec(self.traits)

    @property
    def traits(self) -> Traits:
        """Parameters, once per period, one by one."""
        splits = NeedsOneStage(reason="matches units by what a stage has of them", remedy="set strategy = 'local_sgd'")
        return Traits(
            name="dimat",
            sent=Sent.PARAMETERS,
            codec=self.codec,
            sync_every=self.sync_every,
            one_by_one=True,
            needs_one_stage=(splits,),
            units=read_units(self.units),
        )

    def check(self, world: World) -> None:
        """There is something to match."""
        world.check()
        if not self.traits.units:
            raise InputError(
                "units = '': dimat matches hidden units before it averages; name their parameters and axes, e.g. "
                "'up.weight:0 up.bias:0 down.weight:1', or take strategy = 'local_sgd'"
            )

    def step(self, step: int, world: World) -> Program:
        """Update; at the end of a period, exchange and merge."""
        update = Update(layers=world.every)
        if (step + 1) % self.sync_every:
            return Program(after=(update,))
        return Program(after=(update, *self._merged(f"{step}", world, world.rank)))

    def end(self, steps: int, world: World) -> Commands:
        """The mean in the order of the first replica."""
        del steps
        return self._merged("end", world, 0)

    def _merged(self, tag: str, world: World, reference: int) -> tuple[Exchange, Mean]:
        every, group = world.every, world.group
        send = Exchange(tag=tag, source="parameters", layers=every, group=group, codec=self.codec)
        mean = Mean(
            tag=tag,
            into="parameters",
            layers=every,
            group=group,
            weights=world.weights,
            units=self.traits.units,
            reference=reference,
        )
        return send, mean


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {"dimat": Dimat}
