"""Stopping runs, and passing on what owners want of their workers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from farflung.broker.records.run_folders import RunFolders
from farflung.broker.requests.permission import caller_of, client_of
from farflung.broker.run_table import RunTable
from farflung.errors import InputError, SecurityError
from farflung.messages.calls import ControlAnswer, ControlMember, StopAnswer, StopRequest
from farflung.messages.commands import OwnerRequest
from farflung.messages.remote_calls import serve
from farflung.messages.schema import Message
from farflung.protocol.events import Event, StopRequested
from farflung.transports.rpc.calls import Call
from farflung.transports.rpc.server import RpcServer

__all__ = ["RunControl"]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunControl:
    """``owner_key`` returns the fingerprint of the key to which a name is bound. ``send`` never waits."""

    runs: RunTable
    folders: RunFolders
    handle: Callable[[Event], None]
    send: Callable[[str, Message], None]
    owner_key: Callable[[str], str]

    def register(self, server: RpcServer) -> None:
        """Serve the calls."""
        serve(server, StopRequest, self.stop)
        serve(server, ControlMember, self.member)

    def stop(self, call: Call, request: StopRequest) -> StopAnswer:
        """Stop a run after its current step, or ``now``."""
        caller = client_of(call, "stop runs")
        run, now = request.run, request.now
        with self.runs.changed:
            known = self.runs.machine.runs.get(run)
            if known is not None and known.state.over:
                raise InputError(f"run {run!r} is over already: {known.state.value}{f', {known.cause}' if known.cause else ''}")
        if known is None:
            self.runs.live(run)  # else the error lists the runs
        else:
            self.folders.check(run, caller, "stop it")
        self.handle(StopRequested(run=run, now=now))  # without the lock: it may write files
        with self.runs.changed:
            over = run in self.runs.machine.runs and self.runs.machine.runs[run].state.over
        return StopAnswer(over=over)

    def member(self, call: Call, request: ControlMember) -> ControlAnswer:
        """Pass the wishes of the broker's owner, or of a worker's owner (who has its key), on to the worker."""
        caller = caller_of(call)
        name = request.name
        with self.runs.changed:
            known = ", ".join(self.runs.machine.members) or "none"
            connected = name in self.runs.machine.members
        if not connected:
            raise InputError(f"no worker called {name!r} is connected; there are {known}")
        if caller.role != "owner" and (not caller.key or caller.key != self.owner_key(name)):
            raise SecurityError(f"worker {name!r} belongs to somebody else: only its owner, or the broker's owner, may do that")
        self.send(name, OwnerRequest(paused=request.paused, parting=request.parting))
        return ControlAnswer()
