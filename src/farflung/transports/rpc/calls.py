"""What a handler knows of the call that it serves, and the frames of a session."""

from __future__ import annotations

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from typing import TypeVar

import grpc

from farflung.errors import ConnectionLost, InputError
from farflung.security import Caller
from farflung.transports.rpc.channel import CallThreads, join_frame
from farflung.transports.rpc.front import address_behind
from farflung.wire.frames import Frame, FrameLimits, decode_frame

__all__ = ["Call", "CallPlaces", "FrameStream", "RpcContext"]

T = TypeVar("T")
#: Frames of at most so many bytes are remembered: nearly all are heartbeats, which repeat.
_SMALL = 128
#: What gRPC knows of a call; for the thread of the event loop only.
RpcContext = grpc.aio.ServicerContext[bytes, bytes]


class Call:
    """Any thread may call."""

    __slots__ = ("_actions", "_lock", "_threads", "active", "caller", "peer")

    def __init__(self, caller: Caller | None, peer: str, threads: CallThreads) -> None:
        """``peer``: the connection, as gRPC names it. ``threads``: of the server."""
        #: Name and role from the caller's certificate; None before joining.
        self.caller = caller
        self.peer = peer
        #: Whether somebody still waits for the answer.
        self.active = True
        self._threads = threads
        #: Guards ``active`` and the actions, so that each action runs once; they run without it.
        self._lock = threading.Lock()
        self._actions: list[Callable[[], None]] = []

    @property
    def address(self) -> str:
        """Where the call comes from, e.g. ``192.0.2.7:41522``."""
        return address_behind(self.peer)

    def on_end(self, action: Callable[[], None]) -> None:
        """Run ``action`` when the call is over, however it ends; at once if it is over already.

        It may run on the thread that serves all calls, so it must not wait.
        """
        with self._lock:
            if self.active:
                self._actions.append(action)
                return
        action()

    def finish(self) -> None:
        """The call is over: run the actions of ``on_end``."""
        with self._lock:
            self.active = False
            actions, self._actions = self._actions, []
        for action in actions:
            action()

    async def on_thread(self, work: Callable[[], T]) -> T:
        """Return the result of ``work``, which may wait: it runs on a thread of its own."""
        return await asyncio.get_running_loop().run_in_executor(self._threads, work)


class CallPlaces:
    """How many calls run of each group of callers. Most calls have a thread. Any thread may call."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._taken: Counter[str] = Counter()

    def take(self, call: Call, limits: Mapping[str, int]) -> None:
        """Count ``call`` until it ends. ``limits``: the groups of its caller, as errors name them, with the most calls of each.

        Raises:
            InputError: one of the groups has as many calls already.
        """
        with self._lock:
            for group, most in limits.items():
                if self._taken[group] >= most:
                    raise InputError(f"{group} has {most} calls at the broker, which is the most at once: end some of them")
            self._taken.update(limits.keys())
        call.on_end(lambda: self._release(limits.keys()))

    def _release(self, groups: Iterable[str]) -> None:
        with self._lock:
            self._taken.subtract(groups)
            for group in groups:
                if not self._taken[group]:
                    del self._taken[group]


class FrameStream:
    """The frames of a session, for coroutines: one that receives, and one that sends."""

    def __init__(self, context: RpcContext, limits: FrameLimits, name: str) -> None:
        """``name``: of the caller, for errors."""
        self._context, self._limits, self._name = context, limits, name
        #: The last small frame that was received, and the last one that was sent, each as its bytes and as a frame.
        self._received: tuple[bytes, Frame] | None = None
        self._sent: tuple[bytes, Frame] | None = None

    async def receive(self) -> Frame | None:
        """Return the next frame (None: the caller has said goodbye). A small one that repeats is the same object.

        Raises:
            ConnectionLost: the caller broke off.
            WireError: the frame is malformed.
        """
        try:
            message = await self._context.read()
        except (grpc.aio.BaseError, asyncio.CancelledError) as error:  # gRPC cancels what waits for a call that is over
            raise self._lost() from error
        if not isinstance(message, bytes):  # EOF: gRPC alone can't tell an end from a death
            raise self._lost()
        if self._received is not None and message == self._received[0]:
            return self._received[1]
        frame = decode_frame(message, self._limits) if message else None
        if frame is not None and len(message) <= _SMALL:
            self._received = message, frame
        return frame

    async def send(self, frame: Frame) -> None:
        """Send ``frame``; waits while the caller does not read (back-pressure).

        Raises:
            ConnectionLost: the call is over.
            WireError: the frame is too large.
        """
        if self._sent is not None and frame is self._sent[1]:
            message = self._sent[0]
        elif len(message := join_frame(frame, self._limits)) <= _SMALL:
            self._sent = message, frame
        try:
            await self._context.write(message)
        except grpc.aio.BaseError as error:
            raise self._lost() from error

    def _lost(self) -> ConnectionLost:
        return ConnectionLost(f"lost {self._name}: the connection broke off")
