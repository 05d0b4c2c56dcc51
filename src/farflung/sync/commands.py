"""The instructions of a strategy to an engine: a few commands over named registers, one tensor per layer in each.

Registers that every engine has: ``parameters`` and ``gradient`` (of this step, summed over micro-batches). A strategy names the
others that it needs. Commands name layers by number from the input.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from farflung.sync.unit_matching import Units

__all__ = [
    "Aggregate",
    "Axpy",
    "Clip",
    "Command",
    "Commands",
    "Damp",
    "Exchange",
    "Mean",
    "Probe",
    "Program",
    "Replay",
    "Update",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Update:
    """The inner optimizer applies ``gradient`` to ``parameters`` of ``layers``."""

    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Axpy:
    """``into <- a x + b into``; with ``b = 0`` the old values of ``into`` are not read."""

    into: str
    x: str
    layers: tuple[int, ...]
    a: float = 1.0
    b: float = 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """Begin to send register ``source`` to the others of ``group`` and to take theirs; does not wait.

    Until the command that ends ``tag``, nothing writes ``source`` of ``layers``, so an engine sends in place. Every member counts
    what its ``codec`` made of a value, its own too, so all see the same. ``lane``: exchanges of different lanes
    may be under way at once, those of one lane go in order. ``weights``: given where a ``Mean`` by these weights over the whole
    group is all that ends ``tag``, so that an engine may add up on the way; empty: members' values are needed one by one.
    ``senders``: who sends to ``group``, its member or not (empty: all of it). Members that only take begin the exchange, too.
    ``memory``: what a member remembers of what ``codec`` dropped (``farflung.codecs.memory``), for each layer; ``warm``: (step,
    steps) of a codec's warm-up, in which it drops less.
    """

    tag: str
    source: str
    layers: tuple[int, ...]
    group: tuple[int, ...]
    codec: str = "identity"
    lane: int = 0
    weights: tuple[float, ...] = ()
    memory: str = "none"
    warm: tuple[int, int] = (0, 0)
    senders: tuple[int, ...] = ()

    @property
    def sources(self) -> tuple[int, ...]:
        """Whose values arrive."""
        return self.senders or self.group


@dataclass(frozen=True, slots=True, kw_only=True)
class Mean:
    """Wait for exchange ``tag``; ``into`` becomes the mean of what arrived, by ``weights`` (of ``group``'s members, in order).

    Members that are missing are left out and the weights of the others divided by their sum (``rounds.renormalized``).
    ``keep_variance``: the mean's deviation is scaled, layer by layer, to the members' mean variance. ``units``: groups of
    parameters and axes whose units are first brought into the order that they have at member ``reference`` (``unit_matching``).
    """

    tag: str
    into: str
    layers: tuple[int, ...]
    group: tuple[int, ...]
    weights: tuple[float, ...]
    keep_variance: bool = False
    units: Units = ()
    reference: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregate:
    """Wait for exchange ``tag``; ``into`` becomes what robust ``rule`` makes of the members' vectors (``robust.RULES``).

    The vector of a member is all its ``layers``, one after the other. ``faulty``: how many members may be wrong.
    ``directions``: dimensions of the subspace of ``flag`` (0: half as many as members).
    """

    tag: str
    into: str
    layers: tuple[int, ...]
    group: tuple[int, ...]
    rule: str
    faulty: int
    directions: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Clip:
    """Scale ``register`` so that its norm over all ``layers`` together is at most ``max_norm``."""

    register: str
    layers: tuple[int, ...]
    max_norm: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Damp:
    """Divide ``register`` by ``1 + |gap| / |register|``, norms over all ``layers`` together (nothing where it is 0)."""

    register: str
    gap: str
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Measure ``(loss(w + scale z) - loss(w - scale z)) / (2 scale)`` with z drawn from ``seed``, and send the number to
    ``group``.

    z has a random sign for each number of the parameters of ``layers``; parameters are as before afterwards, bit for bit.
    ``bits``: of the number sent. ``last``: how many of the member's newest numbers are sent, this one included.
    """

    tag: str
    layers: tuple[int, ...]
    group: tuple[int, ...]
    seed: int
    scale: float
    bits: int
    last: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    """Wait for probe ``tag``; ``gradient`` of ``layers`` becomes the sum of ``weight x number x z(seed)`` over the members that
    are present, in order. A member that occurs several times gives its newest numbers, the oldest of them first. Numbers of one
    seed are added before its direction is drawn. Several of one tag take different layers."""

    tag: str
    layers: tuple[int, ...]
    group: tuple[int, ...]
    seeds: tuple[int, ...]
    weights: tuple[float, ...]


Command = Update | Axpy | Exchange | Mean | Aggregate | Clip | Damp | Probe | Replay
Commands = tuple[Command, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """One step of one replica. Commands of a list are begun in order.

    ``ready[l]``: when the backward of layer l has ended, in the last micro-batch of the step (gradients of earlier micro-batches
    are incomplete, so only this backward can hide an exchange). ``after``: when all backwards have ended; the next step begins
    when these are done. ``backward`` false: the step needs losses only. ``rests``: the replica takes no local step, so it reads
    no samples either.
    """

    ready: Mapping[int, Commands] = field(default_factory=dict)
    after: Commands = ()
    backward: bool = True
    rests: bool = False

    @property
    def commands(self) -> Commands:
        """All commands in the order of the backward pass."""
        early = [command for layer in sorted(self.ready, reverse=True) for command in self.ready[layer]]
        return (*early, *self.after)

    @property
    def exchanges(self) -> tuple[Exchange, ...]:
        """What is sent in this step."""
        return tuple(command for command in self.commands if isinstance(command, Exchange))
