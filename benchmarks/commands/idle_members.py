"""Members without an engine, thousands in one process: they speak the broker's real protocol over TLS, on one event loop.

Each has a certificate and a connection of its own. It sends heartbeats, and answers what a broker asks: a measurement, a
bandwidth probe, whom it can dial. As part of a run it reports that it is prepared, and then each second a step that never
happened.

``python -m benchmarks.commands.idle_members TICKET COUNT`` joins until it is killed.
"""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Coroutine, Iterable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, TypeVar

import grpc

from farflung.errors import ConnectionLost, FarflungError
from farflung.messages.calls import Granted, Join
from farflung.messages.commands import (
    Abort,
    Beat,
    Fenced,
    HandOver,
    Measure,
    Prepare,
    Probe,
    Reach,
    Relay,
    Start,
    Stop,
    Welcome,
)
from farflung.messages.reports import Dropped, Ended, Hello, Measured, OfferItem, Prepared, Probed, Reached, Relayed, Stepped
from farflung.messages.schema import Channel, Message, kind_of
from farflung.messages.versions import PROTOCOL_VERSION
from farflung.messages.wire_form import decode, decode_as, encode, holds
from farflung.security import Credentials, Ticket, fetch_server_certificate, make_request, new_key, split_address, tls_name
from farflung.transports.addresses import host_and_port
from farflung.transports.config import TransportConfig
from farflung.transports.rpc.channel import RPC_LIMITS, RPC_PREFIX, channel_options, join_frame, max_message
from farflung.transports.rpc.failures import explain
from farflung.transports.tcp.sockets import TlsContexts
from farflung.version import __version__
from farflung.wire.frames import decode_frame

__all__ = ["IdleMembers", "idle_offer", "main", "member_name"]

T = TypeVar("T")
_REGIONS = 4
#: Members that join at the same time: a broker lets few strangers in at once.
_JOINING = 8
_STEP_SECONDS = 1.0
#: Seconds and bytes per second of a link inside a region, and between two.
_NEAR, _FAR = (0.0005, 1.25e8), (0.04, 1.25e7)


def member_name(number: int) -> str:
    """The name of an idle worker."""
    return f"machine-{number:02}"


def _region(name: str) -> int:
    return int(name.rpartition("-")[2]) % _REGIONS


def idle_offer(name: str) -> OfferItem:
    """What the idle worker ``name`` offers."""
    return OfferItem(
        memory=16e9,
        kind="cpu",
        description="16 cores",
        host=f"host-{name}",
        processors=(),
        versions={"farflung": __version__, "engine": "torch 2.13.0+cpu", "python": "3.11.7"},
        speed=1e11,
        factor=0.8,
        overhead=1e-5,
        relay=False,
        reliable=True,
        region=f"region {_region(name)}",
        disk=5e10,
    )


async def _welcome(name: str, call: Any) -> Welcome:
    """The first message of the session of ``name`` that is no heartbeat; these come while many members wait for their turn."""
    while True:
        try:
            data = await call.read()
        except grpc.RpcError as failure:
            raise explain(failure, "broker", "") from failure
        if not isinstance(data, bytes):
            raise ConnectionLost(f"the session of {name} ended before it began")
        frame = decode_frame(data, RPC_LIMITS)
        if not holds(frame, Beat):
            return decode_as(frame, Channel.COMMANDS, Welcome)


