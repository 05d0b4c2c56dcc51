"""Requests to the broker that need neither a plan nor tensors: status, logs, watch, stop, resume.

``farflung status`` and the other short commands import only this much.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import TYPE_CHECKING

from msgspec.structs import asdict

from farflung import errors
from farflung.clock import monotonic
from farflung.errors import ConnectionLost, FailedBatch, FarflungError, SecurityError, TrainingError, WireError
from farflung.ids import new_id
from farflung.messages.calls import (
    Checking,
    ControlAnswer,
    ControlMember,
    Kick,
    Kicked,
    LogAnswer,
    LogRequest,
    Profile,
    Resumable,
    ResumableAnswer,
    Resume,
    Status,
    StatusAnswer,
    StopAnswer,
    StopRequest,
    Submit,
    Submitted,
    Watch,
)
from farflung.messages.conversions.failed_batches import failed_batch
from farflung.messages.remote_calls import ask, ask_all
from farflung.messages.schema import UNSET, Channel, Message, Parting
from farflung.messages.watching import Note, RecordLine, Result
from farflung.units import Seconds
from farflung.worker.membership import Membership

if TYPE_CHECKING:
    from farflung.telemetry.log_file import LogPart
    from farflung.transports.rpc import RpcSession

__all__ = ["ControlClient"]

#: Seconds between two attempts to reach a broker that does not answer.
_RETRY_SECONDS = 1.0


class ControlClient:
    """Calls a broker as a member with the role of a client."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._rpc = membership.client
        #: How long ``watch`` tries to reach a broker that does not answer any more.
        self.patience = Seconds(0.0)
        self._failed: dict[str, tuple[type[FarflungError], FailedBatch | None]] = {}
        self._closed = threading.Event()

    def resumable(self, source: str) -> Mapping[str, object]:
        """``step``, ``steps`` and ``schedule`` of an earlier run, from whose newest checkpoint another one may continue.

        Raises:
            FarflungError: there is no such run or checkpoint, or it is somebody else's.
        """
        return asdict(ask(self._rpc, Resumable(source=source), ResumableAnswer))

    def resume(self, source: str, steps: int | None, say: Callable[[str], None] = lambda line: None) -> Mapping[str, str]:
        """Submit a run that continues ``source`` up to ``steps`` (None: as many as before); returns what ``submit`` returns."""
        request = Resume(source=source, run=new_id("run"), steps=UNSET if steps is None else steps)
        return self._accepted(request, say)

    def _accepted(self, request: Submit | Resume, say: Callable[[str], None]) -> Mapping[str, str]:
        """Return the broker's answer to a submission."""
        for answer in ask_all(self._rpc, request):
            if isinstance(answer, Checking):
                say(f"the broker verifies the checkpoint to resume from ({answer.source})")
            elif isinstance(answer, Submitted):
                return {key: str(value) for key, value in asdict(answer).items()}
        raise WireError("the broker ended the call without an answer; install the same farflung on both machines")

    def status(self) -> Mapping[str, object]:
        """Members and runs."""
        answer = ask(self._rpc, Status(), StatusAnswer)
        found = asdict(answer)
        members = {row["name"]: row for row in answer.members}
        while (answer.more is True and answer.runs) or (answer.more_members is True and answer.members):
            wanted = Status(skip=len(found["runs"]), after=max(members) if members else UNSET)
            answer = ask(self._rpc, wanted, StatusAnswer)
            members |= {row["name"]: row for row in answer.members}
            found["states"] |= answer.states
            found["runs"] += answer.runs
        del found["more"], found["more_members"]
        return found | {"members": list(members.values())}

    def log(self, name: str, *, lines: int | None = None, position: int | None = None) -> tuple[LogPart, bool]:
        """The last ``lines`` of the log of the run or worker ``name``, or those after ``position``; whether it is complete.

        Raises:
            InputError: the broker knows no such run or worker.
            SecurityError: the run is somebody else's, or the caller does not own the broker.
        """
        from farflung.telemetry.log_file import LogPart  # here: status needs no telemetry

        wanted = LogRequest(name=name, lines=UNSET if lines is None else lines, position=UNSET if position is None else position)
        answer = ask(self._rpc, wanted, LogAnswer)
        text = bytes(answer.sections[0]).decode("utf-8", "replace")
        return LogPart(text.splitlines(), answer.position), answer.over

    def profile(self) -> Iterator[Message]:
        """Measure the links between the joined workers: each result as it is found, at last ``MeasuredTopology``."""
        yield from ask_all(self._rpc, Profile())

    def stop(self, run: str, *, now: bool = False) -> bool:
        """Ask ``run`` to end after its current step, or ``now``, in the middle of it; returns whether it has ended already."""
        return ask(self._rpc, StopRequest(run=run, now=now), StopAnswer).over

    def wish(self, name: str, *, paused: bool | None = None, parting: Parting | None = None) -> None:
        """Tell the worker ``name`` what its owner wants (None: as before)."""
        wanted = ControlMember(
            name=name, paused=UNSET if paused is None else paused, parting=UNSET if parting is None else parting
        )
        ask(self._rpc, wanted, ControlAnswer)

    def kick(self, name: str, *, undo: bool = False) -> Kicked:
        """Bar the member ``name`` from the broker, or let it in again.

        Raises:
            InputError: nobody has joined under that name.
            SecurityError: the caller does not own the broker.
        """
        return ask(self._rpc, Kick(name=name, undo=undo), Kicked)

    def watch(self, run: str) -> Iterator[Message]:
        """The broker's messages about ``run``, from its beginning to its end.

        If the broker is lost, it is called again for ``patience``, and a ``note`` says so. The messages then continue where they
        broke off.
        """
        records, away, patience = 0, False, self.patience
        seen = _Seen()
        until = monotonic() + patience
        while not self._closed.is_set():
            try:
                seen.rewind()
                for message in ask_all(self._rpc, Watch(run=run, records=records), Channel.WATCH):
                    away, until = False, monotonic() + patience
                    if isinstance(message, Result):
                        self._remember(run, message)
                        yield message
                        return
                    records += isinstance(message, RecordLine)
                    if not seen.again(message):
                        yield message
            except ConnectionLost as error:
                if monotonic() >= until:
                    raise
                if not away:
                    yield Note(text=f"{error}; trying again for at most {patience}")
                away = True
                self._reconnect()
            else:
                if monotonic() >= until:
                    return
            self._closed.wait(_RETRY_SECONDS)

    def _reconnect(self) -> None:
        """Reach the broker at another address of the ticket, if another broker has taken over there."""
        if self._membership.again is None:
            return
        with suppress(ConnectionLost, SecurityError):  # the ticket may have expired, but the certificate is still valid
            found = self._membership.again()
            self._membership, old = found, self._rpc
            self._rpc = found.client
            old.close()

    def _remember(self, run: str, result: Result) -> None:
        if result.kind:
            self._failed[run] = _kind(result.kind), failed_batch(result.batch)

    def failure(self, run: str, text: str) -> FarflungError:
        """Return an error with ``text`` of the class that ended ``run``, as the last ``watch`` of it said.

        ``TrainingError`` where the watch said nothing.
        """
        kind, batch = self._failed.get(run, (TrainingError, None))
        return kind(text).of_batch(batch)

    def dashboard(self) -> RpcSession:
        """Open a connection with the broker's dashboard. Both sides send ``DashboardBytes``."""
        return self._rpc.session("dashboard")

    def close(self) -> None:
        """End the connection; ``watch`` ends too."""
        self._closed.set()
        self._rpc.close()


class _Seen:
    """The messages of a run, without its records, in their order: a broker that is called again repeats them."""

    def __init__(self) -> None:
        self._seen: list[Message] = []
        self._place = 0

    def rewind(self) -> None:
        """The broker is called (again)."""
        self._place = 0

    def again(self, message: Message) -> bool:
        """Whether ``message`` is repeated. A broker repeats in the same order, and may leave messages out."""
        if isinstance(message, RecordLine):
            return False
        found = next((at for at in range(self._place, len(self._seen)) if self._seen[at] == message), None)
        if found is None:
            self._seen.append(message)
        self._place = len(self._seen) if found is None else found + 1
        return found is not None


def _kind(name: str) -> type[FarflungError]:
    """Return the class of errors ``name``; for a run that no error ended (""), and for an unknown name, ``TrainingError``."""
    found = getattr(errors, name) if name in errors.__all__ else TrainingError
    return found if issubclass(found, FarflungError) else TrainingError
