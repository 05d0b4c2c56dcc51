"""The event loop of a server, and the threads beside it."""

from __future__ import annotations

import asyncio
import sys
import threading
from contextlib import closing

import pytest

from farflung.transports.rpc.event_loop import SWITCH_SECONDS, EventLoopThread


def test_a_thread_gets_the_result_of_a_coroutine_or_its_error() -> None:
    async def name() -> str:
        return threading.current_thread().name

    async def fail() -> None:
        raise KeyError("a defect")

    with closing(EventLoopThread()) as loop:
        assert loop.run(name()) == "control-loop"
        with pytest.raises(KeyError, match="a defect"):
            loop.run(fail())


def test_coroutines_that_run_are_awaited_at_the_end() -> None:
    ended: list[int] = []
    tasks: list[asyncio.Task[None]] = []

    async def linger() -> None:
        await asyncio.sleep(0)
        ended.append(1)

    async def begin() -> None:
        tasks.append(asyncio.create_task(linger()))

    loop = EventLoopThread()
    loop.run(begin())
    loop.close()
    assert ended == [1]


def test_a_thread_that_computes_holds_the_loop_up_for_a_millisecond() -> None:
    sys.setswitchinterval(0.005)
    with closing(EventLoopThread()):
        assert sys.getswitchinterval() == pytest.approx(SWITCH_SECONDS)
