"""The calling end of the control plane."""

from __future__ import annotations

import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import grpc

from farflung.clock import monotonic
from farflung.errors import ConnectionLost, SecurityError
from farflung.security import Credentials
from farflung.transports.config import Insecure, Pinned, TransportConfig
from farflung.transports.rpc.channel import PEER_KEY, RPC_LIMITS, RPC_PREFIX, join_frame, max_message, open_channel
from farflung.transports.rpc.failures import explain
from farflung.wire.frames import Frame, FrameLimits, decode_frame

__all__ = ["RpcClient", "RpcSession"]

_RETRY = 0.2


class RpcSession:
    """Frames both ways: ``send`` from any thread, iterate to receive, ``end`` when nothing more is to be sent."""

    def __init__(self, client: RpcClient, method: str, depth: int) -> None:
        self._client = client
        self._outgoing: queue.Queue[bytes | None] = queue.Queue(depth)
        #: Set when nothing can be sent any more.
        self.over = threading.Event()
        self._call = client.start(method, self._messages())
        if not self._call.add_callback(self._wake):
            self._wake()

    def send(self, frame: Frame) -> None:
        """Queue ``frame``; waits while the queue is full (back-pressure).

        Raises:
            ConnectionLost: the session is over; iterating tells why.
            WireError: the frame is too large.
        """
        self._put(join_frame(frame, self._client.limits))

    @property
    def waiting(self) -> int:
        """How many frames wait to be sent."""
        return self._outgoing.qsize()

    def end(self) -> None:
        """Nothing more will be sent; the other side may still answer."""
        self._put(None)

    def close(self) -> None:
        """Break off."""
        self._call.cancel()
        self._wake()

    def __iter__(self) -> Iterator[Frame]:
        """Frames from the other side, until it ends the session.

        Raises:
            FarflungError: the other side raised it, or the connection was lost.
        """
        return self._client.frames(self._call)

    def _put(self, message: bytes | None) -> None:
        while not self.over.is_set():
            try:
                self._outgoing.put(message, timeout=0.5)
            except queue.Full:
                continue
            else:
                return
        raise ConnectionLost(
            f"the session with {self._client.server} at {self._client.address} is over; nothing can be sent any more"
        )

    def _messages(self) -> Iterator[bytes]:
        while (message := self._outgoing.get()) is not None:
            yield message
        yield b""  # goodbye: gRPC alone can't tell an end from a death

    def _wake(self) -> None:
        """Let the thread that feeds gRPC end."""
        self.over.set()
        with suppress(queue.Full):  # then it is not waiting, and sees the end of the call by itself
            self._outgoing.put_nowait(None)


class RpcClient:
    """Calls methods of one server; the connection is made at the first call. Safe for several threads."""

    def __init__(
        self,
        address: str,
        security: Credentials | Pinned | Insecure,
        *,
        server: str = "broker",
        config: TransportConfig | None = None,
        limits: FrameLimits = RPC_LIMITS,
    ) -> None:
        """``server`` is the member name that the other side must prove."""
        self.address, self.server, self.limits = address, server, limits
        self._channel = open_channel(address, server, security, config or TransportConfig(), max_message(limits))
        self._closed = threading.Event()
        self._metadata = ((PEER_KEY, security.name),) if isinstance(security, Insecure) else ()

    def call(self, method: str, frame: Frame, *, timeout: float = 30.0, patience: float = 0.0) -> Frame:
        """One frame for one frame within ``timeout`` s; a server that does not listen yet is tried for ``patience`` s.

        Raises:
            ConnectionLost: the server can't be reached, or did not answer in time.
            SecurityError: the server is not who it should be, or refuses the caller.
            FarflungError: the server's handler raised it.
        """
        request = join_frame(frame, self.limits)
        end = monotonic() + patience
        stub = self._channel.unary_unary(RPC_PREFIX + method, None, None)
        while True:
            try:
                reply: bytes = stub(request, timeout=timeout, metadata=self._metadata)
            except grpc.RpcError as failure:
                error = explain(failure, self.server, self.address)
                # only what never left this machine may be tried again
                unsent = failure.code() == grpc.StatusCode.UNAVAILABLE and "failed to connect" in (failure.details() or "")
                if not unsent or isinstance(error, SecurityError) or self._closed.is_set() or monotonic() + _RETRY >= end:
                    raise error from failure
                self._closed.wait(_RETRY)
            else:
                return decode_frame(reply, self.limits)

    def stream(self, method: str, frame: Frame, *, timeout: float | None = None) -> Iterator[Frame]:
        """Frames for one frame; they are fetched as the iterator advances. Errors as ``call``."""
        stub = self._channel.unary_stream(RPC_PREFIX + method, None, None)
        return self.frames(stub(join_frame(frame, self.limits), timeout=timeout, metadata=self._metadata))

    def session(self, method: str, *, depth: int = 8) -> RpcSession:
        """Frames both ways; at most ``depth`` frames wait to be sent."""
        return RpcSession(self, method, depth)

    def close(self) -> None:
        """End the connection; running calls fail with ``ConnectionLost``."""
        self._closed.set()
        self._channel.close()

    def start(self, method: str, messages: Iterator[bytes]) -> Any:
        """The gRPC call behind a session."""
        return self._channel.stream_stream(RPC_PREFIX + method, None, None)(messages, metadata=self._metadata)

    def frames(self, call: Any) -> Iterator[Frame]:
        """The frames that ``call`` gives, with its failure as an error of this program."""
        try:
            for message in call:
                yield decode_frame(message, self.limits)
        except grpc.RpcError as failure:
            raise explain(failure, self.server, self.address) from failure
        finally:
            call.cancel()  # an iterator that was left early must not hold the server
