"""MoDeST: a sample of the members trains in each period, and some of the next sample average what it has learnt.

Source: de Vos et al., "MoDeST: Bridging the Gap between Federated and Decentralized Learning with Decentralized Sampling" (2023).
Who takes part follows from a hash of the period, so nobody asks anybody. What differs: each aggregator averages a part of the
layers, where the paper's aggregators average the same; all members are known and present.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from farflung.errors import InputError
from farflung.sync.base import Sent, Strategy, StrategyDefaults, Traits
from farflung.sync.commands import Command, Commands, Exchange, Mean, Program, Update
from farflung.sync.settings import check_codec, check_steps
from farflung.sync.world import World

__all__ = ["STRATEGIES", "Modest"]

Members = tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Modest(StrategyDefaults):
    """In each period ``sample`` members train; the others rest, and neither send nor take anything.

    At its end those who trained send their parameters to the first ``aggregators`` of the next period's sample. Each of these
    takes the mean of its part of the layers and sends it to all of the next sample, and to the first member: a checkpoint has
    its parameters, and a run that continues with another number of members begins from them.
    """

    sync_every: int = 10
    sample: int = 2
    aggregators: int = 1
    seed: int = 0
    codec: str = "identity"

    def __post_init__(self) -> None:
        check_steps("sync_every", self.sync_every)
        check_steps("sample", self.sample)
        check_steps("aggregators", self.aggregators)
        check_codec(self.traits)
        if self.aggregators > self.sample:
            raise InputError(
                f"aggregators = {self.aggregators} with sample = {self.sample}: they are taken from the next sample; set "
                f"aggregators to at most {self.sample}"
            )

    @property
    def traits(self) -> Traits:
        """Parameters of a sample, once per period."""
        return Traits(
            name="modest",
            sent=Sent.PARAMETERS,
            codec=self.codec,
            sync_every=self.sync_every,
            one_by_one=True,
            sampled=self.sample,
        )

    def check(self, world: World) -> None:
        """There are as many members as a sample has."""
        world.check()
        if self.sample > world.members:
            raise InputError(f"sample = {self.sample} in a group of {world.members}: set it to at most {world.members}")

    def sampled(self, period: int, members: int) -> Members:
        """Who trains in ``period`` of so many members, in the order of their hashes."""

        def key(member: int) -> bytes:
            return hashlib.sha256(f"{self.seed}/{period}/{member}".encode()).digest()

        return tuple(sorted(range(members), key=key)[: self.sample])

    def resting(self, step: int, members: int) -> frozenset[int]:
        """All but the sample of the period."""
        return frozenset(range(members)) - frozenset(self.sampled(step // self.sync_every, members))

    def step(self, step: int, world: World) -> Program:
        """Update, if sampled; at the end of a period the parameters go to the aggregators, and the means to the next sample."""
        rests = world.rank in self.resting(step, world.members)
        commands: list[Command] = [] if rests else [Update(layers=world.every)]
        if (step + 1) % self.sync_every == 0:
            commands += self._passed_on(step, world)
        return Program(after=tuple(commands), rests=rests)

    def end(self, steps: int, world: World) -> Commands:
        """The mean of those who trained last."""
        last = tuple(sorted(self.sampled(steps // self.sync_every, world.members)))
        send = Exchange(tag="end", source="parameters", layers=world.every, group=world.group, senders=last)
        return (send, self._mean("end", world.every, last, world))

    def _passed_on(self, step: int, world: World) -> list[Command]:
        period, rank = step // self.sync_every, world.rank
        trained = tuple(sorted(self.sampled(period, world.members)))
        following = self.sampled(period + 1, world.members)
        takers = tuple(sorted({0, *following}))
        parts = [(member, world.every[place :: self.aggregators]) for place, member in enumerate(following[: self.aggregators])]
        up: list[Command] = []
        means: list[Command] = []
        down: list[Command] = []
        ends: list[Command] = []
        for member, layers in parts:
            if not layers:
                continue
            if rank in (member, *trained):
                up.append(self._send(f"{step}/up/{member}", layers, (member,), trained))
            if rank == member:
                means.append(self._mean(f"{step}/up/{member}", layers, trained, world))
            if rank in takers:
                down.append(self._send(f"{step}/down/{member}", layers, takers, (member,)))
                ends.append(self._mean(f"{step}/down/{member}", layers, (member,), world))
        return [*up, *means, *down, *ends]  # all are sent before anybody waits

    def _send(self, tag: str, layers: Members, group: Members, senders: Members) -> Exchange:
        return Exchange(tag=tag, source="parameters", layers=layers, group=group, codec=self.codec, senders=senders)

    @staticmethod
    def _mean(tag: str, layers: Members, group: Members, world: World) -> Mean:
        total = sum(world.weights[member] for member in group)
        weights = tuple(world.weights[member] / total for member in group)
        return Mean(tag=tag, into="parameters", layers=layers, group=group, weights=weights)


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {"modest": Modest}
