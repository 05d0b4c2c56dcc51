"""Retained states and decisions about steps as plain values, for their way between worker and broker."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farflung.errors import WireError
from farflung.messages.fields import number, texts, whole
from farflung.protocol.holdings import Decision, Holding

__all__ = ["read_decision", "read_holdings", "write_decision", "write_holdings"]

_MAX_HOLDINGS = 256


def write_holdings(holdings: Sequence[Holding]) -> list[dict[str, Any]]:
    """As plain values, for their way to the broker."""
    return [
        {
            "step": holding.step,
            "committed": holding.committed,
            "states": sorted(holding.states),
            "ready": holding.ready,
            "decision": write_decision(holding.decision),
            "copied": holding.copied,
        }
        for holding in holdings
    ]


def read_holdings(value: object) -> list[Holding]:
    """What ``write_holdings`` wrote.

    Raises:
        WireError: it is malformed.
    """
    if not isinstance(value, list) or len(value) > _MAX_HOLDINGS or not all(isinstance(one, dict) for one in value):
        raise WireError(f"bad message: holdings must be a list of at most {_MAX_HOLDINGS} maps, got {value!r:.60}")
    return [
        Holding(
            step=whole(one, "step"),
            committed=whole(one, "committed"),
            states=frozenset(texts(one, "states")),
            ready=one.get("ready") is True,
            decision=read_decision(one.get("decision")),
            copied=one.get("copied") is True,
        )
        for one in value
    ]


def write_decision(decision: Decision | None) -> dict[str, Any] | None:
    """As plain values."""
    return None if decision is None else {"applied": decision.applied, "scale": decision.scale}


def read_decision(value: object) -> Decision | None:
    """Read what ``write_decision`` wrote.

    Raises:
        WireError: it is malformed.
    """
    if value is None:
        return None
    if not isinstance(value, dict):
        raise WireError(f"bad message: a decision must be a map, got {value!r:.60}")
    scale = None if value.get("scale") is None else number(value, "scale")
    return Decision(applied=value.get("applied") is True, scale=scale)
