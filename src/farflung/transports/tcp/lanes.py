"""The threads that give a link's frames to the handler: one for each lane, so that frames of a lane keep their order."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable

from farflung.errors import FarflungError
from farflung.transports.base import Urgency
from farflung.wire.frames import Frame

__all__ = ["Lanes"]


class Lanes:
    """``handle`` takes frames and may take its time; ``handled`` hears of each one that is over, and with which error."""

    def __init__(
        self, peer: str, handle: Callable[[str, Frame], None], handled: Callable[[int, FarflungError | None], None]
    ) -> None:
        self._peer, self._handle, self._handled = peer, handle, handled
        self._lines: dict[int, queue.SimpleQueue[Frame | None]] = {}
        #: The run of the last frame (see ``LossHandler``).
        self.run = ""

    def put(self, lane: int, frame: Frame) -> None:
        """Let ``frame`` be handled after those of its lane. Not thread-safe."""
        if lane not in self._lines:
            line = self._lines[lane] = queue.SimpleQueue()
            name = f"frames-{self._peer}-{Urgency(lane).name.lower()}"
            threading.Thread(target=self._serve, args=(lane, line), name=name, daemon=True).start()
        self._lines[lane].put(frame)

    def stop(self) -> None:
        """Nothing comes any more: threads end when what they have is handled."""
        for line in self._lines.values():
            line.put(None)

    def _serve(self, lane: int, line: queue.SimpleQueue[Frame | None]) -> None:
        while (frame := line.get()) is not None:
            error: FarflungError | None = None
            self.run = str(frame.header.get("run", ""))
            try:
                self._handle(self._peer, frame)
            except FarflungError as raised:
                error = raised
            except Exception as raised:  # noqa: BLE001 - a handler's defect belongs to the sender's future, the lane must live
                error = FarflungError(f"the peer failed inside: {type(raised).__name__}: {raised}")
            del frame  # its memory is the handler's now
            self._handled(lane, error)
