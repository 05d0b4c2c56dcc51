"""Retained states and decisions about steps, between their message items and the types of ``protocol``."""

from __future__ import annotations

from collections.abc import Iterable

from farflung.messages.commands import DecisionItem
from farflung.messages.reports import HoldingItem
from farflung.protocol.holdings import Decision, Holding

__all__ = ["decision_item", "decision_of", "holding_items", "holdings_of"]


def holding_items(holdings: Iterable[Holding]) -> tuple[HoldingItem, ...]:
    """Return ``holdings`` for a message."""
    return tuple(
        HoldingItem(
            step=holding.step,
            committed=holding.committed,
            states=tuple(sorted(holding.states)),
            ready=holding.ready,
            decision=decision_item(holding.decision),
            copied=holding.copied,
        )
        for holding in holdings
    )


def holdings_of(items: Iterable[HoldingItem]) -> list[Holding]:
    """Return what ``holding_items`` was given."""
    return [
        Holding(
            step=item.step,
            committed=item.committed,
            states=frozenset(item.states),
            ready=item.ready,
            decision=decision_of(item.decision),
            copied=item.copied,
        )
        for item in items
    ]


def decision_item(decision: Decision | None) -> DecisionItem | None:
    """Return ``decision`` for a message."""
    return None if decision is None else DecisionItem(applied=decision.applied, scale=decision.scale)


def decision_of(item: DecisionItem | None) -> Decision | None:
    """Return what ``decision_item`` was given."""
    return None if item is None else Decision(applied=item.applied, scale=item.scale)
