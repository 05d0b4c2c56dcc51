"""What a strategy is: settings, a record of traits, and a pure function from a step's number to a program.

A strategy keeps no state of its own: its state is in registers, so a checkpoint holds registers and the step. Everything outside
this package treats strategies alike: it reads ``Traits`` and carries out programs, and never asks which strategy it has.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from farflung.errors import InputError
from farflung.sync.commands import Commands, Exchange, Mean, Program
from farflung.sync.unit_matching import Units
from farflung.sync.world import Vector, World

__all__ = [
    "MEMORY_COPIES",
    "LayerCodecs",
    "NeedsOneStage",
    "Register",
    "Sent",
    "Strategy",
    "StrategyDefaults",
    "Traits",
    "ZerothOrder",
    "check_clipping",
    "check_loss_scale",
    "codec_name",
]

#: Copies of what is exchanged that a memory of dropped values needs: for the member itself, and for each member.
MEMORY_COPIES = {
    "none": (0.0, 0.0),
    "error_feedback": (1.0, 0.0),
    "dgc": (2.0, 0.0),
    "difference": (1.0, 1.0),
    "econtrol": (2.0, 1.0),
}


class Sent(StrEnum):
    """What replicas exchange."""

    GRADIENTS = "gradients"
    PARAMETERS = "parameters"
    PSEUDO_GRADIENTS = "pseudo-gradients"
    SCALARS = "scalars"


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """A tensor per layer that a strategy needs beside parameters and gradient.

    ``shared``: equal on all members between steps, so a returning member takes it from any other; others begin at 0.
    """

    name: str
    shared: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NeedsOneStage:
    """What makes a strategy treat parameters that two stages share differently in each, and the setting that avoids it."""

    reason: str
    remedy: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ZerothOrder:
    """How a strategy without a backward measures: parameters move by ``scale``, the slope is sent in ``bits``.

    ``most``: the largest number of slopes that a member sends at once.
    """

    scale: float
    bits: int
    most: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCodecs:
    """How a strategy chooses a codec for each layer, from errors that all members measure.

    ``options``: what may be chosen, the first of them plain, the second the one that layers begin with. ``error``: the largest
    relative error (2-norm) of all layers together; 0: that of the second option. ``every``: steps between two choices.
    """

    options: tuple[str, ...]
    error: float
    every: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What the rest of the program must know of a strategy with its settings.

    ``name``: as in the job. ``sent``, ``codec``, ``memory``: what replicas exchange, through which codec, and what remembers
    what the codec dropped. ``sync_every``: steps in which each layer is exchanged once. ``registers``: each costs up to one copy
    of the parameters. ``updates_early``: layers are updated during the backward, so no norm over all gradients is known in time.
    ``one_by_one``: members' values are needed one by one, not only their weighted mean.

    ``by_speed``: slower replicas may take fewer local steps of a period. ``step_gain``: these counts follow measured times where
    that brings more than this part of samples per second (0: they stay as planned). ``asynchronous``: a local step of a slower
    replica lasts until its next one begins, and its loss counts in the step in which it ends. ``sampled``: how many members take
    part in a period (0: all). ``layer_gain``: the layers of each step follow measured times where that shortens a period by more
    than this part (0: they stay). ``fixed_sets``: the layers of each step of a period, where the user gave them.
    ``layer_codecs``: given where each layer has a codec of its own.
    ``zeroth_order``: given where a step has no backward. ``needs_one_stage``: settings that forbid parameters that two stages
    share. ``faulty``: members whose gradients may be anything, NaN included. ``least_steps``: a run of fewer steps ends with the
    parameters that it began with, whatever the members' speeds. ``plain_sgd``: an update must be ``-lr`` times its gradient, so
    that members can build each other's local steps. ``shares_gradients``: gradients of some members go into updates of others,
    beside parameters. ``units``: groups of parameters and axes along which the same units lie, all of a group in one stage.
    """

    name: str
    sent: Sent
    codec: str = "identity"
    memory: str = "none"
    sync_every: int = 1
    registers: tuple[Register, ...] = ()
    updates_early: bool = False
    one_by_one: bool = False
    by_speed: bool = False
    step_gain: float = 0.0
    asynchronous: bool = False
    sampled: int = 0
    layer_gain: float = 0.0
    fixed_sets: tuple[tuple[int, ...], ...] = ()
    layer_codecs: LayerCodecs | None = None
    zeroth_order: ZerothOrder | None = None
    needs_one_stage: tuple[NeedsOneStage, ...] = ()
    faulty: int = 0
    least_steps: int = 1
    plain_sgd: bool = False
    shares_gradients: bool = False
    units: Units = ()

    @property
    def drifts(self) -> bool:
        """Whether replicas hold parameters of their own between exchanges."""
        return self.sent in (Sent.PARAMETERS, Sent.PSEUDO_GRADIENTS) or (self.sent is Sent.SCALARS and self.sync_every > 1)

    @property
    def adds_up(self) -> bool:
        """Whether only the weighted mean of members' values counts, so that it can be added up on the way.

        Such an exchange tolerates missing members, because one server of each piece decides for all who counts.
        """
        return self.codec == "identity" and not self.one_by_one and self.sent is not Sent.SCALARS

    def link_share(self, members: int) -> float:
        """Bytes on a link between two members over the bytes of what is exchanged, before the codec.

        A mean is added up on the way by a server for each piece: a piece goes there and its mean comes back, so a link carries
        ``2 / members``. Where values are needed one by one, every member sends all to every other. Where a sample takes part,
        a copy of each of its members goes to an aggregator and one comes back, on any of the links, and one goes to the first
        member if it is not in the next sample. Scalars count as nothing.
        """
        if self.sent is Sent.SCALARS:
            return 0.0
        if self.sampled:
            return (2.0 * self.sampled + 1.0 - self.sampled / members) / (members * (members - 1))
        return 2.0 / members if self.adds_up else 1.0

    def memory_copies(self, members: int) -> float:
        """Copies of what is exchanged that a member stores to remember what its codec dropped."""
        sender, receiver = MEMORY_COPIES.get(codec_name(self.memory), (0.0, 0.0))
        return sender + receiver * members


