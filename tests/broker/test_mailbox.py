"""Messages from threads to a coroutine."""

from __future__ import annotations

import asyncio
import threading

import pytest

from farflung.broker.mailbox import Mailbox
from farflung.messages.commands import Beat, Stop

PATIENCE = 60.0


def test_messages_from_other_threads_arrive_in_order() -> None:
    box = Mailbox()
    box.put(Stop(run="before"))

    def put() -> None:
        for number in range(100):
            box.put(Stop(run=f"run-{number}"))
        box.put(None)

    async def receive() -> list[str]:
        box.open()
        threading.Thread(target=put).start()
        found = []
        while isinstance(message := await box.get(PATIENCE), Stop):
            found.append(message.run)
        return found

    assert asyncio.run(receive()) == ["before", *(f"run-{number}" for number in range(100))]


def test_nothing_comes_in_time() -> None:
    box = Mailbox()

    async def receive() -> None:
        box.open()
        with pytest.raises(TimeoutError):
            await box.get(0.0)
        with pytest.raises(TimeoutError):
            await box.get(0.01)
        box.put(Beat())
        assert await box.get(0.0) == Beat()

    asyncio.run(receive())
    box.put(Beat())
    assert box.take() == [Beat()], "the coroutine has ended, and nothing fails"
