"""Partial synchronization: each step averages some layers, hidden behind the backward of the layers below them.

Source: DreamDDP, equation (5). Parameters are averaged in place after the local update; optimizer state stays local. One
strategy with four methods to choose the layers of each step; every method has a name in the registry, too.

DreamDDP profiles once; here layers are measured while they train. Members report what they measured in a period, every member
takes the slowest of each layer, and at a period's end the sets are chosen anew if that shortens the period by more than
``adapt``. Cost: that of ``partial_sync_schedule`` once per period, and eight bytes per layer to every other member.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial

import numpy as np

from farflung.errors import InputError
from farflung.known_names import known_names
from farflung.sync.base import Sent, Strategy, StrategyDefaults, Traits
from farflung.sync.commands import Command, Program, Update
from farflung.sync.equations import set_of_step
from farflung.sync.layer_sets import METHODS, PartialSchedule, partial_sync_schedule
from farflung.sync.settings import check_codec, check_number, check_steps
from farflung.sync.strategies.local_sgd import averaged
from farflung.sync.timeline import period_seconds
from farflung.sync.world import LayerInfo, Vector, World

__all__ = ["STRATEGIES", "PartialSync", "schedule_of"]

Sets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialSync(StrategyDefaults):
    """Partial synchronization: equation (5), step r averages one set of layers, overlapped with the backward below them.

    ``method`` chooses the sets from the layers' times (``partial_sync_schedule``); ``sets`` gives them instead, one for each step
    of a period, some may be empty. ``fill``: bubble filling, equation (12), a part of Algorithm 2 (None: with every method but
    ``equal_number``, the paper's baseline without it). ``tied``: groups of layers that share a parameter.
    ``adapt``: sets are chosen anew from measured times where that shortens a period by more than this part (0: never).
    ``name``: the registry's; each of the names beside ``partial`` stands for one method.
    """

    sync_every: int = 5
    method: str = "equal_number"
    fill: bool | None = None
    adapt: float = 0.0
    sets: Sets = ()
    tied: Sets = ()
    codec: str = "identity"
    name: str = "partial"

    def __post_init__(self) -> None:
        check_steps("sync_every", self.sync_every)
        check_codec(self.traits)
        if self.method not in METHODS:
            raise InputError(f"unknown method {self.method!r}: {known_names(self.method, METHODS)}")
        if self.sets and len(self.sets) != self.sync_every:
            raise InputError(f"{len(self.sets)} sets with sync_every = {self.sync_every}: give one set for each step of a period")
        check_number("adapt", self.adapt, below=1.0)
        if self.adapt and (self.sets or self.codec != "identity"):
            raise InputError(
                f"adapt = {self.adapt:g} chooses sets from measured exchanges that are added up on the way: remove sets, and set "
                "codec = 'identity'; or set adapt to 0"
            )
        if self.sets and self.fill:
            raise InputError("fill = true adds to sets that a method has chosen: remove sets, or write the layers into them")

    @property
    def traits(self) -> Traits:
        """Parameters, some layers in each step."""
        return Traits(
            name=self.name,
            sent=Sent.PARAMETERS,
            codec=self.codec,
            sync_every=self.sync_every,
            updates_early=True,
            layer_gain=self.adapt,
            fixed_sets=self.sets,
        )

    def check(self, world: World) -> None:
        """Every layer has a step."""
        world.check()
        count = len(world.layers)
        if not self.sets:
            self.schedule(world)
        elif sorted(layer for chosen in self.sets for layer in chosen) != list(range(count)):
            raise InputError(f"sets {[list(s) for s in self.sets]}: each layer from 0 to {count - 1} must be in exactly one")

    def schedule(self, world: World) -> PartialSchedule:
        """The sets that ``method`` chooses for the layers of ``world``."""
        return schedule_of(world.layers, self.sync_every, self.method, self._units(world)).beginning_with(world.shared)

    def layers_of(self, step: int, world: World) -> tuple[int, ...]:
        """What step ``step`` averages, in the order of exchange."""
        index = set_of_step(step, self.sync_every)
        if self.sets:
            return tuple(sorted(self.sets[index], reverse=True))
        found = self.schedule(world)
        return (found.filled() if self._fills else found.sets)[index]

    @property
    def _fills(self) -> bool:
        return self.method != "equal_number" if self.fill is None else self.fill

    def step(self, step: int, world: World) -> Program:
        """Each layer of the set: update and exchange when its backward has ended; the means come at the end of the step."""
        chosen = self.layers_of(step, world)
        ready: dict[int, tuple[Command, ...]] = {}
        means: list[Command] = []
        for group in self._together(chosen, self.tied if self.sets else self._units(world)):
            send, mean = averaged(f"{step}/{min(group)}", world, group, self.codec)
            ready[min(group)] = (Update(layers=group), send)
            means.append(mean)
        alone = tuple(layer for layer in world.every if layer not in chosen)
        rest = (Update(layers=alone),) if alone else ()
        return Program(ready=ready, after=(*rest, *means))

    def follow(self, world: World, measured: Sequence[Vector]) -> World:
        """Take the slowest measurement of each layer, where the sets that it asks for shorten a period by ``adapt``."""
        count = len(world.layers)
        rows = [row.astype(np.float32) for row in measured if row.shape == (2 * count,)]
        rows = [row for row in rows if np.isfinite(row).all() and (row >= 0).all() and row[:count].any() and row[count:].any()]
        if not rows:
            return world
        slowest = world.with_times(np.maximum.reduce(rows))
        now = tuple(self.layers_of(step, world) for step in range(self.sync_every))
        fixed = replace(self, sets=now, fill=False, adapt=0.0)
        better = period_seconds(self, slowest) < (1.0 - self.adapt) * period_seconds(fixed, slowest)
        return slowest if better else world

    def _units(self, world: World) -> Sets:
        """Groups that are exchanged as one: those of ``tied``, and what other stages hold, too."""
        whole = {layer for group in self.tied if set(group) & set(world.shared) for layer in group} | set(world.shared)
        others = tuple(group for group in self.tied if not whole & set(group))
        return (*others, tuple(sorted(whole))) if len(whole) > 1 else others

    def _together(self, chosen: tuple[int, ...], tied: Sets) -> list[tuple[int, ...]]:
        first_of = {layer: min(group) for group in tied for layer in group}
        groups: dict[int, list[int]] = {}
        for layer in chosen:
            groups.setdefault(first_of.get(layer, layer), []).append(layer)
        return [tuple(groups[first]) for first in sorted(groups, reverse=True)]


@lru_cache(maxsize=64)
def schedule_of(layers: tuple[LayerInfo, ...], sync_every: int, method: str, tied: Sets) -> PartialSchedule:
    """``partial_sync_schedule`` of layers' times; cached, because every step asks."""
    bp, comm = [layer.bp_seconds for layer in layers], [layer.comm_seconds for layer in layers]
    latency = max(float(layer.latency) for layer in layers)
    return partial_sync_schedule(bp, comm, sync_every, method, tied=tied, latency_seconds=latency)


#: Strategies of this file by name; what a name fixes is no setting of it.
STRATEGIES: Mapping[str, Callable[..., Strategy]] = {
    "partial": partial(PartialSync, name="partial"),
    "dreamddp": partial(PartialSync, name="dreamddp", method="dreamddp"),
    "contiguous": partial(PartialSync, name="contiguous", method="optimal"),
    "free_sets": partial(PartialSync, name="free_sets", method="free"),
}