class Strategy(Protocol):
    """When and how replicas agree. Members are frozen dataclasses whose fields are the settings."""

    @property
    def traits(self) -> Traits:
        """What the rest of the program must know; follows from the settings alone."""

    def check(self, world: World) -> None:
        """Refuse what can't work in ``world``.

        Raises:
            InputError: a setting does not fit the layers or members; the message names what to change.
        """

    def init(self, world: World) -> Commands:
        """Before step 0, and when a member joins: after ``parameters`` are equal everywhere."""

    def step(self, step: int, world: World) -> Program:
        """What replica ``world.rank`` does in step ``step`` (from 0). A pure function."""

    def resting(self, step: int, members: int) -> frozenset[int]:
        """The members of so many that take no local step in step ``step``, whatever their speed; a pure function."""

    def end(self, steps: int, world: World) -> Commands:
        """After ``steps`` steps, the last ones, where replicas hold parameters of their own: makes them equal everywhere."""

    def follow(self, world: World, measured: Sequence[Vector]) -> World:
        """Return ``world`` with measured times where they ask for another program, else ``world`` itself.

        ``measured``: ``World.times`` as every member measured them, in any order; zeros: a member measured nothing. Asked at the
        ends of periods where ``traits.layer_gain`` is above 0; all members decide from the same numbers.
        """


class StrategyDefaults:
    """For strategies that work in any group of two or more, prepare nothing and follow no measured times."""

    __slots__ = ()

    def check(self, world: World) -> None:
        """A group has at least two members."""
        world.check()

    def init(self, world: World) -> Commands:
        """Nothing to prepare."""
        self.check(world)
        return ()

    def resting(self, step: int, members: int) -> frozenset[int]:
        """Nobody rests."""
        del step, members
        return frozenset()

    def end(self, steps: int, world: World) -> Commands:
        """The mean of all replicas' parameters."""
        del steps
        every, group, weights = world.every, world.group, world.weights
        begin = Exchange(tag="end", source="parameters", layers=every, group=group, weights=weights)
        return (begin, Mean(tag="end", into="parameters", layers=every, group=group, weights=weights))

    def follow(self, world: World, measured: Sequence[Vector]) -> World:
        """The world stays as it is."""
        del measured
        return world


def codec_name(text: str) -> str:
    """The name in a setting ``codec`` or ``memory`` (``topk:ratio=33,values=int4``)."""
    return text.partition(":")[0].strip()


def check_clipping(traits: Traits, max_norm: float | None, *, by_previous_step: bool = False) -> None:
    """Check that a strategy can clip by the norm of all gradients.

    That needs all gradients before the first update, and the norm of the mean where gradients are averaged: by norms of their
    own, replicas that began equal would drift apart.

    Raises:
        InputError: the strategy averages gradients, or updates layers earlier, and the previous step's norm was not asked for;
            or it has no gradients.
    """
    if max_norm is not None and traits.sent is Sent.SCALARS:
        raise InputError(
            f"clip_norm = {max_norm:g}: {traits.name} estimates gradients from one number of each replica, so there is no norm "
            "to clip by; remove clip_norm, or lower lr"
        )
    if max_norm is None or by_previous_step:
        return
    if traits.sent is Sent.GRADIENTS:
        raise InputError(
            f"clip_norm = {max_norm:g}: {traits.name} averages gradients after each replica has taken the norm of its own, so "
            "replicas would clip differently and drift apart; set clip_by = 'previous' (by the norm of the step before), remove "
            "clip_norm, or take strategy = 'exact' (order = 'any' for sums by a ring or a tree), which clips by the norm of the "
            "mean"
        )
    if traits.updates_early:
        raise InputError(
            f"clip_norm = {max_norm:g}: {traits.name} updates a layer before all gradients are known; remove clip_norm, "
            "set clip_by = 'previous' (by the norm of the step before), or choose a strategy that updates at the end of a step"
        )


def check_loss_scale(traits: Traits) -> None:
    """Check that a replica can leave out its own update in a step in which its gradients overflow in float16.

    That needs all gradients of the replica before its first update, and updates by its own gradients, in the step that made them.

    Raises:
        InputError: the strategy exchanges gradients or losses, updates layers earlier, or its local steps last several steps.
    """
    instead = "; set strategy = 'diloco' or 'local_sgd', or precision = 'bf16'"
    if not traits.drifts or traits.shares_gradients or traits.zeroth_order is not None:
        raise InputError(
            f"precision = 'fp16': {traits.name} gives what one replica computes to all, so an overflow would reach all{instead}, "
            "or take strategy = 'exact'"
        )
    if traits.updates_early:
        raise InputError(f"precision = 'fp16': {traits.name} updates a layer before all gradients are known{instead}")
    if traits.asynchronous:
        raise InputError(f"precision = 'fp16': {traits.name} counts a local step in a later step than it began{instead}")
