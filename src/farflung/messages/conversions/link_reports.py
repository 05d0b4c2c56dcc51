"""What a worker reports of its links after a step, from the traffic of training itself."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from farflung.messages.reports import LinkItem
from farflung.transports.base import LinkStatistics

__all__ = ["LinkReport", "link_items", "links_of"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkReport:
    """``LinkStatistics.alpha``, ``beta`` and ``least`` of the way to a peer, and through which relay it went."""

    alpha: float
    beta: float = 0.0
    least: float = 0.0
    relay: str = ""


def link_items(seen: Mapping[str, LinkStatistics]) -> tuple[LinkItem, ...]:
    """Return the links that traffic measures, for a message."""
    return tuple(
        LinkItem(peer=peer, alpha=float(link.alpha), beta=link.beta, least=link.least, relay=link.relay)
        for peer, link in seen.items()
        if link.beta or link.least
    )


def links_of(items: Iterable[LinkItem]) -> dict[str, LinkReport]:
    """Return what ``link_items`` was given, by peer."""
    return {item.peer: LinkReport(alpha=item.alpha, beta=item.beta, least=item.least, relay=item.relay) for item in items}
