"""The router: every message of a run that arrives from a peer goes to the part of the step that it is for."""

from __future__ import annotations

from farflung.messages.data import Batch
from farflung.messages.router import PeerRouter
from farflung.messages.schema import Message
from farflung.step.context import StepContext
from farflung.step.run_position import RunPosition

__all__ = ["Router"]


class Router:
    """The receiving side of one worker's part in a run (transport threads)."""

    def __init__(self, context: StepContext, position: RunPosition, handlers: PeerRouter) -> None:
        self._context, self._position, self._handlers = context, position, handlers

    def receive(self, peer: str, message: Message, nbytes: int) -> None:
        """Store what came from ``peer``. Waits while a batch of the submitter is farther ahead than the next step.

        ``nbytes``: of the frame (0: not known).

        Raises:
            WireError: the message does not belong here.
            CodecError: a payload is malformed.
        """
        context = self._context
        if isinstance(message, Batch):
            self._position.wait_until_due(message)
        begin = context.trace.now()
        self._handlers.dispatch(peer, message)
        context.frames.decoded(peer, message, nbytes, begin)
