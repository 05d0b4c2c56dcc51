"""The router: one table from message types to handlers for each end of a channel."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

from farflung.errors import WireError
from farflung.messages.schema import Channel, Message, kind_of, type_of
from farflung.messages.wire_form import decode
from farflung.wire.frames import Frame

__all__ = ["PeerRouter", "Router"]

_Sender = TypeVar("_Sender")
_Result = TypeVar("_Result")
_Kind = TypeVar("_Kind", bound=Message)


class Router(Generic[_Sender, _Result]):
    """Decodes the frames of one channel and gives each message to the handler of its type.

    ``_Sender``: what a handler gets of the sender, such as the name of a peer, or a call. Register all handlers before the first
    frame comes: the table has no lock.
    """

    def __init__(self, channel: Channel, otherwise: Callable[[_Sender, Any], _Result] | None = None) -> None:
        """``otherwise``: the handler of messages whose type has none."""
        self.channel, self._otherwise = channel, otherwise
        self._handlers: dict[type[Message], Callable[[_Sender, Any], _Result]] = {}

    def register(self, message_type: type[_Kind], handler: Callable[[_Sender, _Kind], _Result]) -> None:
        """Give messages of ``message_type`` to ``handler``.

        Raises:
            ValueError: the type has a handler already, or does not travel on this channel.
        """
        facts = type_of(message_type)
        if message_type in self._handlers:
            raise ValueError(f"{facts.kind!r} has a handler already")
        if self.channel not in facts.channels:
            raise ValueError(f"{facts.kind!r} does not travel on {self.channel.value}")
        self._handlers[message_type] = handler

    def receive(self, sender: _Sender, frame: Frame) -> _Result:
        """Decode ``frame`` and handle its message.

        Raises:
            WireError: the frame is malformed, or nothing here handles its type.
        """
        return self.dispatch(sender, decode(frame, self.channel))

    def dispatch(self, sender: _Sender, message: Message) -> _Result:
        """Handle ``message``.

        Raises:
            WireError: nothing here handles its type.
        """
        handler = self._handlers.get(type(message), self._otherwise)
        if handler is None:
            known = ", ".join(sorted(type_of(one).kind for one in self._handlers))
            raise WireError(f"{kind_of(message)!r} is not expected here: this end of {self.channel.value} takes {known}")
        return handler(sender, message)


class PeerRouter(Router[str, None]):
    """The router for messages of peers, on the data plane. A handler gets the peer's name; transport threads call it."""

    def __init__(self) -> None:
        super().__init__(Channel.DATA)
