"""The router: every frame of a run that arrives from a peer goes to the part of the step that it is for."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from farflung.messages import router
from farflung.messages.data import Batch
from farflung.messages.schema import Channel
from farflung.messages.wire_form import decode
from farflung.step.context import StepContext
from farflung.step.run_position import RunPosition
from farflung.wire.frames import Frame

__all__ = ["Messages", "Receive", "Router", "new_messages"]

#: Takes a frame from a peer.
Receive = Callable[[str, Frame], None]
#: From types of messages to the parts that take them.
Messages = router.Router[str, None]


def new_messages() -> Messages:
    """Return an empty table of the messages between workers."""
    return Messages(Channel.DATA)


class Router:
    """The receiving side of one worker's part in a run (transport threads)."""

    def __init__(self, context: StepContext, position: RunPosition, messages: Messages, arrays: Mapping[str, Receive]) -> None:
        """``arrays``: kind -> the part that takes frames with arrays, which it decodes itself. ``messages``: all other kinds."""
        self._context, self._position, self._messages, self._arrays = context, position, messages, dict(arrays)

    def receive(self, peer: str, frame: Frame) -> None:
        """Store what came from ``peer``. Waits while a batch of the submitter is farther ahead than the next step.

        Raises:
            WireError: the frame is malformed, or does not belong here.
            CodecError: a payload is malformed.
        """
        context, parts = self._context, self._arrays.get(frame.kind)
        begin = context.trace.now()
        if parts is not None:
            parts(peer, frame)
        else:
            message = decode(frame, Channel.DATA)
            if isinstance(message, Batch):
                self._position.wait_until_due(message)
                begin = context.trace.now()
            self._messages.dispatch(peer, message)
        context.frames.decoded(peer, frame, begin)
