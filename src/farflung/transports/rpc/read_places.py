"""How many messages of callers a server takes from the network at once: each can have as many bytes as its limits allow.

Others wait, and their bytes wait at the caller, but for a window (``channel``). A caller's groups have places of their own. Half
of all places are only for groups that have none yet, so that a few members with several slow messages each can't keep the others
out. For the thread of the event loop only.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager

__all__ = ["Place", "ReadPlaces"]

#: Messages at once: of each group of callers, and of all.
OF_GROUP, OF_ALL = 4, 24


class Place:
    """The place of one message."""

    def __init__(self, leave: Callable[[], None] | None = None) -> None:
        self._leave = leave

    def leave(self) -> None:
        """Give the place to others; a second call does nothing."""
        leave, self._leave = self._leave, None
        if leave is not None:
            leave()


class ReadPlaces:
    """The places of one server."""

    def __init__(self) -> None:
        #: Messages that have a place: all, and of each group.
        self._taken, self._of_group = 0, Counter[str]()
        #: Callers that wait, in order: their groups, and what ends their wait.
        self._waiting: list[tuple[tuple[str, ...], asyncio.Future[None]]] = []

    @asynccontextmanager
    async def place(self, groups: Iterable[str]) -> AsyncIterator[Place]:
        """Wait for a place for a caller of ``groups``; a caller without groups is the owner, or unknown, and needs none."""
        names = tuple(groups)
        if names:
            await self._take(names)
        place = Place((lambda: self._left(names)) if names else None)
        try:
            yield place
        finally:
            place.leave()

    async def _take(self, names: tuple[str, ...]) -> None:
        turn: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((names, turn))
        self._let_in()
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self._waiting.remove((names, turn))
            else:  # it had just got the place
                self._left(names)
            raise

    def _left(self, names: tuple[str, ...]) -> None:
        self._taken -= 1
        self._of_group.subtract(names)
        for name in names:
            if not self._of_group[name]:
                del self._of_group[name]
        self._let_in()

    def _let_in(self) -> None:
        """Give places to those that wait."""
        for waiting in list(self._waiting):
            names, turn = waiting
            if not turn.done() and self._has_place(names):
                self._waiting.remove(waiting)
                self._taken += 1
                self._of_group.update(names)
                turn.set_result(None)

    def _has_place(self, names: tuple[str, ...]) -> bool:
        most = max(self._of_group[name] for name in names)
        return self._taken < (OF_ALL // 2 if most else OF_ALL) and most < OF_GROUP
