"""A replica that sends wrong gradients under a sync strategy: everything else in the process is as it always is."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import pytest

from farflung.engines.base import Array
from farflung.step.sync.stage_replica import StageReplica

__all__ = ["ATTACKS", "hostile"]

#: A stale gradient is so many steps old.
AGE = 10
#: Attacks by name: what becomes of the gradient ``array``; ``stale`` is an old one.
ATTACKS: dict[str, Callable[[Array, Array], Array]] = {
    "nan": lambda array, stale: np.full_like(array, np.nan),
    "infinite": lambda array, stale: np.full_like(array, np.inf),
    "scaled": lambda array, stale: array * array.dtype.type(1000.0),
    "sign-flipped": lambda array, stale: -array * array.dtype.type(3.0),
    "stale": lambda array, stale: stale,
}


@contextmanager
def hostile(attack: str, rank: int, stages: Sequence[int] = (0,)) -> Iterator[None]:
    """Inside, the replicas number ``rank`` of ``stages`` exchange forged gradients."""
    honest, forge = StageReplica.read, ATTACKS[attack]
    old: defaultdict[tuple[int, str], deque[Array]] = defaultdict(lambda: deque(maxlen=AGE + 1))

    def read(self: StageReplica, register: str, names: Sequence[str]) -> Mapping[str, Array]:
        found = honest(self, register, names)
        if register != "gradient" or self.world.rank != rank or self.stage not in stages:
            return found
        for name, array in found.items():
            old[self.stage, name].append(np.array(array))
        return {name: forge(array, old[self.stage, name][0]) for name, array in found.items()}

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(StageReplica, "read", read)
        yield
