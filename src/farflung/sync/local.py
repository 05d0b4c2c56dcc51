"""Local SGD: replicas train alone and average parameters now and then, all at once or some layers in each step.

Source: DreamDDP, equations (2) and (5). Parameters are averaged in place after the local update; optimizer state stays local.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import ClassVar

from farflung.errors import InputError
from farflung.sync.base import AnyGroup, LayerInfo, Register, Sent, World, check_codec, check_number, check_steps
from farflung.sync.commands import Command, Exchange, Mean, Program, Update
from farflung.sync.equations import set_of_step, synchronizes
from farflung.sync.partial import METHODS, PartialSchedule, partial_sync_schedule

__all__ = ["LocalSgd", "PartialLocalSgd", "schedule_of"]

Sets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class LocalSgd(AnyGroup):
    """Local SGD with full synchronization: equation (2), all parameters are averaged after every ``sync_every``-th step.

    ``by_speed``: slower replicas take fewer local steps (``pacing``). ``adapt``: these follow measured times where that brings
    more than this part of samples per second (0: they stay as planned).
    """

    sync_every: int = 5
    by_speed: bool = False
    adapt: float = 0.1
    codec: str = "identity"
    name: ClassVar[str] = "local_sgd"
    sent: ClassVar[Sent] = Sent.PARAMETERS
    registers: ClassVar[tuple[Register, ...]] = ()
    updates_early: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_steps("sync_every", self.sync_every)
        check_codec(self.name, self.sent, self.codec)
        check_number("adapt", self.adapt, below=1.0)

    def step(self, step: int, world: World) -> Program:
        """Update; at the end of a period exchange and mean."""
        rests = world.rests(step, self.sync_every)
        update = () if rests else (Update(layers=world.every),)
        if not synchronizes(step, self.sync_every):
            return Program(after=update, rests=rests)
        return Program(after=(*update, *_average(f"{step}", world, world.every, self.codec)), rests=rests)


@dataclass(frozen=True, slots=True, kw_only=True)
class PartialLocalSgd(AnyGroup):
    """Partial synchronization: equation (5), step r averages one set of layers, overlapped with the backward below them.

    ``method`` chooses the sets from the layers' times (``partial_sync_schedule``); ``sets`` gives them instead, one for each step
    of a period, some may be empty. ``fill``: bubble filling, equation (12). ``tied``: groups of layers that share a parameter.
    ``adapt``: sets are chosen anew from measured times where that shortens a period by more than this part (0: never).
    """

    sync_every: int = 5
    method: str = "free"
    fill: bool = False
    adapt: float = 0.0
    sets: Sets = ()
    tied: Sets = ()
    codec: str = "identity"
    label: str = "free_sets"
    sent: ClassVar[Sent] = Sent.PARAMETERS
    registers: ClassVar[tuple[Register, ...]] = ()
    updates_early: ClassVar[bool] = True

    def __post_init__(self) -> None:
        check_steps("sync_every", self.sync_every)
        check_codec(self.name, self.sent, self.codec)
        if self.method not in METHODS:
            raise InputError(f"unknown method {self.method!r}: known are {', '.join(METHODS)}")
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
    def name(self) -> str:
        """As the registry knows it."""
        return self.label

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
        return (found.filled() if self.fill else found.sets)[index]

    def step(self, step: int, world: World) -> Program:
        """Each layer of the set: update and exchange when its backward has ended; the means come at the end of the step."""
        chosen = self.layers_of(step, world)
        ready: dict[int, tuple[Command, ...]] = {}
        means: list[Command] = []
        for group in self._together(chosen, self.tied if self.sets else self._units(world)):
            send, mean = _average(f"{step}/{min(group)}", world, group, self.codec)
            ready[min(group)] = (Update(layers=group), send)
            means.append(mean)
        alone = tuple(layer for layer in world.every if layer not in chosen)
        rest = (Update(layers=alone),) if alone else ()
        return Program(ready=ready, after=(*rest, *means))

    def _units(self, world: World) -> Sets:
        """Groups that are exchanged as one: those of ``tied``, and what other stages hold, too."""
        whole = {layer for group in self.tied if set(group) & set(world.shared) for layer in group} | set(world.shared)
        others = tuple(group for group in self.tied if not whole & set(group))
        return (*others, tuple(sorted(whole))) if len(whole) > 1 else others

    def _together(self, chosen: tuple[int, ...], tied: Sets) -> list[tuple[int, ...]]:
        home = {layer: min(group) for group in tied for layer in group}
        groups: dict[int, list[int]] = {}
        for layer in chosen:
            groups.setdefault(home.get(layer, layer), []).append(layer)
        return [tuple(groups[first]) for first in sorted(groups, reverse=True)]


@lru_cache(maxsize=64)
def schedule_of(layers: tuple[LayerInfo, ...], sync_every: int, method: str, tied: Sets) -> PartialSchedule:
    """``partial_sync_schedule`` of layers' times; kept, because every step asks."""
    bp, comm = [layer.bp_seconds for layer in layers], [layer.comm_seconds for layer in layers]
    return partial_sync_schedule(bp, comm, sync_every, method, tied=tied)


def _average(tag: str, world: World, layers: tuple[int, ...], codec: str) -> tuple[Exchange, Mean]:
    group = world.group
    return (
        Exchange(tag=tag, source="parameters", layers=layers, group=group, codec=codec, weights=world.weights),
        Mean(tag=tag, into="parameters", layers=layers, group=group, weights=world.weights),
    )
