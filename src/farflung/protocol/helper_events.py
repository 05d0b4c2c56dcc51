"""The events and commands about helpers of hybrid plans; ``events`` has all others."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["AskHelper", "HelperGone", "HelperMoves"]


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperMoves:
    """``name`` should help another stage of ``run``."""

    run: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AskHelper:
    """Let ``name`` help one of the run's servers."""

    run: str
    name: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HelperGone:
    """``name`` does not help the run any more: notify its servers."""

    run: str
    name: str
    cause: str
