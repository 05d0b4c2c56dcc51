"""An asyncio event loop on a thread of its own, for the coroutines of a server whose owner has threads."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Coroutine
from typing import Any, TypeVar

from farflung.thread_group import ThreadGroup

__all__ = ["SWITCH_SECONDS", "EventLoopThread"]

T = TypeVar("T")

#: A thread that computes lets the loop's thread go on after so many seconds.
SWITCH_SECONDS = 0.001
#: Seconds that ``finish`` waits for coroutines that have not ended.
_END_SECONDS = 5.0


class EventLoopThread:
    """The thread begins with the object. Any thread but the loop's own may call."""

    def __init__(self) -> None:
        # for the whole process: a planner that computes would hold up each message by Python's 5 ms
        sys.setswitchinterval(min(sys.getswitchinterval(), SWITCH_SECONDS))
        self._loop = asyncio.new_event_loop()
        self._threads = ThreadGroup()
        self._threads.spawn("control-loop", self._run)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Return the result of ``work``, which runs on the loop.

        Raises:
            Exception: ``work`` raised it.
        """
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    def finish(self) -> None:
        """Wait for the coroutines that still run."""
        self.run(_finish_tasks())

    def close(self) -> None:
        """Wait for the coroutines that still run, and end the thread."""
        self.finish()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._threads.join()
        self._loop.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)  # gRPC asks for the thread's loop
        self._loop.run_forever()


async def _finish_tasks() -> None:
    running = asyncio.all_tasks() - {asyncio.current_task()}
    if running:
        await asyncio.wait(running, timeout=_END_SECONDS)
