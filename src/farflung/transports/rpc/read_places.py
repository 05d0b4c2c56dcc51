"""How many messages of callers a server takes from the network at once: each can have as many bytes as its limits allow.

Others wait, and their bytes wait at the caller, but for a window (``channel``). A caller's groups have places of their own, so
that one member can't keep the others out. For the thread of the event loop only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field

__all__ = ["Place", "ReadPlaces"]

#: Messages at once: of each group of callers, and of all.
OF_GROUP, OF_ALL = 4, 24


@dataclass(slots=True)
class _Group:
    """Places of a group. ``users``: calls that have one, or wait for one."""

    places: asyncio.Semaphore = field(default_factory=lambda: asyncio.Semaphore(OF_GROUP))
    users: int = 0


class Place:
    """The place of one message."""

    def __init__(self, held: list[asyncio.Semaphore]) -> None:
        self._held = held

    def leave(self) -> None:
        """Give the place to others; a second call does nothing."""
        while self._held:
            self._held.pop().release()


class ReadPlaces:
    """The places of one server."""

    def __init__(self) -> None:
        self._all = asyncio.Semaphore(OF_ALL)
        self._groups: dict[str, _Group] = {}

    @asynccontextmanager
    async def place(self, groups: Iterable[str]) -> AsyncIterator[Place]:
        """Wait for a place for a caller of ``groups``; a caller without groups is the owner, or unknown, and needs none."""
        held: list[asyncio.Semaphore] = []
        place = Place(held)
        async with AsyncExitStack() as left:
            left.callback(place.leave)
            for name in groups:
                await self._take(self._enter(left, name).places, held)
            if held:
                await self._take(self._all, held)
            yield place

    def _enter(self, left: AsyncExitStack, name: str) -> _Group:
        group = self._groups.setdefault(name, _Group())
        group.users += 1
        left.callback(self._left, name, group)
        return group

    def _left(self, name: str, group: _Group) -> None:
        group.users -= 1
        if not group.users:
            del self._groups[name]

    async def _take(self, places: asyncio.Semaphore, held: list[asyncio.Semaphore]) -> None:
        await places.acquire()
        held.append(places)
