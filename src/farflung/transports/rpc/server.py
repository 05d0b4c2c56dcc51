"""The serving end of the control plane: named methods that take and give frames, over gRPC.

Four kinds: ``unary`` (frame in, frame out), ``stream`` (frame in, frames out), ``session`` (frames both ways, on a thread) and
``coroutine`` (frames both ways, without a thread). A server may be a door, for those who have only a ticket yet (gRPC for Python
can't ask for a certificate without insisting on it): whoever finds its address may call, so it takes small messages, few calls
of one connection, and breaks off those that last. ``front`` limits the connections.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncIterator, Awaitable, Callable, Generator, Iterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from farflung.errors import ConnectionLost, FarflungError, InputError, SecurityError
from farflung.security import Caller, Credentials
from farflung.transports.config import Insecure, TransportConfig
from farflung.transports.connection_gate import PassOn
from farflung.transports.rpc.calls import Call, CallPlaces, FrameStream, RpcContext
from farflung.transports.rpc.channel import (
    RPC_LIMITS,
    RPC_PREFIX,
    SERVER_WINDOW,
    CallThreads,
    add_port,
    caller_of,
    channel_options,
    join_frame,
    max_message,
)
from farflung.transports.rpc.event_loop import EventLoopThread
from farflung.transports.rpc.failures import abort
from farflung.transports.rpc.front import HANDSHAKE_SECONDS, FrontLimits, RpcFront
from farflung.transports.rpc.read_places import ReadPlaces
from farflung.transports.tcp.sockets import open_server
from farflung.wire.frames import Frame, FrameLimits, decode_frame

__all__ = [
    "CoroutineHandler",
    "RpcHost",
    "RpcServer",
    "SessionHandler",
    "StreamHandler",
    "UnaryHandler",
]

#: At a door: what one frame may hold, and what each connection may do. There are more places for calls than connections can
#: take, so callers that never send their message leave room for others.
_DOOR_LIMITS, _DOOR_CALLS = FrameLimits(max_header=1 << 16, max_bytes=1 << 10, max_sections=1), 2
_DOOR = FrontLimits(unproven=64, of_address=32, proof=math.inf, life=20.0)
_DOOR_PLACES = 2 * _DOOR_CALLS * _DOOR.unproven
#: Calls of one connection of members at once: further ones wait there.
_CALLS = 256
#: Bytes of a message whose memory is not worth a place; and seconds in which a message must come.
_SMALL_REQUEST, _REQUEST_SECONDS = 1 << 20, 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcHost:
    """What a server needs of the program around it.

    ``log`` receives lines for people. ``check`` raises an error for a caller who may not call a method (any more). It receives
    the caller, the method and the caller's address. ``observe`` answers connections that ask for their own address. ``groups``
    returns the groups of a caller, each with the most calls that it may have at once.
    """

    log: Callable[[str], None] = lambda text: None
    check: Callable[[Caller, str, str], None] = lambda caller, method, address: None
    observe: PassOn | None = None
    groups: Callable[[Caller], Mapping[str, int]] = lambda caller: {}


UnaryHandler = Callable[[Call, Frame], Frame]
StreamHandler = Callable[[Call, Frame], Iterator[Frame]]
SessionHandler = Callable[[Call, Iterator[Frame]], Iterator[Frame]]
CoroutineHandler = Callable[[Call, FrameStream], Awaitable[None]]


class RpcServer(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Register methods, ``listen`` at one or more addresses, ``start``, ``close``.

    gRPC serves on one thread, "control-loop". Handlers that are no coroutines run on a thread for each call.
    """

    def __init__(
        self,
        security: Credentials | Insecure,
        *,
        config: TransportConfig | None = None,
        limits: FrameLimits = RPC_LIMITS,
        door: bool = False,
        host: RpcHost | None = None,
    ) -> None:
        """``door``: for callers of whom nothing is known; ``limits`` are its own then."""
        host = host or RpcHost()
        limits = _DOOR_LIMITS if door else limits
        self._door, self._host = door, host
        #: A private folder for the sockets at which gRPC listens.
        self._folder: TemporaryDirectory[str] | None = None
        #: Whether callers at the front show no certificates.
        self._fronts: dict[RpcFront, bool] = {}
        self._security, self._limits = security, limits
        self._methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        self._threads = CallThreads("control")
        self._options = channel_options(config or TransportConfig(), max_message(limits), SERVER_WINDOW)
        self._options.append(("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)))
        self._options.append(("grpc.max_concurrent_streams", _DOOR_CALLS if door else _CALLS))
        self._places, self._reads = CallPlaces(), ReadPlaces()
        self._loop: EventLoopThread | None = None
        self._server: grpc.aio.Server | None = None

    def unary(self, name: str, handler: UnaryHandler, *, anonymous: bool = False) -> None:
        """Serve ``name`` with one frame for one frame; ``anonymous`` lets in callers without a certificate."""

        async def serve(requests: object, context: RpcContext) -> bytes:
            async with self._call(context) as call, self._request(call, context, name, anonymous) as request:
                return await call.on_thread(lambda: join_frame(handler(call, request()), self._limits))

        self._add(name, grpc.stream_unary_rpc_method_handler(serve))

    def stream(self, name: str, handler: StreamHandler, *, anonymous: bool = False) -> None:
        """Serve ``name`` with frames for one frame; the handler's iterator advances as fast as the caller takes."""

        async def serve(requests: object, context: RpcContext) -> None:
            async with self._call(context) as call, self._request(call, context, name, anonymous) as request:
                stream = self._stream(call, context)
                await call.on_thread(lambda: self._send_all(stream, handler(call, request())))

        self._add(name, grpc.stream_stream_rpc_method_handler(serve))

    def session(self, name: str, handler: SessionHandler, *, anonymous: bool = False) -> None:
        """Serve ``name`` with frames both ways, on a thread.

        If the caller breaks off, the iterator given to the handler raises ``ConnectionLost``; a handler that stands at a
        ``yield`` is closed there instead (``GeneratorExit``). So what must be undone belongs into ``finally``; a handler
        that waits for something else is woken by ``Call.on_end``.
        """

        async def serve(requests: object, context: RpcContext) -> None:
            async with self._call(context) as call:
                stream = self._stream(call, context)

                def talk() -> None:
                    self._admit(call, name, anonymous)
                    self._send_all(stream, handler(call, self._receive_all(stream)))

                await call.on_thread(talk)

        self._add(name, grpc.stream_stream_rpc_method_handler(serve))

    def coroutine(self, name: str, handler: CoroutineHandler) -> None:
        """Serve ``name`` for members with frames both ways, by a coroutine, so that thousands of sessions need no threads.

        If the caller breaks off, the coroutine is cancelled.
        """

        async def serve(requests: object, context: RpcContext) -> None:
            async with self._call(context) as call:
                await call.on_thread(lambda: self._admit(call, name, anonymous=False))
                await handler(call, self._stream(call, context))

        self._add(name, grpc.stream_stream_rpc_method_handler(serve))

    def listen(self, address: str, *, anonymous: bool = False) -> str:
        """Listen at ``address`` (port 0: any free one) and return it with its real port.

        Members show certificates there; at an ``anonymous`` address callers show none, and reach anonymous methods only.

        Raises:
            InputError: the address can't be listened at.
        """
        server = open_server(address)
        if self._folder is None:
            self._folder = TemporaryDirectory(prefix="farflung-")
        name = f"{'door' if self._door else 'members'}-{len(self._fronts)}.sock"
        tls = not isinstance(self._security, Insecure)
        limits = _DOOR if self._door else FrontLimits()
        inner = Path(self._folder.name) / name
        front = RpcFront(server, inner, tls=tls, limits=limits, log=self._host.log, observe=self._host.observe)
        self._fronts[front] = anonymous
        return f"{address.rpartition(':')[0]}:{server.getsockname()[1]}"

    def start(self) -> None:
        """Begin to serve.

        Raises:
            InputError: the sockets of the server can't be made.
        """
        self._loop = EventLoopThread()
        self._server = self._loop.run(self._open())
        for front in self._fronts:
            front.start()

    def close(self, grace: float = 1.0) -> None:
        """Take no more calls, give running ones ``grace`` seconds, break off the rest and join all threads.

        Handlers that wait for something else must be woken by their owner (see ``Call.on_end``).
        """
        for front in self._fronts:
            front.refuse()
        if self._loop is not None and self._server is not None:
            self._loop.run(self._server.stop(grace))
        while self._fronts:
            self._fronts.popitem()[0].close()
        if self._loop is not None:
            self._loop.finish()  # what begins when a call has ended needs a thread, too
        self._threads.shutdown()
        if self._loop is not None:
            self._loop.close()
            self._loop = self._server = None
        if self._folder is not None:
            self._folder.cleanup()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._methods.get(handler_call_details.method)

    async def _open(self) -> grpc.aio.Server:
        most = _DOOR_PLACES if self._door else None
        server = grpc.aio.server(handlers=[self], options=self._options, maximum_concurrent_rpcs=most)
        for front, anonymous in self._fronts.items():
            add_port(server, front.inner, self._security, anonymous=anonymous)
        await server.start()
        return server

    def _add(self, name: str, handler: Any) -> None:
        if RPC_PREFIX + name in self._methods:
            raise ValueError(f"method {name!r} is registered twice")
        self._methods[RPC_PREFIX + name] = handler

    @asynccontextmanager
    async def _call(self, context: RpcContext) -> AsyncIterator[Call]:
        """Yield the call; end it with the error of this program that is raised meanwhile."""
        call: Call | None = None
        try:
            caller = caller_of(context, insecure=isinstance(self._security, Insecure))
            call = Call(caller, str(context.peer()), self._threads)
            yield call
        except FarflungError as error:
            await abort(context, error)
        finally:
            if call is not None:
                call.finish()

    @asynccontextmanager
    async def _request(self, call: Call, context: RpcContext, method: str, anonymous: bool) -> AsyncIterator[Callable[[], Frame]]:
        """Admit the caller, then take its one message from the network; yield what decodes the message.

        gRPC would take the message first, and as many as there are calls.
        """
        await call.on_thread(lambda: self._admit(call, method, anonymous))
        groups = () if call.caller is None else self._host.groups(call.caller)
        async with self._reads.place(groups) as place:
            message = await _read(context, call.address)
            if len(message) <= _SMALL_REQUEST:
                place.leave()  # a long call, such as a watcher's, needs no place while it lasts
            yield lambda: decode_frame(message, self._limits)

    def _admit(self, call: Call, method: str, anonymous: bool) -> None:
        """See that the caller may call ``method``; may wait for files.

        Raises:
            SecurityError: it may not.
            InputError: it has too many calls at once.
        """
        if call.caller is None:
            if not anonymous:
                raise SecurityError("this call is for members of the cluster; join with a ticket first")
            return
        self._places.take(call, self._host.groups(call.caller))
        self._host.check(call.caller, method, call.address)
        for front in self._fronts:
            front.prove(call.peer)

    def _stream(self, call: Call, context: RpcContext) -> FrameStream:
        return FrameStream(context, self._limits, call.caller.name if call.caller else call.address)

    def _send_all(self, stream: FrameStream, frames: Iterator[Frame]) -> None:
        """Send ``frames``, on the thread of the call."""
        assert self._loop is not None
        try:
            for frame in frames:
                self._loop.run(stream.send(frame))
        finally:
            if isinstance(frames, Generator):
                frames.close()

    def _receive_all(self, stream: FrameStream) -> Iterator[Frame]:
        """The caller's frames, for a thread."""
        assert self._loop is not None
        while (frame := self._loop.run(stream.receive())) is not None:
            yield frame


async def _read(context: RpcContext, address: str) -> bytes:
    """The one message of a call.

    Raises:
        ConnectionLost: the caller broke off.
        InputError: the message does not come.
    """
    try:
        message = await asyncio.wait_for(context.read(), _REQUEST_SECONDS)
    except (grpc.aio.BaseError, asyncio.CancelledError) as error:
        raise ConnectionLost(f"lost {address}: the connection broke off") from error
    except TimeoutError:
        raise InputError(f"the request did not come within {_REQUEST_SECONDS:g} s: try again over a faster connection") from None
    if not isinstance(message, bytes):
        raise ConnectionLost(f"lost {address}: it called without a message")
    return message
