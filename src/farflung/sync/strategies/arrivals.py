"""Strategies without a barrier: replicas contribute when they have finished, and slower ones later (decision 53).

Sources: Nguyen et al., "Federated Learning with Buffered Asynchronous Aggregation" (FedBuff, 2022); Fraboni et al., "A General
Theory for Federated Optimization with Asynchronous and Heterogeneous Clients Updates" (FedFix, 2023); Li et al., "FedCompass"
(2023). A contribution is what a replica moved in some local steps (``origin - parameters``). Every replica stores the common
model (``anchor``) and adds every contribution to it, in the same order. What differs from the papers: there is no server; a
contribution arrives in the step that the planned speeds foretell, and not when its bytes come, so a run is reproducible.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import ClassVar

from farflung.errors import InputError
from farflung.sync.base import Register, Sent, Strategy, StrategyDefaults, Traits
from farflung.sync.commands import Axpy, Command, Commands, Exchange, Mean, Program, Update
from farflung.sync.local_step_counts import begun, step_of
from farflung.sync.settings import check_codec, check_number, check_steps
from farflung.sync.world import World

__all__ = ["STRATEGIES", "FedBuff", "FedCompass", "FedFix"]

_REGISTERS = (
    Register(name="anchor", shared=True),
    Register(name="origin"),
    Register(name="pseudo_gradient"),
    Register(name="arrived"),
    Register(name="buffer", shared=True),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrivals(StrategyDefaults):
    """What strategies without a barrier have in common. A contribution that is finished in a step counts ``overlap`` steps later.

    Slower replicas take fewer of the steps (``World.local_steps``). A local step lasts until the next one begins.
    """

    sync_every: int = 10
    overlap: int = 0
    outer_lr: float = 1.0
    codec: str = "identity"
    name: ClassVar[str]

    def __post_init__(self) -> None:
        check_steps("sync_every", self.sync_every)
        check_steps("overlap", self.overlap, low=0)
        check_number("outer_lr", self.outer_lr, above=True)
        check_codec(self.traits)
        if self.overlap >= self.sync_every:
            raise InputError(
                f"overlap = {self.overlap} with sync_every = {self.sync_every}: a contribution must arrive before the next one "
                f"leaves; set overlap to at most {self.sync_every - 1}"
            )

    @property
    def traits(self) -> Traits:
        """Pseudo-gradients, each member's when it has finished."""
        return Traits(
            name=self.name,
            sent=Sent.PSEUDO_GRADIENTS,
            codec=self.codec,
            sync_every=self.sync_every,
            registers=_REGISTERS,
            one_by_one=True,
            by_speed=True,
            asynchronous=True,
            least_steps=self.first_move + self.overlap,
        )

    @property
    def first_move(self) -> int:
        """Steps before the common model can move, without ``overlap``."""
        return self.sync_every

    def init(self, world: World) -> Commands:
        """All begin with the same model."""
        self.check(world)
        return (_copy("anchor", "parameters", world), _copy("origin", "parameters", world))

    def end(self, steps: int, world: World) -> Commands:
        """The common model; local steps that have not been contributed are dropped."""
        del steps
        return (_copy("parameters", "anchor", world),)

    def step(self, step: int, world: World) -> Program:
        """Update; send what is finished; add what has arrived; a replica that has sent continues from the common model."""
        every, rests = world.every, world.rests(step, self.sync_every)
        commands: list[Command] = [] if rests else [Update(layers=every)]
        finished = self.finished(step, world)
        if world.rank in finished:
            commands += [
                _copy("pseudo_gradient", "origin", world),
                Axpy(into="pseudo_gradient", x="parameters", layers=every, a=-1.0),
            ]
        commands += [
            Exchange(
                tag=f"{step}/{member}",
                source="pseudo_gradient",
                layers=every,
                group=world.group,
                codec=self.codec,
                senders=(member,),
            )
            for member in finished
        ]
        commands += self._taken(step, world)
        if world.rank in finished:
            commands += [_copy("parameters", "anchor", world), _copy("origin", "anchor", world)]
        return Program(after=tuple(commands), rests=rests)

    def _taken(self, step: int, world: World) -> Iterator[Command]:
        """What has arrived by the end of ``step``, in the order of ranks."""
        every, sent = world.every, step - self.overlap
        moved = (
            Axpy(into="anchor", x="buffer", layers=every, a=-self.outer_lr),
            Axpy(into="buffer", x="buffer", layers=every, a=0.0, b=0.0),
        )
        for place, member in enumerate(self.finished(sent, world)):
            yield Mean(tag=f"{sent}/{member}", into="arrived", layers=every, group=(member,), weights=(1.0,))
            yield Axpy(into="buffer", x="arrived", layers=every, a=self.weight(sent, place, member, world))
            if self.is_full(sent, place, world):
                yield from moved
        if self.closes(step):
            yield from moved

    def finished(self, step: int, world: World) -> tuple[int, ...]:
        """The members whose contribution is finished at the end of ``step``, in order."""
        found = []
        for member in world.group if step >= 0 else ():
            ended = self._ended(step, member, world)
            if ended % self.size(member, world) == 0 and ended > self._ended(step - 1, member, world):
                found.append(member)
        return tuple(found)

    def size(self, member: int, world: World) -> int:
        """Local steps of a contribution of ``member``."""
        del member, world
        return self.sync_every

    @abstractmethod
    def weight(self, sent: int, place: int, member: int, world: World) -> float:
        """By what the contribution that ``member`` sent in step ``sent`` is multiplied; ``place``: among those of that step."""

    def is_full(self, sent: int, place: int, world: World) -> bool:
        """Whether the common model moves after contribution ``place`` of those that were sent in step ``sent``."""
        del sent, place, world
        return False

    def closes(self, step: int) -> bool:
        """Whether the common model moves at the end of ``step``."""
        del step
        return False

    def _rate(self, member: int, world: World) -> int:
        """Local steps of ``member`` in a period."""
        return world.local_steps[member] if world.local_steps else self.sync_every

    def _ended(self, step: int, member: int, world: World) -> int:
        """Local steps of ``member`` that have ended when ``step`` is over: all but one of those begun in the next one."""
        return begun(step + 1, self._rate(member, world), self.sync_every) - 1 if step >= 0 else 0

    def _share(self, member: int, world: World) -> float:
        """The samples of ``member`` in a step over the mean member's."""
        return world.shares[member] * world.members if world.shares else 1.0


