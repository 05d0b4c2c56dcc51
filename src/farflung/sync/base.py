"""What a strategy is: settings, a few facts about itself, and a pure function from a step's number to a program.

A strategy keeps no state of its own: what it remembers is in registers, so a checkpoint holds registers and the step.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from farflung.errors import InputError
from farflung.sync.commands import Commands, Program
from farflung.sync.pacing import takes
from farflung.units import Bytes, Seconds

__all__ = [
    "AnyGroup",
    "LayerInfo",
    "Register",
    "Sent",
    "Strategy",
    "World",
    "adds_up",
    "check_clipping",
    "check_codec",
    "check_memory",
    "check_number",
    "check_steps",
    "codec_name",
    "link_share",
    "memory_copies",
    "period",
]

#: Strategies that do more with members' values than to take their mean.
ONE_BY_ONE = frozenset({"robust", "gossip"})
#: Memories of what codecs drop: copies of what is exchanged that a member keeps for itself, and of each member.
REMEMBERED = {
    "none": (0.0, 0.0),
    "error_feedback": (1.0, 0.0),
    "dgc": (2.0, 0.0),
    "difference": (1.0, 1.0),
    "econtrol": (2.0, 1.0),
}
ROUGH = frozenset({"topk", "adatopk", "randomk", "sign", "int2", "lowrank"})


class Sent(StrEnum):
    """What replicas exchange."""

    GRADIENTS = "gradients"
    PARAMETERS = "parameters"
    PSEUDO_GRADIENTS = "pseudo-gradients"
    SCALARS = "scalars"


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerInfo:
    """One layer: bytes of its parameters, seconds of its backward, seconds of its exchange (measured or estimated)."""

    nbytes: Bytes
    bp_seconds: Seconds
    comm_seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """One replica's view: its number, its group's size, the layers, and each member's share of a step's samples (empty: equal).

    ``local_steps``: how many steps of a period each member takes, for strategies ``by_speed`` (empty: all). ``shared``: layers
    with parameters that other stages of the pipeline hold, too: all of them are exchanged in the same steps, in every stage.
    """

    rank: int
    members: int
    layers: tuple[LayerInfo, ...]
    shares: tuple[float, ...] = ()
    local_steps: tuple[int, ...] = ()
    shared: tuple[int, ...] = ()

    @property
    def group(self) -> tuple[int, ...]:
        """All members."""
        return tuple(range(self.members))

    @property
    def every(self) -> tuple[int, ...]:
        """All layers."""
        return tuple(range(len(self.layers)))

    @property
    def weights(self) -> tuple[float, ...]:
        """The weights of means: shares of the samples that members use, or equal."""
        shares = self.shares or tuple(1.0 / self.members for _ in self.group)
        if not self.local_steps:
            return shares
        used = [share * steps for share, steps in zip(shares, self.local_steps, strict=True)]
        return tuple(part / sum(used) for part in used)

    def rests(self, step: int, sync_every: int) -> bool:
        """Whether the own replica takes no local step in step ``step``."""
        return bool(self.local_steps) and not takes(step, self.local_steps[self.rank], sync_every)

    def check(self) -> None:
        """A group has at least two members, and what is said about them fits.

        Raises:
            InputError: it has not, or it does not.
        """
        if self.members < 2:
            raise InputError(
                f"a group of {self.members} has nobody to synchronize with: give the stage 2 replicas or more, "
                "or remove the sync section"
            )
        if not 0 <= self.rank < self.members:
            raise InputError(f"rank {self.rank} in a group of {self.members}: ranks go from 0 to {self.members - 1}")
        if not self.layers:
            raise InputError("a group without layers has nothing to synchronize: give at least one layer")
        if self.shares and len(self.shares) != self.members:
            raise InputError(f"{len(self.shares)} shares for {self.members} members: give one of each, or none for equal shares")
        if self.local_steps and (len(self.local_steps) != self.members or min(self.local_steps) < 1):
            raise InputError(
                f"local steps {list(self.local_steps)} of {self.members} members: each takes at least one in a period"
            )
        if self.shares and not (all(0 < share < math.inf for share in self.shares) and abs(sum(self.shares) - 1) < 1e-6):
            raise InputError(f"shares {list(self.shares)}: each must be above 0, and they must add up to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Register:
    """A tensor per layer that a strategy needs beside parameters and gradient.

    ``shared``: equal on all members between steps, so a member that comes back takes it from any other; others begin at 0.
    """

    name: str
    shared: bool = False


class Strategy(Protocol):
    """When and how replicas agree. Members are frozen dataclasses whose fields are the settings."""

    @property
    def name(self) -> str:
        """As the registry knows it."""

    @property
    def sent(self) -> Sent:
        """What is exchanged."""

    @property
    def codec(self) -> str:
        """The codec of what is exchanged."""

    @property
    def registers(self) -> tuple[Register, ...]:
        """What it needs beside parameters and gradient; each costs up to one copy of the parameters."""

    @property
    def updates_early(self) -> bool:
        """Whether layers are updated while the backward goes on, so that no norm over all gradients is known in time."""

    def check(self, world: World) -> None:
        """Refuse what can't work in ``world``.

        Raises:
            InputError: a setting does not fit the layers or members; the text says what to change.
        """

    def init(self, world: World) -> Commands:
        """Before step 0, and when a member joins: after ``parameters`` are equal everywhere."""

    def step(self, step: int, world: World) -> Program:
        """What replica ``world.rank`` does in step ``step`` (from 0). A pure function."""


def adds_up(strategy: Strategy) -> bool:
    """Whether all that counts of members' values is their weighted mean, so that it can be added up on the way."""
    return strategy.codec == "identity" and strategy.name not in ONE_BY_ONE and strategy.sent is not Sent.SCALARS


