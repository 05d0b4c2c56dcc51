"""The router: every frame of a run that arrives from a peer goes to the part of the step that it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farflung.step.context import StepContext
from farflung.step.run_position import RunPosition
from farflung.wire.frames import Frame

__all__ = ["Receive", "Router"]

#: Takes a frame from a peer.
Receive = Callable[[str, Frame], None]


class Router:
    """The receiving side of one worker's part in a run (transport threads)."""

    def __init__(self, context: StepContext, position: RunPosition, routes: Mapping[str, Receive]) -> None:
        """``routes``: kind of frame -> the part that takes it. All other kinds are values and messages of the step."""
        self._context, self._position, self._routes = context, position, dict(routes)

    def receive(self, peer: str, frame: Frame) -> None:
        """Store what came from ``peer``. Waits while a batch of the submitter is farther ahead than the next step.

        Raises:
            WireError: the frame is malformed, or does not belong here.
            CodecError: a payload is malformed.
        """
        context = self._context
        if frame.kind == "data":
            self._position.wait_until_due(frame.header)
        begin = context.trace.now()
        self._routes.get(frame.kind, context.transfer.receive)(peer, frame)
        context.frames.decoded(peer, frame, begin)
