"""A worker's session without a connection: the call and the frames that a coroutine of the broker serves."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from farflung.security import Caller
from farflung.wire.frames import Frame


class QuietCall:
    """A call of a worker called w that stays."""

    caller = Caller(name="w", role="worker")
    address = "192.0.2.1:4711"
    active = True

    async def on_thread(self, work: Callable[[], Any]) -> Any:
        return work()


class Said:
    """What a worker says before it says goodbye; what it is sent."""

    def __init__(self, frames: Iterable[Frame]) -> None:
        self.frames, self.sent = list(frames), list[str]()

    async def receive(self) -> Frame | None:
        return self.frames.pop(0) if self.frames else None

    async def send(self, frame: Frame) -> None:
        self.sent.append(frame.kind)