@dataclass(frozen=True, slots=True, kw_only=True)
class FedBuff(_Arrivals):
    """FedBuff: the common model moves by the mean of every ``buffer`` contributions (0: half as many as members, rounded up).

    Each contribution is ``sync_every`` local steps, and counts by ``(1 + staleness) ** -decay``: staleness is how often the
    common model has moved since the member began. The paper has ``decay = 0.5``.
    """

    buffer: int = 0
    decay: float = 0.5
    name: ClassVar[str] = "fedbuff"

    def __post_init__(self) -> None:
        _Arrivals.__post_init__(self)
        check_steps("buffer", self.buffer, low=0)
        check_number("decay", self.decay)

    def weight(self, sent: int, place: int, member: int, world: World) -> float:
        """A ``buffer``-th, less where it is stale."""
        many = self._many(world)
        moved = (self._arrived(sent - 1, world) + place) // many
        first = self._ended(sent, member, world) - self.sync_every
        start = step_of(first, self._rate(member, world), self.sync_every) - 1  # the step in which it took the model
        seen = self._arrived(start - self.overlap, world) // many if first else 0
        return self._share(member, world) / many * float((1 + moved - seen) ** -self.decay)

    def is_full(self, sent: int, place: int, world: World) -> bool:
        """After each ``buffer``-th arrival."""
        return (self._arrived(sent - 1, world) + place + 1) % self._many(world) == 0

    def _many(self, world: World) -> int:
        return self.buffer or -(-world.members // 2)

    def _arrived(self, sent: int, world: World) -> int:
        """Contributions that were sent up to step ``sent``."""
        return sum(self._ended(sent, member, world) // self.sync_every for member in world.group)


@dataclass(frozen=True, slots=True, kw_only=True)
class FedFix(_Arrivals):
    """FedFix: the common model moves every ``window`` steps (0: ``sync_every``), by all contributions that have arrived.

    A contribution counts by the time that it took over the window, so that members which contribute seldom count as much as
    others (the paper's unbiased weights). What differs: a member that has finished does not wait for the end of the window.
    """

    window: int = 0
    name: ClassVar[str] = "fedfix"

    def __post_init__(self) -> None:
        _Arrivals.__post_init__(self)
        check_steps("window", self.window, low=0)

    def weight(self, sent: int, place: int, member: int, world: World) -> float:
        """The member's share of the samples, by the steps that the contribution took."""
        del sent, place
        took = self.sync_every * self.sync_every / self._rate(member, world)
        return self._share(member, world) / world.members * took / (self.window or self.sync_every)

    def closes(self, step: int) -> bool:
        """At the end of a window, when its contributions have arrived."""
        return (step + 1 - self.overlap) % (self.window or self.sync_every) == 0

    @property
    def first_move(self) -> int:
        """The end of the first window in which a contribution can arrive."""
        window = self.window or self.sync_every
        return -(-self.sync_every // window) * window


@dataclass(frozen=True, slots=True, kw_only=True)
class FedCompass(_Arrivals):
    """FedCompass: the numbers of local steps follow speeds, so that contributions arrive in groups.

    The fastest members contribute ``sync_every`` local steps at the end of each period, others as many as they finish in it, if
    these are at least ``least`` (0: half of ``sync_every``). Slower ones contribute at the end of the first period in which they
    have finished as many, together with the fast ones. Contributions count by their samples and, where they took k periods, by
    ``k ** -decay``. With ``overlap = 0`` a group waits for its own contributions and continues from them.
    """

    least: int = 0
    decay: float = 0.5
    name: ClassVar[str] = "fedcompass"

    def __post_init__(self) -> None:
        _Arrivals.__post_init__(self)
        check_steps("least", self.least, low=0)
        check_number("decay", self.decay)
        if self.least > self.sync_every:
            raise InputError(
                f"least = {self.least} with sync_every = {self.sync_every}: the fastest member finishes as many in a period; set "
                f"least to at most {self.sync_every}"
            )

    def size(self, member: int, world: World) -> int:
        """All local steps of as many periods as it takes."""
        return self._periods(member, world) * self._rate(member, world)

    def weight(self, sent: int, place: int, member: int, world: World) -> float:
        """The member's part of the samples in these periods, less where they are several."""
        del sent, place
        periods = self._periods(member, world)
        return world.weights[member] * periods * float(periods**-self.decay)

    def closes(self, step: int) -> bool:
        """When the contributions of a period have arrived."""
        return (step + 1 - self.overlap) % self.sync_every == 0

    def _periods(self, member: int, world: World) -> int:
        return math.ceil((self.least or -(-self.sync_every // 2)) / self._rate(member, world))


def _copy(into: str, x: str, world: World) -> Axpy:
    return Axpy(into=into, x=x, layers=world.every, b=0.0)


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {"fedbuff": FedBuff, "fedfix": FedFix, "fedcompass": FedCompass}