@dataclass(slots=True, eq=False)
class _Member:
    """``lost``: why the broker ended the session (empty: it did not). ``frozen``: it neither reads nor writes any more."""

    name: str
    channel: Any
    call: Any
    server: asyncio.Server
    lease: float = 5.0
    lost: str = ""
    frozen: bool = False
    writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    tasks: list[asyncio.Task[None]] = field(default_factory=list)
    #: The part in a run: its name, the attempt, the next step; and the task that reports steps.
    part: tuple[str, int, int] = ("", 0, 0)
    steps: asyncio.Task[None] | None = None

    async def send(self, message: Message) -> None:
        async with self.writing:  # gRPC ends a call with two writes at the same time
            if not self.frozen:
                await self.call.write(join_frame(encode(message), RPC_LIMITS))

    async def beat(self) -> None:
        while True:
            await asyncio.sleep(self.lease / 3)
            await self.send(Beat(disk=5e10))

    async def read(self) -> None:
        try:
            while isinstance(data := await self.call.read(), bytes):
                await self._take(decode(decode_frame(data, RPC_LIMITS), Channel.COMMANDS))
            self.lost = self.lost or "the session ended"
        except grpc.RpcError as failure:
            self.lost = str(explain(failure, "broker", ""))
        finally:
            await self._rest()

    async def _take(self, command: Message) -> None:
        match command:
            case Fenced():
                self.lost = command.cause
            case Measure():
                await self.send(Measured(speed=1e11, factor=0.8, overhead=1e-5))
            case Probe():
                alpha, beta = _NEAR if _region(command.peer) == _region(self.name) else _FAR
                await self.send(Probed(question=command.question, alpha=alpha, beta=beta, spread=0.0))
            case Reach():
                await self.send(Reached(question=command.question, found=dict.fromkeys(command.peers, True)))
            case Relay(pairs=()):
                await self.send(Relayed(run=command.run, carried=()))
            case Prepare():
                await self._rest()
                self.part = (command.run, command.attempt, command.first_step)
                await self.send(Prepared(run=command.run, attempt=command.attempt, fingerprints={}))
            case Start():
                self.steps = asyncio.create_task(self._report_steps())
            case Stop() | HandOver():
                await self._rest()
                await self.send(Ended(run=command.run, attempt=self.part[1], whole=False))
            case Abort():
                await self._rest()
                await self.send(Dropped(run=command.run, attempt=command.attempt, states=(), steps=()))

    async def _rest(self) -> None:
        if self.steps is not None:
            self.steps.cancel()
            self.steps = None

    async def _report_steps(self) -> None:
        run, attempt, step = self.part
        empty: dict[str, Any] = {"sent": (), "dense": (), "stage_busy": (), "codecs": ()}
        while True:
            await asyncio.sleep(_STEP_SECONDS)
            report = Stepped(
                run=run,
                attempt=attempt,
                step=step,
                seconds=_STEP_SECONDS,
                busy=0.5,
                wait=0.5,
                loss=1.0,
                losses=(1.0,),
                samples=1,
                skipped=False,
                rate=1e-3,
                grad_norm=None,
                divergence=None,
                **empty,
            )
            await self.send(report)
            step += 1


