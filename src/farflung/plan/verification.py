"""Which units of work are verified, and by whom: data and draws, no I/O.

A unit is the forward and backward of one micro-batch in one stage. Other replicas of the stage have the same states, so they get
the same bits. Draws are keyed by a secret of the worker that computes the unit. The broker and the other replicas know the
secret, and the worker itself does not. So it cannot know which units are verified.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from enum import IntEnum
from hashlib import blake2b

from farflung.plan.model import Plan

__all__ = ["Audit", "Digests", "Transfer", "TransferKind", "Unit", "drawn_units", "secret_of", "secrets_for", "verifiers"]


@dataclass(frozen=True, slots=True, order=True)
class Unit:
    """The work on ``micro_batch`` in ``stage`` in ``step``."""

    step: int
    stage: int
    micro_batch: int

    def __str__(self) -> str:
        return f"micro-batch {self.micro_batch} of step {self.step} in stage {self.stage}"


class TransferKind(IntEnum):
    """What a digest is of: values for a later stage, gradients for an earlier stage, or gradients of parameters."""

    VALUES = 0
    GRADIENTS = 1
    PART = 2


@dataclass(frozen=True, slots=True, order=True)
class Transfer:
    """What stage ``source`` gives to stage ``target`` for a micro-batch. Gradients of parameters stay in their stage."""

    source: int
    target: int
    micro_batch: int
    kind: TransferKind


#: The digests of what a worker gave, or of what it took.
Digests = Mapping[Transfer, bytes]


@dataclass(frozen=True, slots=True, kw_only=True)
class Audit:
    """What a verifier found for ``unit``: digests of the inputs that it was sent (empty: none came) and of its own results."""

    unit: Unit
    took: Digests
    gave: Digests


def secret_of(secret: str, device: str) -> str:
    """Return the key of the draws of ``device``; ``secret`` belongs to the run."""
    return blake2b(f"{secret}/{device}".encode(), digest_size=16).hexdigest()


def secrets_for(secret: str, plan: Plan, device: str, kinds: Mapping[str, Hashable]) -> dict[str, str]:
    """Return the keys of the draws of the workers whose units ``device`` may verify.

    ``kinds``: what decides the bits of a worker's results. Workers of another kind than ``device`` round differently.
    """
    others = {other for stage in plan.stages_of(device) for other in stage.devices if other != device}
    return {other: secret_of(secret, other) for other in sorted(others) if kinds.get(other) == kinds.get(device)}


def drawn_units(plan: Plan, step: int, share: float, key: str, device: str) -> Iterator[Unit]:
    """Yield the units of ``device`` in ``step`` that are verified: each one with probability ``share``. ``key``: of its draws."""
    for stage in plan.stages_of(device):
        if len(stage.devices) < 2:
            continue
        for micro_batch in range(len(plan.micro_batch_sizes)):
            if plan.device_of(stage.index, micro_batch) == device:
                unit = Unit(step, stage.index, micro_batch)
                if _number(key, unit) < share:
                    yield unit


def verifiers(plan: Plan, unit: Unit) -> tuple[str, ...]:
    """Return the replicas that can verify ``unit``. The first one does, and the second one decides if they disagree."""
    device = plan.device_of(unit.stage, unit.micro_batch)
    others = [other for other in plan.stages[unit.stage].devices if other != device]
    first = (unit.step + unit.micro_batch) % len(others) if others else 0
    return (*others[first:], *others[:first])


def _number(key: str, unit: Unit) -> float:
    """Return a number from 0 to 1 that nobody without ``key`` can predict."""
    text = f"{key}/{unit.step}/{unit.stage}/{unit.micro_batch}"
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest()) / float(1 << 64)
