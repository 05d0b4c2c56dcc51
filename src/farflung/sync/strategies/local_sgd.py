"""Local SGD: replicas train alone and average all parameters now and then.

Source: DreamDDP, equation (2). Parameters are averaged in place after the local update; optimizer state stays local.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from farflung.sync.base import Sent, Strategy, StrategyDefaults, Traits
from farflung.sync.commands import Exchange, Mean, Program, Update
from farflung.sync.equations import synchronizes
from farflung.sync.settings import check_codec, check_number, check_steps
from farflung.sync.world import World

__all__ = ["STRATEGIES", "LocalSgd", "averaged"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd(StrategyDefaults):
    """Local SGD with full synchronization: equation (2), all parameters are averaged after every ``sync_every``-th step.

    ``by_speed``: slower replicas take fewer local steps (``local_step_counts``). ``adapt``: these follow measured times where
    that brings more than this part of samples per second (0: they stay as planned).
    """

    sync_every: int = 5
    by_speed: bool = False
    adapt: float = 0.1
    codec: str = "identity"

    def __post_init__(self) -> None:
        check_steps("sync_every", self.sync_every)
        check_codec(self.traits)
        check_number("adapt", self.adapt, below=1.0)

    @property
    def traits(self) -> Traits:
        """Parameters, once per period."""
        return Traits(
            name="local_sgd",
            sent=Sent.PARAMETERS,
            codec=self.codec,
            sync_every=self.sync_every,
            by_speed=self.by_speed,
            step_gain=self.adapt,
        )

    def step(self, step: int, world: World) -> Program:
        """Update; at the end of a period exchange and mean."""
        rests = world.rests(step, self.sync_every)
        update = () if rests else (Update(layers=world.every),)
        if not synchronizes(step, self.sync_every):
            return Program(after=update, rests=rests)
        return Program(after=(*update, *averaged(f"{step}", world, world.every, self.codec)), rests=rests)


def averaged(tag: str, world: World, layers: tuple[int, ...], codec: str) -> tuple[Exchange, Mean]:
    """The commands that begin and end a mean of the parameters of ``layers``."""
    group = world.group
    return (
        Exchange(tag=tag, source="parameters", layers=layers, group=group, codec=codec, weights=world.weights),
        Mean(tag=tag, into="parameters", layers=layers, group=group, weights=world.weights),
    )


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {"local_sgd": LocalSgd}