def link_share(strategy: Strategy, members: int) -> float:
    """Bytes on a link between two members over the bytes of what is exchanged, before the codec.

    A mean is added up on the way by a server for each piece: a piece goes there and its mean comes back, so a link carries
    ``2 / members``. Where members' values are needed one by one, every member sends all to every other. Single numbers
    count as nothing.
    """
    if strategy.sent is Sent.SCALARS:
        return 0.0
    return 2.0 / members if adds_up(strategy) else 1.0


def period(strategy: Strategy) -> int:
    """Steps in which each layer is exchanged once."""
    return int(getattr(strategy, "sync_every", 1))


def codec_name(text: str) -> str:
    """The name in a setting ``codec`` or ``memory`` (``topk:ratio=33,values=int4``)."""
    return text.partition(":")[0].strip()


def memory_copies(strategy: Strategy, members: int) -> float:
    """Copies of what is exchanged that a member keeps to remember what its codec dropped."""
    sender, receiver = REMEMBERED.get(codec_name(str(getattr(strategy, "memory", "none"))), (0.0, 0.0))
    return sender + receiver * members


class AnyGroup:
    """For strategies that work in any group of two or more and prepare nothing."""

    __slots__ = ()

    def check(self, world: World) -> None:
        """A group has at least two members."""
        world.check()

    def init(self, world: World) -> Commands:
        """Nothing to prepare."""
        self.check(world)
        return ()


def check_steps(name: str, value: object, low: int = 1) -> None:
    """A number of steps, sets, fragments: a whole number of at least ``low``.

    Raises:
        InputError: it is not.
    """
    if not isinstance(value, int) or isinstance(value, bool) or value < low:
        raise InputError(f"{name} = {value!r}: must be a whole number, {low} or more")


def check_number(name: str, value: object, *, low: float = 0.0, below: float = math.inf, above: bool = False) -> None:
    """A number of at least ``low`` (greater than it with ``above``) and less than ``below``.

    Raises:
        InputError: it is not.
    """
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not number or not low <= float(str(value)) < below or (above and float(str(value)) == low):
        most = "" if below == math.inf else f" and below {below:g}"
        raise InputError(f"{name} = {value!r}: must be a number, {'above' if above else 'at least'} {low:g}{most}")


def check_codec(name: str, sent: Sent, codec: object, *, refused: Sequence[str] = ()) -> None:
    """Whether what a strategy sends survives ``codec``.

    Sparse codecs leave out most values, and one or two bits blur them: of a gradient that is an error, of parameters it is ruin.

    Raises:
        InputError: it does not.
    """
    if not isinstance(codec, str) or not codec:
        raise InputError(f"codec = {codec!r}: write a codec's name, e.g. 'identity'")
    if sent is Sent.SCALARS and codec != "identity":
        raise InputError(f"codec = {codec!r}: {name} sends single numbers, which no codec makes smaller; set 'identity'")
    name_of_codec = codec_name(codec)
    if (sent is Sent.PARAMETERS and name_of_codec in ROUGH) or name_of_codec in refused:
        what = sent.value if sent is Sent.PARAMETERS else "single coordinates"
        raise InputError(
            f"codec = {codec!r}: {name} compares or averages {what}, and this codec leaves out or blurs most of them; "
            "set 'identity', 'fp16', 'bf16', 'int8' or 'int4'"
        )


def check_memory(codec: str, memory: object, warm_up: object = 0) -> None:
    """Whether there is something to remember, or to begin gently with.

    Raises:
        InputError: the memory is unknown, or the codec drops nothing.
    """
    check_steps("warm_up", warm_up, low=0)
    if not isinstance(memory, str) or codec_name(memory) not in REMEMBERED:
        raise InputError(f"memory = {memory!r}: known are {', '.join(REMEMBERED)}")
    if codec == "identity" and (codec_name(memory) != "none" or warm_up):
        raise InputError(
            f"memory = {memory!r}, warm_up = {warm_up} with codec = 'identity', which drops nothing: set a codec, or leave "
            "both out"
        )


def check_clipping(strategy: Strategy, max_norm: float | None, *, by_previous_step: bool = False) -> None:
    """Clipping by the norm of all gradients needs all of them before the first update, and where these are averaged the norm of
    the mean: by norms of their own, replicas that began equal would drift apart.

    Raises:
        InputError: the strategy averages gradients, or updates layers earlier, and the previous step's norm was not asked for;
            or it has no gradients.
    """
    if max_norm is not None and strategy.sent is Sent.SCALARS:
        raise InputError(
            f"clip_norm = {max_norm:g}: {strategy.name} estimates gradients from one number of each replica, so there is no norm "
            "to clip by; remove clip_norm, or lower lr"
        )
    if max_norm is None or by_previous_step:
        return
    if strategy.sent is Sent.GRADIENTS:
        raise InputError(
            f"clip_norm = {max_norm:g}: {strategy.name} averages gradients after each replica has taken the norm of its own, so "
            "replicas would clip differently and drift apart; set clip_by = 'previous' (by the norm of the step before), remove "
            "clip_norm, or take strategy = 'exact' (order = 'any' for sums by a ring or a tree), which clips by the norm of the "
            "mean"
        )
    if strategy.updates_early:
        raise InputError(
            f"clip_norm = {max_norm:g}: {strategy.name} updates a layer before all gradients are known; remove clip_norm, "
            "set clip_by = 'previous' (by the norm of the step before), or choose a strategy that updates at the end of a step"
        )
