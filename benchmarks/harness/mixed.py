"""An engine made of several: each stage of a pipeline is opened on the next one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farflung.engines import Engine, EngineSettings, StageRunner
from farflung.graph.cut import SubGraph

__all__ = ["MixedEngine"]


class MixedEngine:
    """Stage ``n`` computes on engine ``n`` modulo their number; what belongs to no stage, on the first."""

    def __init__(self, engines: Sequence[Engine]) -> None:
        self._engines = tuple(engines)

    def attempt(self, device: str, memory: int, patience: float = 0.0) -> MixedEngine:
        """This engine: it computes in this process."""
        del device, memory, patience
        return self

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: StageRunner | None = None) -> StageRunner:
        """See ``Engine.open``."""
        return self._engines[subgraph.stage % len(self._engines)].open(subgraph, settings, share)

    def version(self) -> str:
        """The versions of all."""
        return " and ".join(engine.version() for engine in self._engines)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._engines[0], name)
