"""Calls of the control plane with messages in place of frames. The method of a call is the kind of its request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, TypeVar

from farflung.messages.schema import Channel, Message, kind_of, type_of
from farflung.messages.wire_form import decode, decode_as, encode

if TYPE_CHECKING:
    from farflung.transports.rpc import RpcClient
    from farflung.transports.rpc.calls import Call
    from farflung.transports.rpc.server import RpcServer
    from farflung.wire.frames import Frame

__all__ = ["ask", "ask_all", "serve", "serve_all"]

_Request = TypeVar("_Request", bound=Message)
_Answer = TypeVar("_Answer", bound=Message)


def ask(client: RpcClient, request: Message, answer: type[_Answer], *, timeout: float = 30.0) -> _Answer:
    """Return the one answer to ``request``. ``timeout``: in seconds.

    Raises:
        ConnectionLost: the broker does not answer.
        FarflungError: the broker refuses.
        WireError: the answer is malformed, or of another type.
    """
    return decode_as(client.call(kind_of(request), encode(request), timeout=timeout), Channel.ANSWERS, answer)


def ask_all(client: RpcClient, request: Message, channel: Channel = Channel.ANSWERS) -> Iterator[Message]:
    """Return the answers to ``request``, which arrive as the iterator advances; errors as ``ask``."""
    for frame in client.stream(kind_of(request), encode(request)):
        yield decode(frame, channel)


def serve(server: RpcServer, request: type[_Request], handler: Callable[[Call, _Request], Message]) -> None:
    """Let ``handler`` answer each ``request`` with one message."""

    def answer(call: Call, frame: Frame) -> Frame:
        return encode(handler(call, decode_as(frame, Channel.REQUESTS, request)))

    server.unary(type_of(request).kind, answer)


def serve_all(server: RpcServer, request: type[_Request], handler: Callable[[Call, _Request], Iterator[Message]]) -> None:
    """Let ``handler`` answer each ``request`` with any number of messages."""

    def answers(call: Call, frame: Frame) -> Iterator[Frame]:
        for message in handler(call, decode_as(frame, Channel.REQUESTS, request)):
            yield encode(message)

    server.stream(type_of(request).kind, answers)
