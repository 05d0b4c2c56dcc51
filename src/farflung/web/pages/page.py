"""What a page gets, and what the table of pages says about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from nicegui import Event, ui

from farflung.units import Seconds
from farflung.web.serving.rights import SignedIn
from farflung.web.serving.sign_in import Role
from farflung.web.sources.sources import Sources

__all__ = ["Page", "View"]


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """One page in one browser. ``parameters``: from the path and the query, as text from outside.

    ``make_link`` returns a link that signs in another browser with a role, for a time (``None``: nobody may share).
    ``refreshed`` is emitted when ``sources`` have been read again.
    """

    sources: Sources
    user: SignedIn
    parameters: Mapping[str, str]
    make_link: Callable[[Role, Seconds], str] | None = None
    refreshed: Event[[]] = field(default_factory=Event)

    def follow(self, show: Callable[[], None]) -> None:
        """Call ``show`` now, and whenever ``sources`` have been read again while the browser is there."""
        client = ui.context.client
        show()
        self.refreshed.subscribe(lambda: show() if client.has_socket_connection else None)

    def sees(self, run: str) -> bool:
        """Whether the user sees the details of ``run``: everything, or the runs of the user's own ticket."""
        return self.user.sees_all or run in self.user.runs()

    def may_control(self, run: str) -> bool:
        """Whether the user may stop and continue ``run``."""
        return self.user.client is not None and self.sees(run)

    def may_export(self, run: str) -> bool:
        """Whether the user may download the weights of ``run``."""
        return self.user.role is not Role.VIEWER and self.sees(run)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """A page. ``path`` may have parameters (``/run/{run}``); such a page is not in the navigation.

    ``build`` makes the content inside the frame, with a heading ``h1``. ``needs_broker``: hidden where no broker is.
    ``below``: the path of the entry of the navigation that is marked instead.
    """

    path: str
    title: str
    build: Callable[[View], None]
    needs_broker: bool = False
    below: str = ""

    @property
    def in_navigation(self) -> bool:
        """Whether the header has a link to it."""
        return "{" not in self.path
