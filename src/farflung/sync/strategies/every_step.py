"""Strategies that exchange gradients: all at once, layer by layer during the backward, one step late, or with faulty members."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar

from farflung.errors import InputError
from farflung.known_names import known_names
from farflung.sync.base import NeedsOneStage, Register, Sent, Strategy, StrategyDefaults, Traits
from farflung.sync.commands import Aggregate, Axpy, Command, Commands, Exchange, Mean, Program, Update
from farflung.sync.layer_sets import merged_layers
from farflung.sync.robust_rules import RULES
from farflung.sync.settings import ROUGH, check_codec, check_memory, check_number, check_steps, check_switch
from farflung.sync.world import LayerInfo, World

__all__ = ["STRATEGIES", "AscWfbp", "DelayedUpdate", "Robust", "Ssgd", "Wfbp"]

Buckets = tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Compressed(StrategyDefaults):
    """What the means of gradients have in common. ``warm_up``: steps in which the codec drops less."""

    codec: str = "identity"
    memory: str = "none"
    warm_up: int = 0
    name: ClassVar[str]
    registers: ClassVar[tuple[Register, ...]] = ()

    def __post_init__(self) -> None:
        check_codec(self.traits)
        check_memory(self.codec, self.memory, self.warm_up)

    @property
    def traits(self) -> Traits:
        """Gradients, in every step."""
        return Traits(name=self.name, sent=Sent.GRADIENTS, codec=self.codec, memory=self.memory, registers=self.registers)


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssgd(_Compressed):
    """Synchronous SGD: the mean of all gradients, then one update. Equation (3) of DreamDDP is its time."""

    name: ClassVar[str] = "ssgd"

    def step(self, step: int, world: World) -> Program:
        """Exchange, mean, update, all after the backward."""
        buckets = (world.every,)
        sends = tuple(_send(step, world, bucket, self) for bucket in buckets)
        return Program(after=(*sends, *_means(step, world, buckets), Update(layers=world.every)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wfbp(_Compressed):
    """Wait-free backpropagation (Poseidon): each layer's gradient leaves when its backward has ended."""

    name: ClassVar[str] = "wfbp"

    def step(self, step: int, world: World) -> Program:
        """One exchange for each layer."""
        return _overlapped(step, world, tuple((layer,) for layer in reversed(world.every)), self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AscWfbp(_Compressed):
    """ASC-WFBP (Shi et al. 2021): WFBP with small tensors merged and several transfers at once.

    ``fitted``: the cost model of the paper (``layer_sets.message_merging``) merges layers; it is fitted to their exchanges.
    ``merge_bytes``: without it, neighbours are merged, in backward order, until a message has as many bytes. ``simultaneous``:
    transfers at once.
    """

    merge_bytes: float = 4e6
    simultaneous: int = 2
    fitted: bool = False
    name: ClassVar[str] = "asc_wfbp"

    def __post_init__(self) -> None:
        _Compressed.__post_init__(self)
        check_number("merge_bytes", self.merge_bytes)
        check_steps("simultaneous", self.simultaneous)
        check_switch("fitted", self.fitted)

    def step(self, step: int, world: World) -> Program:
        """One exchange for each bucket, in turn on each lane."""
        return _overlapped(step, world, self.buckets(world), self, self.simultaneous)

    def buckets(self, world: World) -> tuple[tuple[int, ...], ...]:
        """Layers that travel together, in backward order."""
        if self.fitted:
            return _merged(world.layers, self.simultaneous)
        found: list[tuple[int, ...]] = []
        bucket: list[int] = []
        for layer in reversed(world.every):
            bucket.append(layer)
            if sum(world.layers[item].nbytes for item in bucket) >= self.merge_bytes or layer == 0:
                found.append(tuple(bucket))
                bucket = []
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedUpdate(_Compressed):
    """Delayed Parameter Update: the exchange of a step's gradients hides behind the next step; updates are one step stale.

    Nothing is applied in step 0; the gradients of the last step of a run are dropped.
    """

    name: ClassVar[str] = "delayed"
    registers: ClassVar[tuple[Register, ...]] = (Register(name="outgoing"), Register(name="arrived"))

    def step(self, step: int, world: World) -> Program:
        """End the previous exchange, begin this one, update with what the previous one returned."""
        every, group, weights = world.every, world.group, world.weights
        send: tuple[Command, ...] = (
            Axpy(into="outgoing", x="gradient", b=0.0, layers=every),
            replace(_send(step, world, every, self), tag=f"{step}", source="outgoing"),
        )
        if step == 0:
            return Program(after=send)
        arrive = Mean(tag=f"{step - 1}", into="arrived", layers=every, group=group, weights=weights)
        apply = (Axpy(into="gradient", x="arrived", b=0.0, layers=every), Update(layers=every))
        return Program(after=(arrive, *send, *apply))


@dataclass(frozen=True, slots=True, kw_only=True)
class Robust(StrategyDefaults):
    """Synchronous SGD for groups in which ``faulty`` members may send anything; ``rule`` is one of ``robust_rules.RULES``.

    ``directions``: dimensions of the subspace of ``flag`` (0: half as many as members, as in its paper).
    """

    rule: str = "trimmed_mean"
    faulty: int = 1
    directions: int = 1
    codec: str = "identity"

    def __post_init__(self) -> None:
        check_codec(self.traits, refused=tuple(sorted(ROUGH)))
        check_steps("faulty", self.faulty)
        if self.rule not in RULES:
            raise InputError(f"unknown rule {self.rule!r}: {known_names(self.rule, RULES)}")
        check_steps("directions", self.directions, low=0)
        if self.directions != 1 and self.rule != "flag":
            raise InputError(f"directions = {self.directions} with rule = {self.rule!r}: set rule = 'flag', or remove directions")

    @property
    def traits(self) -> Traits:
        """Gradients, in every step; a rule over whole vectors sees those of one stage only."""
        whole = NeedsOneStage(reason="judges members stage by stage", remedy="set rule = 'trimmed_mean'")
        return Traits(
            name="robust",
            sent=Sent.GRADIENTS,
            codec=self.codec,
            one_by_one=True,
            needs_one_stage=() if self.rule == "trimmed_mean" else (whole,),
            faulty=self.faulty,
        )

    def check(self, world: World) -> None:
        """Most members must be sound."""
        world.check()
        if world.members <= 2 * self.faulty:
            raise InputError(
                f"faulty = {self.faulty} in a group of {world.members}: most members must be sound; take {2 * self.faulty + 1} "
                f"replicas or more, or set faulty to at most {(world.members - 1) // 2}"
            )

    def step(self, step: int, world: World) -> Program:
        """Exchange, aggregate, update."""
        every, group = world.every, world.group
        send = Exchange(tag=f"{step}", source="gradient", layers=every, group=group, codec=self.codec)
        merge = Aggregate(
            tag=f"{step}",
            into="gradient",
            layers=every,
            group=group,
            rule=self.rule,
            faulty=self.faulty,
            directions=self.directions,
        )
        return Program(after=(send, merge, Update(layers=every)))


@lru_cache(maxsize=64)
def _merged(layers: tuple[LayerInfo, ...], simultaneous: int) -> Buckets:
    """``merged_layers``; cached, because every step asks."""
    return merged_layers(layers, simultaneous)


def _send(step: int, world: World, bucket: tuple[int, ...], how: _Compressed, lane: int = 0) -> Exchange:
    return Exchange(
        tag=f"{step}/{min(bucket)}",
        source="gradient",
        layers=bucket,
        group=world.group,
        codec=how.codec,
        lane=lane,
        weights=world.weights,
        memory=how.memory,
        warm=(step, how.warm_up) if step < how.warm_up else (0, 0),
    )


def _means(step: int, world: World, buckets: Buckets) -> Commands:
    group, weights = world.group, world.weights
    return tuple(Mean(tag=f"{step}/{min(b)}", into="gradient", layers=b, group=group, weights=weights) for b in buckets)


def _overlapped(step: int, world: World, buckets: Buckets, how: _Compressed, lanes: int = 1) -> Program:
    """Each bucket leaves when its last backward has ended; all means and the update come at the end."""
    sends = {min(b): (_send(step, world, b, how, number % lanes),) for number, b in enumerate(buckets)}
    return Program(ready=sends, after=(*_means(step, world, buckets), Update(layers=world.every)))


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {
    "ssgd": Ssgd,
    "wfbp": Wfbp,
    "asc_wfbp": AscWfbp,
    "delayed": DelayedUpdate,
    "robust": Robust,
}
