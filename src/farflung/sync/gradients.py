"""Strategies that exchange gradients: all at once, layer by layer during the backward, one step late, or with faulty members."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Protocol

from farflung.errors import InputError
from farflung.sync.base import ROUGH, AnyGroup, Register, Sent, World, check_codec, check_memory, check_number, check_steps
from farflung.sync.commands import Aggregate, Axpy, Command, Commands, Exchange, Mean, Program, Update
from farflung.sync.robust import RULES

__all__ = ["AscWfbp", "DelayedUpdate", "Robust", "Ssgd", "Wfbp"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ssgd(AnyGroup):
    """Synchronous SGD: the mean of all gradients, then one update. Equation (3) of DreamDDP is its time."""

    codec: str = "identity"
    memory: str = "none"
    warm_up: int = 0
    name: ClassVar[str] = "ssgd"
    sent: ClassVar[Sent] = Sent.GRADIENTS
    registers: ClassVar[tuple[Register, ...]] = ()
    updates_early: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_codec(self.name, self.sent, self.codec)
        check_memory(self.codec, self.memory, self.warm_up)

    def step(self, step: int, world: World) -> Program:
        """Exchange, mean, update, all after the backward."""
        buckets = (world.every,)
        sends = tuple(_send(step, world, bucket, self) for bucket in buckets)
        return Program(after=(*sends, *_means(step, world, buckets), Update(layers=world.every)))


@dataclass(frozen=True, slots=True, kw_only=True)
class Wfbp(AnyGroup):
    """Wait-free backpropagation (Poseidon): each layer's gradient leaves when its backward has ended."""

    codec: str = "identity"
    memory: str = "none"
    warm_up: int = 0
    name: ClassVar[str] = "wfbp"
    sent: ClassVar[Sent] = Sent.GRADIENTS
    registers: ClassVar[tuple[Register, ...]] = ()
    updates_early: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_codec(self.name, self.sent, self.codec)
        check_memory(self.codec, self.memory, self.warm_up)

    def step(self, step: int, world: World) -> Program:
        """One exchange for each layer."""
        return _overlapped(step, world, tuple((layer,) for layer in reversed(world.every)), self)


@dataclass(frozen=True, slots=True, kw_only=True)
class AscWfbp(AnyGroup):
    """ASC-WFBP (Shi et al. 2021): WFBP with small tensors merged and several transfers at once.

    ``merge_bytes``: neighbours are merged, in backward order, until a message has as many bytes. ``simultaneous``: transfers
    at once. What differs: the paper chooses both from a fitted cost model; here they are settings.
    """

    codec: str = "identity"
    memory: str = "none"
    warm_up: int = 0
    merge_bytes: float = 4e6
    simultaneous: int = 2
    name: ClassVar[str] = "asc_wfbp"
    sent: ClassVar[Sent] = Sent.GRADIENTS
    registers: ClassVar[tuple[Register, ...]] = ()
    updates_early: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_codec(self.name, self.sent, self.codec)
        check_memory(self.codec, self.memory, self.warm_up)
        check_number("merge_bytes", self.merge_bytes)
        check_steps("simultaneous", self.simultaneous)

    def step(self, step: int, world: World) -> Program:
        """One exchange for each bucket, in turn on each lane."""
        return _overlapped(step, world, self.buckets(world), self, self.simultaneous)

    def buckets(self, world: World) -> tuple[tuple[int, ...], ...]:
        """Layers that travel together, in backward order."""
        found: list[tuple[int, ...]] = []
        bucket: list[int] = []
        for layer in reversed(world.every):
            bucket.append(layer)
            if sum(world.layers[item].nbytes for item in bucket) >= self.merge_bytes or layer == 0:
                found.append(tuple(bucket))
                bucket = []
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DelayedUpdate(AnyGroup):
    """Delayed Parameter Update: the exchange of a step's gradients hides behind the next step; updates are one step stale.

    Nothing is applied in step 0; the gradients of the last step of a run are dropped.
    """

    codec: str = "identity"
    memory: str = "none"
    warm_up: int = 0
    name: ClassVar[str] = "delayed"
    sent: ClassVar[Sent] = Sent.GRADIENTS
    registers: ClassVar[tuple[Register, ...]] = (Register(name="outgoing"), Register(name="arrived"))
    updates_early: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_codec(self.name, self.sent, self.codec)
        check_memory(self.codec, self.memory, self.warm_up)

    def step(self, step: int, world: World) -> Program:
        """End the previous exchange, begin this one, update with what the previous brought."""
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
class Robust(AnyGroup):
    """Synchronous SGD for groups in which ``faulty`` members may send anything; ``rule`` is one of ``robust.RULES``."""

    rule: str = "trimmed_mean"
    faulty: int = 1
    codec: str = "identity"
    name: ClassVar[str] = "robust"
    sent: ClassVar[Sent] = Sent.GRADIENTS
    registers: ClassVar[tuple[Register, ...]] = ()
    updates_early: ClassVar[bool] = False

    def __post_init__(self) -> None:
        check_codec(self.name, self.sent, self.codec, refused=tuple(sorted(ROUGH)))
        check_steps("faulty", self.faulty)
        if self.rule not in RULES:
            raise InputError(f"unknown rule {self.rule!r}: known are {', '.join(RULES)}")

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
        merge = Aggregate(tag=f"{step}", into="gradient", layers=every, group=group, rule=self.rule, faulty=self.faulty)
        return Program(after=(send, merge, Update(layers=every)))


Buckets = tuple[tuple[int, ...], ...]


class _Compressed(Protocol):
    """The settings of a strategy that say how gradients are compressed."""

    @property
    def codec(self) -> str: ...

    @property
    def memory(self) -> str: ...

    @property
    def warm_up(self) -> int: ...


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
