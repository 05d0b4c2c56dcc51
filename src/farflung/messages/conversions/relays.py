"""The relays that reach a peer, in the form of messages."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from farflung.messages.commands import Routes

__all__ = ["routes_of"]


def routes_of(relays: Mapping[str, Sequence[tuple[str, str]]]) -> Routes:
    """Return peer -> (relay, address), the best relay first."""
    return {peer: tuple(entries) for peer, entries in relays.items()}
