"""The threads that give a link's frames to the handler: one for each lane, so that frames of a lane keep their order."""

from __future__ import annotations

import queue
from collections.abc import Callable

from farflung.errors import FarflungError
from farflung.thread_group import ThreadGroup
from farflung.transports.base import Urgency, failure_of
from farflung.wire.frames import Frame, run_of

__all__ = ["Lanes"]


class Lanes:
    """``handle`` takes frames and may take its time; ``handled`` hears of each one that is over, and with which error."""

    def __init__(
        self,
        peer: str,
        handle: Callable[[str, Frame], None],
        handled: Callable[[int, FarflungError | None], None],
        threads: ThreadGroup,
    ) -> None:
        """``threads`` of the endpoint, which joins them."""
        self._peer, self._handle, self._handled, self._threads = peer, handle, handled, threads
        self._lines: dict[int, queue.SimpleQueue[Frame | None]] = {}
        #: The run of the last frame (see ``LossHandler``).
        self.run = ""

    def put(self, lane: int, frame: Frame) -> None:
        """Let ``frame`` be handled after those of its lane. Not thread-safe."""
        if lane not in self._lines:
            line = self._lines[lane] = queue.SimpleQueue()
            # one thread for each urgency: a handler that waits delays only the frames of its own
            self._threads.spawn(f"frames-{self._peer}-{Urgency(lane).name.lower()}", self._serve, lane, line)
        self._lines[lane].put(frame)

    def stop(self) -> None:
        """Nothing comes any more: threads end when what they have is handled."""
        for line in self._lines.values():
            line.put(None)

    def _serve(self, lane: int, line: queue.SimpleQueue[Frame | None]) -> None:
        while (frame := line.get()) is not None:
            self.run = run_of(frame)
            error = failure_of("the peer", self._handle, self._peer, frame)
            del frame  # its memory is the handler's now
            self._handled(lane, error)
