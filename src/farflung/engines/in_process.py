"""What engines that compute in the worker's own process share."""

from __future__ import annotations

from typing import Self

__all__ = ["InProcessEngine"]


class InProcessEngine:
    """The part of an ``Engine`` that is about processes, for an engine that has none of its own."""

    def attempt(self, device: str, memory: int, patience: float = 0.0) -> Self:
        """Return this engine: it computes in this process."""
        del device, memory, patience
        return self

    @property
    def lost(self) -> bool:
        """Never: there is no other process."""
        return False

    def end(self) -> None:
        """Nothing: there is no other process."""
