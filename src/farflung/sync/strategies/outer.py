"""Strategies with an outer optimizer: replicas train alone, and what they moved (the pseudo-gradient) is averaged and applied.

The register ``anchor`` holds the parameters that all replicas agree on; the pseudo-gradient is ``anchor - parameters``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from farflung.errors import InputError
from farflung.sync.base import NeedsOneStage, Register, Sent, Strategy, StrategyDefaults, Traits
from farflung.sync.commands import Axpy, Clip, Command, Commands, Damp, Exchange, Mean, Program, Update
from farflung.sync.settings import check_codec, check_memory, check_number, check_steps
from farflung.sync.world import World

__all__ = ["STRATEGIES", "Co2", "Diloco", "StreamingDiloco"]

ANCHOR, MOMENTUM = Register(name="anchor", shared=True), Register(name="outer_momentum", shared=True)
MOVED, ARRIVED, GAP = Register(name="pseudo_gradient"), Register(name="arrived"), Register(name="gap", shared=True)
Layers = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Outer(StrategyDefaults):
    """What strategies with an anchor have in common."""

    def init(self, world: World) -> Commands:
        """All agree on the first parameters."""
        self.check(world)
        return (_copy("anchor", "parameters", world.every),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Diloco(_Outer):
    """DiLoCo (Douillard et al. 2023): every ``sync_every`` steps an outer step of SGD with (Nesterov) momentum.

    With ``outer_lr = 1`` and ``outer_momentum = 0`` it is local SGD. ``by_speed`` and ``adapt`` as there.
    """

    sync_every: int = 50
    by_speed: bool = False
    adapt: float = 0.1
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    nesterov: bool = True
    codec: str = "identity"
    memory: str = "none"

    def __post_init__(self) -> None:
        _check_outer(self)
        check_number("adapt", self.adapt, below=1.0)
        check_codec(self.traits)
        check_memory(self.codec, self.memory)

    @property
    def traits(self) -> Traits:
        """Pseudo-gradients, once per period."""
        return Traits(
            name="diloco",
            sent=Sent.PSEUDO_GRADIENTS,
            codec=self.codec,
            memory=self.memory,
            sync_every=self.sync_every,
            registers=(ANCHOR, MOMENTUM, MOVED),
            by_speed=self.by_speed,
            step_gain=self.adapt,
        )

    def step(self, step: int, world: World) -> Program:
        """Update; at the end of a sync round exchange what was moved, step the outer optimizer, and continue from the anchor."""
        every, rests = world.every, world.rests(step, self.sync_every)
        update = () if rests else (Update(layers=every),)
        if (step + 1) % self.sync_every:
            return Program(after=update, rests=rests)
        launch, arrive = _launch(f"{step}", world, every, self.codec, self.memory), _arrive(f"{step}", world, every)
        outer = (*_outer_step(self, every), _copy("parameters", "anchor", every))
        return Program(after=(*update, *launch, arrive, *outer), rests=rests)


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamingDiloco(_Outer):
    """Streaming DiLoCo (Douillard et al. 2025): fragments in turn, exchanged while training continues, in 4 bits.

    The layers are dealt out to ``fragments`` in turn (the paper's strided pattern). Each has a sync round every ``sync_every``
    steps, spread evenly. A fragment's pseudo-gradient leaves at its sync round and is applied ``overlap`` steps later, and the
    parameters become ``mix`` of the local ones and ``1 - mix`` of the new anchor's (``mix`` counts only with an overlap).
    """

    sync_every: int = 50
    fragments: int = 2
    overlap: int = 1
    mix: float = 0.5
    outer_lr: float = 0.7
    outer_momentum: float = 0.9
    nesterov: bool = True
    codec: str = "int4"

    def __post_init__(self) -> None:
        _check_outer(self)
        check_codec(self.traits)
        check_steps("fragments", self.fragments)
        check_steps("overlap", self.overlap, low=0)
        check_number("mix", self.mix, below=1.0)
        if self.overlap >= self.sync_every:
            raise InputError(
                f"overlap = {self.overlap} with sync_every = {self.sync_every}: a fragment must arrive before it leaves again; "
                f"set overlap to at most {self.sync_every - 1}"
            )
        if self.fragments > self.sync_every:
            raise InputError(
                f"fragments = {self.fragments} with sync_every = {self.sync_every}: at most one fragment leaves in a step; "
                f"set fragments to at most {self.sync_every}"
            )

    @property
    def traits(self) -> Traits:
        """Pseudo-gradients, a fragment at a time."""
        return Traits(
            name="streaming_diloco",
            sent=Sent.PSEUDO_GRADIENTS,
            codec=self.codec,
            sync_every=self.sync_every,
            registers=(ANCHOR, MOMENTUM, MOVED),
        )

    def check(self, world: World) -> None:
        """Every fragment has a layer."""
        world.check()
        units = len(_units(world))
        if self.fragments > units:
            also = "" if units == len(world.layers) else " (those that other stages hold, too, count as one)"
            raise InputError(
                f"fragments = {self.fragments} with {units} layers{also}: each fragment needs a layer; "
                f"set fragments to at most {units}"
            )

    def leaving(self, step: int) -> int | None:
        """The fragment whose sync round is at the end of step ``step``."""
        for fragment in range(self.fragments):
            if (step + 1) % self.sync_every == (fragment * self.sync_every // self.fragments) % self.sync_every:
                return fragment
        return None

    def step(self, step: int, world: World) -> Program:
        """Update; then what arrives is applied, and what leaves leaves."""
        commands: list[Command] = [Update(layers=world.every)]
        leaves = self.leaving(step)
        if leaves is not None:
            commands += _launch(f"{step}", world, self._layers(leaves, world), self.codec)
        begun = step - self.overlap
        arrives = self.leaving(begun) if begun >= 0 else None
        if arrives is not None:
            layers, keep = self._layers(arrives, world), self.mix if self.overlap else 0.0
            commands += [_arrive(f"{begun}", world, layers), *_outer_step(self, layers)]
            commands.append(Axpy(into="parameters", x="anchor", layers=layers, a=1.0 - keep, b=keep))
        return Program(after=tuple(commands))

    def _layers(self, fragment: int, world: World) -> Layers:
        return tuple(sorted(layer for unit in _units(world)[fragment :: self.fragments] for layer in unit))


@dataclass(frozen=True, slots=True, kw_only=True)
class Co2(_Outer):
    """CO2 (Sun et al. 2024): an outer step every ``sync_every`` steps whose exchange hides behind the whole next sync round.

    At the end of sync round t replicas send what they moved in it and apply what they moved in sync round t-1, so nobody waits.
    ``penalty``: the stale pseudo-gradient is divided by ``1 + |x_t - x_{t-1}| / |pseudo-gradient|``: the staler the point at
    which it was measured, the less it counts. ``clip``: the outer momentum's norm stays below it (0: not at all). What differs:
    the abstract that we had names penalty and clipping without formulas; both are our reading of gap-aware damping. ``by_speed``
    and ``adapt`` as in local SGD.
    """

    sync_every: int = 10
    by_speed: bool = False
    adapt: float = 0.1
    outer_lr: float = 1.0
    outer_momentum: float = 0.2
    penalty: bool = True
    clip: float = 0.0
    codec: str = "identity"
    memory: str = "none"
    nesterov: ClassVar[bool] = False

    def __post_init__(self) -> None:
        _check_outer(self)
        check_number("adapt", self.adapt, below=1.0)
        check_codec(self.traits)
        check_memory(self.codec, self.memory)
        check_number("clip", self.clip)

    @property
    def traits(self) -> Traits:
        """Pseudo-gradients, once per period; norms are taken over the layers of one stage."""
        damps = NeedsOneStage(reason="damps by norms of a stage", remedy="set penalty = false")
        clips = NeedsOneStage(reason="clips by norms of a stage", remedy="set clip = 0")
        return Traits(
            name="co2",
            sent=Sent.PSEUDO_GRADIENTS,
            codec=self.codec,
            memory=self.memory,
            sync_every=self.sync_every,
            registers=(ANCHOR, MOMENTUM, MOVED, ARRIVED, GAP),
            by_speed=self.by_speed,
            step_gain=self.adapt,
            needs_one_stage=((damps,) if self.penalty else ()) + ((clips,) if self.clip else ()),
        )

    def step(self, step: int, world: World) -> Program:
        """Update; at the end of a sync round apply the exchange of the previous sync round and begin this one's."""
        every, rests = world.every, world.rests(step, self.sync_every)
        update = () if rests else (Update(layers=every),)
        if (step + 1) % self.sync_every:
            return Program(after=update, rests=rests)
        restart = _copy("parameters", "anchor", every)
        begun = step - self.sync_every
        if begun < 0:
            return Program(after=(*update, *_launch(f"{step}", world, every, self.codec, self.memory), restart), rests=rests)
        arrive = _arrive(f"{begun}", world, every, into="arrived")
        damp = (Damp(register="arrived", gap="gap", layers=every),) if self.penalty else ()
        momentum = Axpy(into="outer_momentum", x="arrived", layers=every, b=self.outer_momentum)
        clip = (Clip(register="outer_momentum", layers=every, max_norm=self.clip),) if self.clip else ()
        move = (
            Axpy(into="gap", x="outer_momentum", layers=every, a=-self.outer_lr, b=0.0),
            Axpy(into="anchor", x="gap", layers=every),
        )
        # What this sync round moved is measured from the anchor that it began with, so it leaves before the anchor moves.
        launch = _launch(f"{step}", world, every, self.codec, self.memory)
        return Program(after=(*update, arrive, *launch, *damp, momentum, *clip, *move, restart), rests=rests)


def _check_outer(strategy: Diloco | StreamingDiloco | Co2) -> None:
    check_steps("sync_every", strategy.sync_every)
    check_number("outer_lr", strategy.outer_lr, above=True)
    check_number("outer_momentum", strategy.outer_momentum, below=1.0)


def _units(world: World) -> tuple[Layers, ...]:
    """What is dealt out to fragments: first the layers that other stages hold, too, as one, so that they leave there as well."""
    alone = tuple((layer,) for layer in world.every if layer not in world.shared)
    return ((tuple(world.shared),) if world.shared else ()) + alone


def _copy(into: str, x: str, layers: Layers) -> Axpy:
    return Axpy(into=into, x=x, layers=layers, b=0.0)


def _launch(tag: str, world: World, layers: Layers, codec: str, memory: str = "none") -> Commands:
    """Measure what was moved since the anchor, and begin to send it."""
    return (
        _copy("pseudo_gradient", "anchor", layers),
        Axpy(into="pseudo_gradient", x="parameters", layers=layers, a=-1.0),
        Exchange(
            tag=tag,
            source="pseudo_gradient",
            layers=layers,
            group=world.group,
            codec=codec,
            weights=world.weights,
            memory=memory,
        ),
    )


def _arrive(tag: str, world: World, layers: Layers, into: str = "pseudo_gradient") -> Mean:
    return Mean(tag=tag, into=into, layers=layers, group=world.group, weights=world.weights)


def _outer_step(strategy: Diloco | StreamingDiloco, layers: Layers) -> Commands:
    """SGD on the anchor as ``torch.optim.SGD`` does it: ``m <- mu m + g``; then by ``g + mu m`` (Nesterov) or ``m``."""
    rate, mu = strategy.outer_lr, strategy.outer_momentum
    if mu == 0:
        return (Axpy(into="anchor", x="pseudo_gradient", layers=layers, a=-rate),)
    momentum = Axpy(into="outer_momentum", x="pseudo_gradient", layers=layers, b=mu)
    if not strategy.nesterov:
        return (momentum, Axpy(into="anchor", x="outer_momentum", layers=layers, a=-rate))
    return (
        momentum,
        Axpy(into="anchor", x="pseudo_gradient", layers=layers, a=-rate),
        Axpy(into="anchor", x="outer_momentum", layers=layers, a=-rate * mu),
    )


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {"diloco": Diloco, "streaming_diloco": StreamingDiloco, "co2": Co2}