class IdleMembers:
    """Members on an event loop with a thread of its own. ``close`` breaks all sessions off."""

    def __init__(self, ticket: Ticket) -> None:
        self._ticket = ticket
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="idle-members", daemon=True)
        self._thread.start()
        self._certificate = fetch_server_certificate(self._ticket.addresses[0], self._ticket.fingerprint)
        self._joining = asyncio.Semaphore(_JOINING)
        #: The members that have joined and not left, by name.
        self.members: dict[str, _Member] = {}

    def join(self, names: Iterable[str]) -> list[float]:
        """Let members join, several at a time; return how long each took, from its key to the broker's welcome, in seconds.

        Raises:
            FarflungError: the broker refuses one.
        """
        return self._run(self._join_all(list(names)))

    def leave(self, name: str) -> None:
        """Let a member say goodbye."""
        self._run(self._leave(self.members.pop(name)))

    def kill(self, name: str) -> None:
        """Cut a member's connection, as the death of its process does."""
        self._run(self._kill(self.members.pop(name)))

    def freeze(self, name: str) -> None:
        """Let a member send nothing more, while its connection stays; ``kill`` ends it."""
        self.members[name].frozen = True

    def lost(self) -> dict[str, str]:
        """Why the broker has ended sessions of members that had not left, by name."""
        return {name: one.lost for name, one in list(self.members.items()) if one.lost and not one.frozen}

    def close(self) -> None:
        """Break all sessions off, and end the thread."""
        for name in list(self.members):
            self.kill(name)
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()

    def _run(self, work: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result()

    async def _join_all(self, names: list[str]) -> list[float]:
        return list(await asyncio.gather(*(self._join(name) for name in names)))

    async def _join(self, name: str) -> float:
        async with self._joining:
            begin = time.monotonic()
            key = new_key()
            granted = await self._grant(name, key)
            host, _ = split_address(self._ticket.addresses[0])
            own = Credentials(name=name, key=key, certificate=granted.certificate, authority=granted.authority)
            channel = _channel(host_and_port(host, granted.port), own.authority, own.key, own.certificate)
            call = channel.stream_stream(RPC_PREFIX + "session", None, None)(None)
            # the broker dials each member, and checks its name
            server = await asyncio.start_server(lambda _, writer: writer.close(), "127.0.0.1", 0, ssl=TlsContexts(own).server)
            member = _Member(name, channel, call, server)
            await member.send(Hello(address=host_and_port(*server.sockets[0].getsockname()), offer=idle_offer(name)))
            member.lease = (await _welcome(name, call)).lease
            member.tasks = [asyncio.create_task(member.read()), asyncio.create_task(member.beat())]
            self.members[name] = member
            return time.monotonic() - begin

    async def _grant(self, name: str, key: bytes) -> Granted:
        request = Join(
            ticket=self._ticket.ticket_id,
            secret=self._ticket.secret,
            scope=self._ticket.scope,
            name=name,
            role="worker",
            request=make_request(name, key),
            protocol=PROTOCOL_VERSION,
            version=__version__,
        )
        channel = _channel(self._ticket.addresses[0], self._certificate)
        try:
            call = channel.unary_unary(RPC_PREFIX + kind_of(request), None, None)
            answer = await call(join_frame(encode(request), RPC_LIMITS), timeout=60.0)
        except grpc.RpcError as failure:
            raise explain(failure, "broker", self._ticket.addresses[0]) from failure
        finally:
            await channel.close(None)
        return decode_as(decode_frame(answer, RPC_LIMITS), Channel.ANSWERS, Granted)

    async def _leave(self, member: _Member) -> None:
        with suppress(grpc.RpcError, asyncio.InvalidStateError):
            await member.call.write(b"")
            await member.call.done_writing()
            await asyncio.wait(member.tasks[:1], timeout=10.0)
        await self._kill(member)

    async def _kill(self, member: _Member) -> None:
        for task in (*member.tasks, *([] if member.steps is None else [member.steps])):
            task.cancel()
        await asyncio.gather(*member.tasks, return_exceptions=True)
        member.server.close()
        member.call.cancel()
        await member.channel.close(None)
        # gRPC closes the socket when nothing refers to the channel any more
        member.tasks, member.steps, member.call, member.channel = [], None, None, None


def _channel(address: str, root: bytes, key: bytes | None = None, certificate: bytes | None = None) -> grpc.aio.Channel:
    options = channel_options(TransportConfig(), max_message(RPC_LIMITS))
    options.append(("grpc.ssl_target_name_override", tls_name("broker")))
    return grpc.aio.secure_channel(address, grpc.ssl_channel_credentials(root, key, certificate), options)


def main(arguments: list[str]) -> None:
    """Join with COUNT members, and wait.

    Raises:
        FarflungError: the broker has ended a session.
    """
    members = IdleMembers(Ticket.parse(arguments[0]))
    members.join(member_name(number) for number in range(int(arguments[1])))
    while not (lost := members.lost()):
        time.sleep(0.5)
    raise FarflungError(f"{len(lost)} sessions have ended: {next(iter(lost.values()))}")


if __name__ == "__main__":
    main(sys.argv[1:])
