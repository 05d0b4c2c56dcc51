"""How far two engines' results lie apart."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from farflung.engines import Engine, EngineSettings
from tests.support.engine_drive import Array, Stages, captured, equal_cuts, make, module_states

#: A gradient below this share of the largest one is rounding: that of a bias whose effect a softmax takes away.
_NOISE = 1e-6


def deviation(found: Mapping[str, Array], expected: Mapping[str, Array]) -> float:
    """The largest difference, as a share of the largest element of its array."""
    assert found.keys() == expected.keys()
    most = max((float(np.abs(array).max()) for array in expected.values() if array.size), default=0.0)
    shares = [
        float(np.abs(np.subtract(found[name], array, dtype=np.float64)).max()) / float(np.abs(array).max())
        for name, array in expected.items()
        if array.size and float(np.abs(array).max()) > _NOISE * most
    ]
    return max(shares, default=0.0)


class Trained:
    """Losses, gradients and states after a step of ``name`` on ``engine``."""

    def __init__(self, name: str, engine: Engine, stages: int = 1, settings: EngineSettings | None = None) -> None:
        module, batch = make(name)
        graph = captured(name)
        self.stages = Stages(graph, equal_cuts(graph, stages), settings or EngineSettings(seed=3), engine)
        self.stages.load(module_states(module))
        self.losses: Sequence[float] = self.stages.step(0, 2, batch)
        self.gradients = self.stages.gradients()

    def update(self) -> dict[str, Any]:
        """The states after the update."""
        self.stages.update()
        return self.stages.states()
