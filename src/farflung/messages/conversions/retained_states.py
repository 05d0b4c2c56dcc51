"""Retained states and decisions about steps, between their message items and the types of ``protocol``."""

from __future__ import annotations

from collections.abc import Iterable

from farflung.messages.commands import DecisionItem
from farflung.messages.reports import RetainedStateItem
from farflung.protocol.retained_states import Decision, RetainedState

__all__ = ["decision_item", "decision_of", "retained_state_items", "retained_states_of"]


def retained_state_items(retained_states: Iterable[RetainedState]) -> tuple[RetainedStateItem, ...]:
    """Return ``retained_states`` for a message."""
    return tuple(
        RetainedStateItem(
            step=retained_state.step,
            committed=retained_state.committed,
            states=tuple(sorted(retained_state.states)),
            ready=retained_state.ready,
            decision=decision_item(retained_state.decision),
            copied=retained_state.copied,
        )
        for retained_state in retained_states
    )


def retained_states_of(items: Iterable[RetainedStateItem]) -> list[RetainedState]:
    """Return what ``retained_state_items`` was given."""
    return [
        RetainedState(
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
