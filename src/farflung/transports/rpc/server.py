"""The serving end of the control plane: named methods that take and give frames, over gRPC.

Three kinds: ``unary`` (frame in, frame out), ``stream`` (frame in, frames out) and ``session`` (frames both ways). A server may
be a door, for those who have only a ticket yet (gRPC for Python can't ask for a certificate without insisting on it): whoever
finds its address may call, so it takes small messages, few calls of one connection, and breaks off those that last. ``front``
limits the connections.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import grpc

from farflung.errors import ConnectionLost, FarflungError, SecurityError
from farflung.security import Caller, Credentials
from farflung.transports.config import Insecure, TransportConfig
from farflung.transports.rpc.channel import CallThreads, add_port, caller_of, channel_options
from farflung.transports.rpc.failures import abort
from farflung.transports.rpc.front import HANDSHAKE_SECONDS, FrontLimits, RpcFront, address_behind
from farflung.transports.tcp.sockets import open_server
from farflung.wire.frames import Frame, FrameLimits, decode_frame, encode_frame

__all__ = [
    "RPC_LIMITS",
    "RPC_PREFIX",
    "Call",
    "RpcHost",
    "RpcServer",
    "SessionHandler",
    "StreamHandler",
    "UnaryHandler",
    "join_frame",
    "max_message",
]

#: What one frame of the control plane may hold; larger things travel as streams of frames.
RPC_LIMITS = FrameLimits(max_header=16 << 20, max_bytes=64 << 20)
RPC_PREFIX = "/farflung.Control/"
#: At a door: what one frame may hold, and what each connection may do. There are more places for calls than connections can
#: take, so callers that never send their message leave room for others.
_DOOR_LIMITS, _DOOR_CALLS = FrameLimits(max_header=1 << 16, max_bytes=1 << 10, max_sections=1), 2
_DOOR = FrontLimits(unproven=64, of_address=32, proof=math.inf, life=20.0)
_DOOR_PLACES = 2 * _DOOR_CALLS * _DOOR.unproven


class Call:
    """What a handler knows of the call that it serves."""

    __slots__ = ("_context", "caller")

    def __init__(self, caller: Caller | None, context: grpc.ServicerContext) -> None:
        #: Name and role from the caller's certificate; None before joining.
        self.caller = caller
        self._context = context

    @property
    def address(self) -> str:
        """Where the call comes from, e.g. ``192.0.2.7:41522``."""
        return address_behind(str(self._context.peer()))

    @property
    def active(self) -> bool:
        """Whether somebody still waits for the answer."""
        return self._context.is_active()

    def on_end(self, action: Callable[[], None]) -> None:
        """Run ``action`` on some thread when the call is over, however it ends; at once if it is over already."""
        if not self._context.add_callback(action):
            action()


@dataclass(frozen=True, slots=True, kw_only=True)
class RpcHost:
    """What a server needs of the program around it.

    ``log`` receives lines for people. ``check`` raises an error for a caller who may not call a method (any more). It receives
    the caller, the method and the caller's address.
    """

    log: Callable[[str], None] = lambda text: None
    check: Callable[[Caller, str, str], None] = lambda caller, method, address: None


UnaryHandler = Callable[[Call, Frame], Frame]
StreamHandler = Callable[[Call, Frame], Iterator[Frame]]
SessionHandler = Callable[[Call, Iterator[Frame]], Iterator[Frame]]


def join_frame(frame: Frame, limits: FrameLimits) -> bytes:
    """``frame`` as one message (TLS checks integrity, so no checksums of sections).

    Raises:
        WireError: it passes the limits.
    """
    return b"".join(encode_frame(frame, checksum=False, limits=limits))


def max_message(limits: FrameLimits) -> int:
    """The largest message that holds a frame within ``limits``."""
    return limits.max_header + limits.max_bytes + 16 * limits.max_sections + 64


class RpcServer(grpc.GenericRpcHandler):  # type: ignore[type-arg]  # generic in the stubs only
    """Register methods, ``listen`` at one or more addresses, ``start``, ``close``."""

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
        self._door, self._log, self._check = door, host.log, host.check
        #: A private folder for the sockets at which gRPC listens.
        self._folder: TemporaryDirectory[str] | None = None
        self._fronts: list[RpcFront] = []
        self._security, self._limits = security, limits
        self._methods: dict[str, grpc.RpcMethodHandler[bytes, bytes]] = {}
        self._threads = CallThreads("control")
        options = channel_options(config or TransportConfig(), max_message(limits))
        options.append(("grpc.server_handshake_timeout_ms", int(HANDSHAKE_SECONDS * 1000)))
        if door:
            options.append(("grpc.max_concurrent_streams", _DOOR_CALLS))
        self._server = grpc.server(self._threads, [self], options=options, maximum_concurrent_rpcs=_DOOR_PLACES if door else None)

    def unary(self, name: str, handler: UnaryHandler, *, anonymous: bool = False) -> None:
        """Serve ``name`` with one frame for one frame; ``anonymous`` lets in callers without a certificate."""

        def serve(request: bytes, context: grpc.ServicerContext) -> bytes:
            try:
                return join_frame(
                    handler(self._call(context, name, anonymous), decode_frame(request, self._limits)), self._limits
                )
            except FarflungError as error:
                abort(context, error)

        self._add(name, grpc.unary_unary_rpc_method_handler(serve))

    def stream(self, name: str, handler: StreamHandler, *, anonymous: bool = False) -> None:
        """Serve ``name`` with frames for one frame; the handler's iterator advances as fast as the caller takes."""

        def serve(request: bytes, context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                yield from self._joined(handler(self._call(context, name, anonymous), decode_frame(request, self._limits)))
                return
            except FarflungError as error:
                refused = error
            abort(context, refused)

        self._add(name, grpc.unary_stream_rpc_method_handler(serve))

    def session(self, name: str, handler: SessionHandler, *, anonymous: bool = False) -> None:
        """Serve ``name`` with frames both ways.

        If the caller breaks off, the iterator given to the handler raises ``ConnectionLost``; a handler that stands at a
        ``yield`` is closed there instead (``GeneratorExit``). So what must be undone belongs into ``finally``; a handler
        that waits for something else is woken by ``Call.on_end``.
        """

        def serve(requests: Iterator[bytes], context: grpc.ServicerContext) -> Iterator[bytes]:
            try:
                call = self._call(context, name, anonymous)
                yield from self._joined(handler(call, self._incoming(requests, call)))
                return
            except FarflungError as error:
                refused = error
            abort(context, refused)

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
        front = RpcFront(
            server, Path(self._folder.name), name, tls=tls, limits=_DOOR if self._door else FrontLimits(), log=self._log
        )
        self._fronts.append(front)
        add_port(self._server, front.inner, self._security, anonymous=anonymous)
        return f"{address.rpartition(':')[0]}:{server.getsockname()[1]}"

    def start(self) -> None:
        """Begin to serve."""
        self._server.start()
        for front in self._fronts:
            front.start()

    def close(self, grace: float = 1.0) -> None:
        """Take no more calls, give running ones ``grace`` seconds, break off the rest and join all threads.

        Handlers that wait for something else must be woken by their owner (see ``Call.on_end``).
        """
        for front in self._fronts:
            front.refuse()
        self._server.stop(grace).wait()
        while self._fronts:
            self._fronts.pop().close()
        self._threads.shutdown()
        if self._folder is not None:
            self._folder.cleanup()

    def service(self, handler_call_details: grpc.HandlerCallDetails) -> grpc.RpcMethodHandler[bytes, bytes] | None:
        return self._methods.get(handler_call_details.method)

    def _add(self, name: str, handler: Any) -> None:
        if RPC_PREFIX + name in self._methods:
            raise ValueError(f"method {name!r} is registered twice")
        self._methods[RPC_PREFIX + name] = handler

    def _call(self, context: grpc.ServicerContext, method: str, anonymous: bool) -> Call:
        caller = caller_of(context, insecure=isinstance(self._security, Insecure))
        if caller is None and not anonymous:
            raise SecurityError("this call is for members of the cluster; join with a ticket first")
        if caller is not None:
            self._check(caller, method, address_behind(str(context.peer())))
            for front in self._fronts:
                front.prove(str(context.peer()))
        return Call(caller, context)

    def _joined(self, frames: Iterator[Frame]) -> Iterator[bytes]:
        for frame in frames:
            yield join_frame(frame, self._limits)

    def _incoming(self, requests: Iterator[bytes], call: Call) -> Iterator[Frame]:
        name = call.caller.name if call.caller else call.address
        try:
            for request in requests:
                if not request:  # goodbye
                    return
                yield decode_frame(request, self._limits)
        except grpc.RpcError as error:
            raise ConnectionLost(f"lost {name}: the connection broke off") from error
        raise ConnectionLost(f"lost {name}: the connection broke off")
