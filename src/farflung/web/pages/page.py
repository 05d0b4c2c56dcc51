"""What a page gets, and what the table of pages says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from farflung.web.serving.rights import SignedIn
from farflung.web.sources.sources import Sources

__all__ = ["Page", "View"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One page in one browser. ``parameters``: from the path and the query, as text from outside."""

    sources: Sources
    user: SignedIn
    parameters: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page. ``path`` may have parameters (``/run/{run}``); such a page is not in the navigation.

    ``build`` makes the content inside the frame, with a heading ``h1``. ``needs_broker``: hidden where no broker is.
    """

    path: str
    title: str
    build: Callable[[View], None]
    needs_broker: bool = False

    @property
    def in_navigation(self) -> bool:
        """Whether the header has a link to it."""
        return "{" not in self.path
