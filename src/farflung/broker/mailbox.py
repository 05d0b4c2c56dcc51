"""Messages from any thread to one coroutine."""

from __future__ import annotations

import asyncio
from collections import deque
from contextlib import suppress

from farflung.messages.schema import Message

__all__ = ["Mailbox"]


class Mailbox:
    """``put`` is for any thread and never waits; ``get`` is for the coroutine that called ``open``."""

    def __init__(self) -> None:
        self._messages: deque[Message | None] = deque()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._waiter: asyncio.Future[None] | None = None

    def open(self) -> None:
        """Messages wake the calling coroutine from now on."""
        self._loop = asyncio.get_running_loop()

    def put(self, message: Message | None) -> None:
        """Queue ``message``."""
        self._messages.append(message)
        if self._loop is not None:
            with suppress(RuntimeError):  # the loop has ended, and so has the coroutine
                self._loop.call_soon_threadsafe(self._wake)

    def take(self) -> list[Message | None]:
        """Return what is queued, without waiting."""
        found = []
        while self._messages:
            found.append(self._messages.popleft())
        return found

    async def get(self, seconds: float) -> Message | None:
        """Return the next message.

        Raises:
            TimeoutError: none came for ``seconds``.
        """
        assert self._loop is not None
        until = self._loop.time() + seconds
        while not self._messages:
            if self._loop.time() >= until:
                raise TimeoutError
            # a future and a timer: a heartbeat of each member takes this way, and asyncio.wait_for costs five times as much
            self._waiter = self._loop.create_future()
            timer = self._loop.call_at(until, self._wake)
            try:
                await self._waiter
            finally:
                timer.cancel()
        return self._messages.popleft()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)
