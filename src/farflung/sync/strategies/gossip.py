"""Gossip: neighbors on fast links average in pairs; nobody waits for the whole group, and there is no server."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass

from farflung.errors import InputError
from farflung.sync.base import NeedsOneStage, Sent, Strategy, StrategyDefaults, Traits
from farflung.sync.commands import Exchange, Mean, Program, Update
from farflung.sync.settings import check_codec, check_steps
from farflung.sync.world import World

__all__ = ["STRATEGIES", "Gossip", "pairs_of"]

Pairs = tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Gossip(StrategyDefaults):
    """Every ``sync_every`` steps each replica averages its parameters with one neighbor.

    ``links``: pairs of members that may talk, the fast links; empty: all. Pairs are a random matching, the same on all members
    (``seed`` and sync round). ``keep_variance``: averages of models that differ have less variance than the models, which
    slows deep networks down ("Vanishing Variance", Tian et al. 2024); the average's deviation is scaled back, layer by layer.
    """

    sync_every: int = 1
    links: Pairs = ()
    keep_variance: bool = True
    seed: int = 0
    codec: str = "identity"

    def __post_init__(self) -> None:
        check_steps("sync_every", self.sync_every)
        listed = isinstance(self.links, list | tuple)
        if not listed or not all(_is_pair(pair) for pair in self.links):
            raise InputError(f"links = {self.links!r}: write pairs of members' numbers, e.g. [[0, 1], [1, 2]] (empty: all)")
        check_codec(self.traits)

    @property
    def traits(self) -> Traits:
        """Parameters, with one neighbor."""
        variance = NeedsOneStage(reason="scales by variances of a layer", remedy="set keep_variance = false")
        return Traits(
            name="gossip",
            sent=Sent.PARAMETERS,
            codec=self.codec,
            sync_every=self.sync_every,
            one_by_one=True,
            needs_one_stage=(variance,) if self.keep_variance else (),
        )

    def check(self, world: World) -> None:
        """The links reach everybody, so that all models mix."""
        world.check()
        for pair in self.links:
            if len(set(pair)) != 2 or not all(0 <= member < world.members for member in pair):
                raise InputError(f"link {list(pair)}: name two different members from 0 to {world.members - 1}")
        reached = {0}
        for _ in range(world.members if self.links else 0):
            reached |= {member for pair in self.links if reached & set(pair) for member in pair}
        if self.links and len(reached) < world.members:
            alone = min(set(range(world.members)) - reached)
            raise InputError(f"links {[list(p) for p in self.links]}: no chain of links joins members 0 and {alone}; add one")

    def step(self, step: int, world: World) -> Program:
        """Update; in a sync round exchange with the neighbor, if there is one."""
        every, update = world.every, Update(layers=world.every)
        if (step + 1) % self.sync_every:
            return Program(after=(update,))
        pairs = pairs_of(step // self.sync_every, world.members, self.links, self.seed)
        mine = next((pair for pair in pairs if world.rank in pair), None)
        if mine is None:
            return Program(after=(update,))
        tag = f"{step}/{mine[0]}-{mine[1]}"
        both = [world.weights[member] for member in mine]
        weights = tuple(weight / sum(both) for weight in both)
        send = Exchange(tag=tag, source="parameters", layers=every, group=mine, codec=self.codec)
        mean = Mean(tag=tag, into="parameters", layers=every, group=mine, weights=weights, keep_variance=self.keep_variance)
        return Program(after=(update, send, mean))


def _is_pair(pair: object) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and all(type(member) is int for member in pair)


def pairs_of(number: int, members: int, links: Pairs = (), seed: int = 0) -> Pairs:
    """A random matching over ``links`` that can't be extended; everybody computes the same."""
    edges = [(a, b) for a in range(members) for b in range(a + 1, members)]
    if links:
        edges = sorted({(min(pair), max(pair)) for pair in links})
    random.Random(f"{seed}/{number}").shuffle(edges)
    taken: set[int] = set()
    found = []
    for a, b in edges:
        if not taken & {a, b}:
            found.append((a, b))
            taken |= {a, b}
    return tuple(sorted(found))


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {"gossip": Gossip}
