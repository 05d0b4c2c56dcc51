"""FedKSeed: zeroth-order tuning with local steps, along directions of a fixed pool of seeds; replicas exchange numbers alone.

Source: Qin et al., "Federated Full-Parameter Tuning of Billion-Sized Language Models with Communication Cost under 18 Kilobytes"
(2024), FedKSeed. What differs: a hash chooses the seed of each local step, so no seed is sent; directions are random signs
(``seed_and_scalar``); all replicas take part in each round; replicas keep the model of the last round and add to it what the
numbers of one round stand for, where the paper adds the sums of all rounds to the first model. FedKSeed-Pro is left out: seeds
drawn by importance would depend on floating-point sums that may differ between machines.
Cost of a local step: two forward passes and a direction. Cost of a round's end: a direction for each different seed of the round,
at most as many as the pool has. Memory: two copies of the parameters and one layer's gradient.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass

from farflung.errors import InputError
from farflung.sync.base import Register, Sent, Strategy, StrategyDefaults, Traits, ZerothOrder
from farflung.sync.commands import Axpy, Command, Commands, Probe, Program, Replay, Update
from farflung.sync.settings import check_codec, check_number, check_steps
from farflung.sync.strategies.seed_and_scalar import WIDTHS
from farflung.sync.world import World

__all__ = ["STRATEGIES", "FedKSeed"]

_ANCHOR = Register(name="anchor", shared=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class FedKSeed(StrategyDefaults):
    """Rounds of ``sync_every`` local steps, each along one of ``candidates`` directions (K in the paper).

    A member measures the slope along a direction and moves its parameters against it. At the end of a round it sends its slopes.
    All members then go back to the model of the last round, and apply everybody's slopes, the sum for each seed at once.
    """

    sync_every: int = 10
    candidates: int = 4096
    scale: float = 1e-3
    bits: int = 16
    seed: int = 0
    codec: str = "identity"

    def __post_init__(self) -> None:
        check_steps("sync_every", self.sync_every)
        check_steps("candidates", self.candidates)
        check_codec(self.traits)
        check_number("scale", self.scale, above=True)
        if self.bits not in WIDTHS:
            raise InputError(f"bits = {self.bits!r}: a number is sent in 8, 16 or 32 bits")

    @property
    def traits(self) -> Traits:
        """Numbers, once per round, and no backward."""
        return Traits(
            name="fedkseed",
            sent=Sent.SCALARS,
            codec=self.codec,
            sync_every=self.sync_every,
            registers=(_ANCHOR,),
            zeroth_order=ZerothOrder(scale=self.scale, bits=self.bits, most=self.sync_every),
            least_steps=self.sync_every,
            plain_sgd=True,
        )

    def init(self, world: World) -> Commands:
        """All agree on the first parameters."""
        self.check(world)
        return (Axpy(into="anchor", x="parameters", layers=world.every, b=0.0),)

    def step(self, step: int, world: World) -> Program:
        """A local step; or at the end of a round, the steps of all members from the model of the last round."""
        rank, every = world.rank, world.every
        ends = (step + 1) % self.sync_every == 0
        group = world.group if ends else (rank,)
        probe = Probe(
            tag=f"{step}" if ends else f"{step}/{rank}",
            layers=every,
            group=group,
            seed=self.seed_of(step, rank),
            scale=self.scale,
            bits=self.bits,
            last=self.sync_every if ends else 1,
        )
        steps = range(step + 1 - self.sync_every, step + 1) if ends else range(step, step + 1)
        members = tuple(member for member in group for _ in steps)
        seeds = tuple(self.seed_of(taken, member) for member in group for taken in steps)
        weights = tuple(world.weights[member] if ends else 1.0 for member in members)
        back = Axpy(into="parameters", x="anchor", layers=every, b=0.0)
        commands: list[Command] = [probe, *((back,) if ends else ())]
        for layer in every:
            commands.append(Replay(tag=probe.tag, layers=(layer,), group=members, seeds=seeds, weights=weights))
            commands.append(Update(layers=(layer,)))
        if ends:
            commands.append(Axpy(into="anchor", x="parameters", layers=every, b=0.0))
        return Program(after=tuple(commands), backward=False)

    def end(self, steps: int, world: World) -> Commands:
        """The model of the last round: local steps after it are dropped."""
        del steps
        return (Axpy(into="parameters", x="anchor", layers=world.every, b=0.0),)

    def seed_of(self, step: int, member: int) -> int:
        """The seed of a member's local step, 63 bits: that of one of the candidates."""
        drawn = _hashed(f"{self.seed}/{step}/{member}") % self.candidates
        return _hashed(f"{self.seed}/candidate/{drawn}")


def _hashed(text: str) -> int:
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little") >> 1


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {"fedkseed": FedKSeed}
