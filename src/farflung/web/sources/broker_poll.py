"""The broker's status as pages see it: one call a second for all browsers, and the table of links from the broker's folder."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from farflung.client.control import ControlClient
from farflung.errors import FarflungError

__all__ = ["BrokerPoll", "ClusterState", "LinkRow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkRow:
    """One direction of a link: seconds one way, bytes per second, ``probe`` or ``training``, the relay if there is one."""

    source: str
    target: str
    alpha: float
    beta: float
    measured_by: str = ""
    relay: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterState:
    """The cluster at one moment. Entries of ``members``, ``gone`` and ``runs`` are those of ``farflung status --json``.

    ``problem``: why the broker does not answer (empty: it does; the rest is then the last that it said).
    """

    version: str = ""
    members: tuple[Mapping[str, Any], ...] = ()
    gone: tuple[Mapping[str, Any], ...] = ()
    joining: tuple[str, ...] = ()
    runs: tuple[Mapping[str, Any], ...] = ()
    links: tuple[LinkRow, ...] = ()
    uplinks: Mapping[str, float] = field(default_factory=dict)
    problem: str = ""


class BrokerPoll:
    """Calls the broker with a client that it opens itself, and opens again after an error. One thread at a time may call."""

    def __init__(self, open_client: Callable[[], ControlClient], links: Path | None) -> None:
        """``open_client`` raises FarflungError. ``links``: the broker's table of links, if its disk is here."""
        self._open = open_client
        self._links = links
        self._seen: tuple[int, int] | None = None
        #: The client with the rights of this dashboard, ``None`` while the broker does not answer.
        self.client: ControlClient | None = None
        self.state = ClusterState(problem="the dashboard connects to the broker")

    def refresh(self) -> None:
        """Ask the broker."""
        try:
            if self.client is None:
                self.client = self._open()
            answer: Mapping[str, Any] = self.client.status()
        except FarflungError as error:
            self.close()
            self.state = replace(self.state, problem=f"the broker does not answer: {error}")
            return
        known: Mapping[str, Any] = {name: tuple(answer[name]) for name in ("members", "gone", "joining", "runs")}
        links, uplinks = self._read_links()
        self.state = ClusterState(**known, version=str(answer["version"]), links=links, uplinks=uplinks)

    def close(self) -> None:
        """End the connection."""
        client, self.client = self.client, None
        if client is not None:
            client.close()

    def _read_links(self) -> tuple[tuple[LinkRow, ...], Mapping[str, float]]:
        """The table of links; what was read last if the file has not changed."""
        try:
            found = None if self._links is None else self._links.stat()
            seen = None if found is None else (found.st_mtime_ns, found.st_size)
            if self._links is None or seen is None or seen == self._seen:
                return self.state.links, self.state.uplinks
            body = json.loads(self._links.read_text(encoding="utf-8"))
            rows = tuple(
                LinkRow(
                    source=str(one["from"]),
                    target=str(one["to"]),
                    alpha=float(one["alpha"]),
                    beta=float(one["beta"]),
                    measured_by=str(one.get("source", "")),
                    relay=str(one.get("relay", "")),
                )
                for one in body["links"]
            )
            uplinks = {str(name): float(rate) for name, rate in body["uplinks"].items()}
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return self.state.links, self.state.uplinks  # the broker replaces the file; the next poll reads it
        self._seen = seen
        return rows, uplinks
