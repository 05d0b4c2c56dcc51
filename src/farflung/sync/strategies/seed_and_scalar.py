"""Zeroth-order fine-tuning: replicas send one number each, and rebuild each other's gradients from seeds.

Source: Zelikman et al., "Just One Byte (per gradient)" (2023), on MeZO's estimate (Malladi et al., 2023). What differs: a
direction is made of random signs (SPSA, Spall 1992) instead of normal numbers, which has the same mean and covariance, a smaller
variance, and the same bits on every machine; and the estimate is a gradient like any other, so the job's optimizer, rates and
decay apply.
Cost of a step: two forward passes, a direction for each member, one copy of the parameters and one layer's gradient.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import ml_dtypes
import numpy as np
import numpy.typing as npt

from farflung.errors import InputError
from farflung.sync.base import Sent, Strategy, StrategyDefaults, Traits, ZerothOrder
from farflung.sync.commands import Command, Probe, Program, Replay, Update
from farflung.sync.settings import check_codec, check_number
from farflung.sync.world import World

__all__ = ["STRATEGIES", "WIDTHS", "SeedAndScalar", "narrow", "seed_of", "widened"]

_NARROW: dict[int, Any] = {8: ml_dtypes.float8_e5m2, 16: np.float16, 32: np.float32}
#: In how many bits a number may be sent.
WIDTHS = frozenset(_NARROW)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedAndScalar(StrategyDefaults):
    """A directional derivative along a seeded direction, on each member's own samples.

    A member measures ``(loss(w + scale z) - loss(w - scale z)) / (2 scale)`` and sends it in ``bits``; the seed follows from step
    and member, so it is not sent. All then build the mean of everybody's estimates and give it to the inner optimizer, layer by
    layer. There is no backward pass. ``bits``: 32 (float32), 16 (float16), or 8 (float8 e5m2: one byte).
    """

    scale: float = 1e-3
    bits: int = 16
    seed: int = 0
    codec: str = "identity"

    def __post_init__(self) -> None:
        check_codec(self.traits)
        check_number("scale", self.scale, above=True)
        if self.bits not in WIDTHS:
            raise InputError(f"bits = {self.bits!r}: a number is sent in 8, 16 or 32 bits")

    @property
    def traits(self) -> Traits:
        """One number of each member, and no backward."""
        measured = ZerothOrder(scale=self.scale, bits=self.bits)
        return Traits(name="seed_and_scalar", sent=Sent.SCALARS, codec=self.codec, zeroth_order=measured)

    def step(self, step: int, world: World) -> Program:
        """Probe along the member's own direction, then update each layer by what all members found."""
        every, group = world.every, world.group
        seeds = tuple(seed_of(self.seed, step, member) for member in group)
        probe = Probe(tag=f"{step}", layers=every, group=group, seed=seeds[world.rank], scale=self.scale, bits=self.bits)
        commands: list[Command] = [probe]
        for layer in every:
            commands.append(Replay(tag=probe.tag, layers=(layer,), group=group, seeds=seeds, weights=world.weights))
            commands.append(Update(layers=(layer,)))
        return Program(after=tuple(commands), backward=False)


def seed_of(seed: int, step: int, member: int) -> int:
    """The seed of a member's direction in a step, 63 bits."""
    digest = hashlib.sha256(f"{seed}/{step}/{member}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1


def narrow(value: float, bits: int) -> npt.NDArray[Any]:
    """``value`` as it is sent, one element of ``bits``; what is too large becomes the largest number that there is."""
    kind = np.dtype(_NARROW[bits])
    most = float(ml_dtypes.finfo(kind).max)  # type: ignore[no-untyped-call]
    return np.asarray([value if math.isnan(value) else min(max(value, -most), most)]).astype(kind)


def widened(data: bytes, bits: int) -> list[float]:
    """The numbers, of ``bits // 8`` bytes each, that ``data`` are."""
    return [float(number) for number in np.frombuffer(data, np.dtype(_NARROW[bits]))]


#: Strategies of this file by name.
STRATEGIES: Mapping[str, type[Strategy]] = {"seed_and_scalar": SeedAndScalar}
