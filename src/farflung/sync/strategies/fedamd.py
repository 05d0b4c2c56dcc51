"""FedAMD: in each round some replicas are anchors, which measure a gradient on many samples; the others, the miners, train by it.

Source: Wu et al., "Anchor Sampling for Federated Learning with Partial Client Participation" (FedAMD, 2023). Who is what follows
from a hash of the round, so nobody asks anybody. What differs: a miner corrects each gradient by the difference of the common and
its own last anchor gradient (as SCAFFOLD does), because an engine computes one gradient per step, and the paper's correction
needs two of the same samples; ``anchors`` is a number, where the paper draws each replica with a probability; all replicas are
known and present, and each receives every mean.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from farflung.errors import InputError
from farflung.sync.base import Register, Sent, Strategy, StrategyDefaults, Traits
from farflung.sync.commands import Axpy, Command, Commands, Exchange, Mean, Program, Update
from farflung.sync.settings import check_codec, check_steps
from farflung.sync.world import World

__all__ = ["STRATEGIES", "FedAmd"]

Members = tuple[int, ...]
#: The own anchor gradient; the mean of those of all members; the one that is measured or that has arrived.
_OWN, _COMMON, _FRESH = Register(name="own_anchor"), Register(name="anchor_mean", shared=True), Register(name="fresh_anchor")


@dataclass(frozen=True, slots=True, kw_only=True)
class FedAmd(StrategyDefaults):
    """Rounds of ``sync_every`` steps, in each of which ``sample`` members take part (0: all), ``anchors`` of them as anchors.

    An anchor keeps its parameters and averages its gradients of all steps of the round: its anchor gradient. A miner updates by
    ``gradient - own anchor gradient + mean of all anchor gradients``. At the end all take the mean of the miners' parameters, and
    anchors send by how much their anchor gradients have changed. An anchor gradient is 0 until it has been measured.
    """

    sync_every: int = 10
    anchors: int = 1
    sample: int = 0
    seed: int = 0
    codec: str = "identity"

    def __post_init__(self) -> None:
        check_steps("sync_every", self.sync_every)
        check_steps("anchors", self.anchors)
        check_steps("sample", self.sample, low=0)
        check_codec(self.traits)

    @property
    def traits(self) -> Traits:
        """Parameters of miners and gradients of anchors, once per round."""
        return Traits(
            name="fedamd",
            sent=Sent.PARAMETERS,
            codec=self.codec,
            sync_every=self.sync_every,
            registers=(_OWN, _COMMON, _FRESH),
            one_by_one=True,
            shares_gradients=True,
        )

    def check(self, world: World) -> None:
        """There are as many members as take part, and one of them is a miner."""
        world.check()
        if self.sample > world.members:
            raise InputError(f"sample = {self.sample} in a group of {world.members}: set it to at most {world.members}")
        taking = self.sample or world.members
        if self.anchors >= taking:
            raise InputError(
                f"anchors = {self.anchors} of {taking} replicas that take part: at least one must train; set anchors to at most "
                f"{taking - 1}" + (", or raise sample" if self.sample else "")
            )

    def roles(self, step: int, members: int) -> tuple[Members, Members]:
        """The anchors and the miners of the round of ``step``, of so many members."""
        number = step // self.sync_every

        def key(member: int) -> bytes:
            return hashlib.sha256(f"{self.seed}/{number}/{member}".encode()).digest()

        drawn = sorted(range(members), key=key)[: self.sample or members]
        return tuple(sorted(drawn[: self.anchors])), tuple(sorted(drawn[self.anchors :]))

    def resting(self, step: int, members: int) -> frozenset[int]:
        """All that are neither anchors nor miners."""
        anchors, miners = self.roles(step, members)
        return frozenset(range(members)) - {*anchors, *miners}

    def step(self, step: int, world: World) -> Program:
        """An anchor adds to its new anchor gradient, a miner updates; at the end of a round both send."""
        every, place = world.every, step % self.sync_every
        anchors, miners = self.roles(step, world.members)
        commands: list[Command] = []
        if world.rank in anchors:
            share, keep = 1.0 / self.sync_every, 1.0 if place else 0.0
            commands.append(Axpy(into="fresh_anchor", x="gradient", layers=every, a=share, b=keep))
        elif world.rank in miners:
            commands += [
                Axpy(into="gradient", x="anchor_mean", layers=every),
                Axpy(into="gradient", x="own_anchor", layers=every, a=-1.0),
                Update(layers=every),
            ]
        if place == self.sync_every - 1:
            commands += self._exchanged(step, world, anchors, miners)
        return Program(after=tuple(commands), rests=world.rank not in (*anchors, *miners))

    def end(self, steps: int, world: World) -> Commands:
        """The mean of the miners of the round under way."""
        _, miners = self.roles(steps, world.members)
        return (_send("end", "parameters", miners, world, self.codec), _mean("end", "parameters", miners, world))

    def _exchanged(self, step: int, world: World, anchors: Members, miners: Members) -> Commands:
        """All take the miners' mean, and add the anchors' changes to the mean of all anchor gradients."""
        every, is_anchor = world.every, world.rank in anchors
        change = (Axpy(into="fresh_anchor", x="own_anchor", layers=every, a=-1.0),) if is_anchor else ()
        renew = (Axpy(into="own_anchor", x="fresh_anchor", layers=every),) if is_anchor else ()
        counted = sum(world.weights[member] for member in anchors)
        return (
            *change,
            _send(f"{step}/miners", "parameters", miners, world, self.codec),
            _send(f"{step}/anchors", "fresh_anchor", anchors, world),  # a codec's errors would add up in the mean
            *renew,
            _mean(f"{step}/miners", "parameters", miners, world),
            _mean(f"{step}/anchors", "fresh_anchor", anchors, world),
            Axpy(into="anchor_mean", x="fresh_anchor", layers=every, a=counted),
        )


def _send(tag: str, source: str, senders: Members, world: World, codec: str = "identity") -> Exchange:
    return Exchange(tag=tag, source=source, layers=world.every, group=world.group, codec=codec, senders=senders)


def _mean(tag: str, into: str, group: Members, world: World) -> Mean:
    total = sum(world.weights[member] for member in group)
    weights = tuple(world.weights[member] / total for member in group)
    return Mean(tag=tag, into=into, layers=world.every, group=group, weights=weights)


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {"fedamd": FedAmd}
