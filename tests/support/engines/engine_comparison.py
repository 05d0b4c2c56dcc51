"""A step of a model on an engine, to compare engines with each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farflung.engines import Engine, EngineSettings
from tests.support.engines.engine_drive import Stages, captured, equal_cuts, make, module_states


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
