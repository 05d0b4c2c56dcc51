"""The submitting side: hand a job in, watch it, stop it, fetch its states."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from farflung import errors
from farflung.engines.base import Array
from farflung.errors import ConnectionLost, FarflungError, TrainingError
from farflung.ids import new_id
from farflung.messages.array_stream import pieces_of, read_arrays
from farflung.messages.relays import read_relays
from farflung.messages.submission import Bundle
from farflung.plan.document import plan_from_json
from farflung.plan.model import Plan
from farflung.telemetry.log_file import LogPart
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.units import Seconds
from farflung.wire.frames import Frame
from farflung.worker.membership import Membership

#: Seconds between two calls of a broker that is away.
_AGAIN = 1.0

__all__ = ["Client", "PlannedRun"]


@dataclass(frozen=True, kw_only=True)
class PlannedRun:
    """What the broker tells when the plan is made. ``recovered``: an earlier plan of the run has begun to train."""

    plan: Plan
    addresses: Mapping[str, str]
    first_step: int
    predicted_seconds: float
    #: One line, and the tables.
    summary: str
    explanation: str
    attempt: int = 1
    relays: Mapping[str, Sequence[tuple[str, str]]] = field(default_factory=dict)
    recovered: bool = False

    @classmethod
    def from_frame(cls, frame: Frame) -> PlannedRun:
        """Read the broker's ``planned``."""
        header = frame.header
        return cls(
            plan=plan_from_json(header["plan"]),
            addresses={str(name): str(address) for name, address in header["addresses"].items()},
            first_step=int(header["first_step"]),
            predicted_seconds=float(header["predicted"]),
            summary=str(header.get("summary", header["explanation"])),
            explanation=str(header["explanation"]),
            attempt=int(header.get("attempt", 1)),
            relays=read_relays(header),
            recovered=header.get("recovered") is True,
        )


class Client:
    """Calls a broker as a member with the role of a client."""

    def __init__(self, membership: Membership) -> None:
        self._membership = membership
        self._rpc = membership.client
        #: How long ``watch`` calls a broker again that went away.
        self.patience = Seconds(0.0)
        self._failed: dict[str, type[FarflungError]] = {}

    def send_weights(self, run: str, pieces: Iterable[bytes | memoryview]) -> None:
        """Send a safetensors file that ``run`` shall begin with; before ``submit``."""
        session = self._rpc.session("upload")
        try:
            for frame in pieces_of(pieces, "weights", {"run": run}):
                session.send(frame)
            session.end()
        except ConnectionLost:
            pass  # the broker refused it: iterating tells why
        for _ in session:
            pass

    def submit(self, bundle: Bundle, say: Callable[[str], None] = lambda line: None) -> Mapping[str, str]:
        """Hand in a job; it begins when enough workers are there. Returns ``run``, ``state`` and ``folder`` (at the broker).

        A job that resumes waits for as long as the broker reads the checkpoint (``say`` is told); a broker that dies meanwhile
        is noticed by the connection.
        """
        return self._taken_in("submit", bundle.to_frame("submit"), say)

    def resumable(self, source: str) -> Mapping[str, object]:
        """``step``, ``steps`` and ``schedule`` of an earlier run, from whose newest checkpoint another one may continue.

        Raises:
            FarflungError: there is no such run or checkpoint, or it is somebody else's.
        """
        return self._rpc.call("resumable", Frame("resumable", {"source": source})).header

    def resume(self, source: str, steps: int | None, say: Callable[[str], None] = lambda line: None) -> Mapping[str, str]:
        """Submit a run that continues ``source`` up to ``steps`` (None: as many as before); returns what ``submit`` returns."""
        header = {"source": source, "run": new_id("run")} | ({} if steps is None else {"steps": steps})
        return self._taken_in("resume", Frame("resume", header), say)

    def _taken_in(self, method: str, request: Frame, say: Callable[[str], None]) -> Mapping[str, str]:
        answer: Mapping[str, object] = {}
        for frame in self._rpc.stream(method, request):
            if frame.kind == "checking":
                say(f"the broker verifies the checkpoint to resume from ({frame.header['source']})")
            answer = frame.header
        return {key: str(value) for key, value in answer.items()}

    def status(self) -> Mapping[str, object]:
        """Members and runs."""
        return self._rpc.call("status", Frame("status")).header

    def log(self, name: str, *, lines: int | None = None, position: int | None = None) -> tuple[LogPart, bool]:
        """The last ``lines`` of the log of the run or worker ``name``, or those after ``position``; whether it is complete.

        Raises:
            InputError: the broker knows no such run or worker.
            SecurityError: the run is somebody else's, or the caller does not own the broker.
        """
        wanted = {"lines": lines} if position is None else {"position": position}
        answer = self._rpc.call("log", Frame("log", {"name": name, **wanted}))
        text = bytes(answer.sections[0]).decode("utf-8", "replace")
        return LogPart(text.splitlines(), int(answer.header["position"])), answer.header.get("over") is True

    def profile(self) -> Iterator[Frame]:
        """Measure the links between the joined workers: what is found as it is found, at last ``topology``."""
        yield from self._rpc.stream("profile", Frame("profile"))

    def stop(self, run: str, *, now: bool = False) -> bool:
        """Ask ``run`` to end after its current step, or ``now``, in the middle of it; returns whether it has ended already."""
        return self._rpc.call("stop", Frame("stop", {"run": run, "now": now})).header.get("over") is True

    def wish(self, name: str, **wishes: bool | str) -> None:
        """Tell the worker ``name`` what its owner wants: ``paused``, ``parting``."""
        self._rpc.call("member", Frame("member", {"name": name, **wishes}))

    def watch(self, run: str) -> Iterator[Frame]:
        """What the broker tells of ``run``, from its beginning until it is over.

        A broker that went away is called again for ``patience``, and a ``note`` says so. Then records go on where they broke
        off; what was told beside them (the plan, notes) is told again.
        """
        records, away, patience = 0, False, self.patience
        until = time.monotonic() + patience
        while True:
            try:
                for frame in self._rpc.stream("watch", Frame("watch", {"run": run, "records": records})):
                    away, until = False, time.monotonic() + patience
                    records += frame.kind == "record"
                    if frame.kind == "result" and frame.header.get("kind"):
                        self._failed[run] = _kind(frame.header["kind"])
                    yield frame
                    if frame.kind == "result":
                        return
            except ConnectionLost as error:
                if time.monotonic() >= until:
                    raise
                if not away:
                    yield Frame("note", {"text": f"{error}; trying again for at most {patience}"})
                away = True
            else:
                if time.monotonic() >= until:
                    return
            threading.Event().wait(_AGAIN)

    def failure(self, run: str) -> type[FarflungError]:
        """The class of the error that ended ``run``, as the last ``watch`` of it said (``TrainingError`` where it did not)."""
        return self._failed.get(run, TrainingError)

    def states(self, run: str, names: Sequence[str]) -> dict[str, Array]:
        """States of the run's newest checkpoint."""
        request = Frame("states", {"run": run, "source": "checkpoint", "names": list(names)})
        return read_arrays(self._rpc.stream("states", request))

    def endpoint(self) -> TcpEndpoint:
        """An endpoint of this member, to send data to workers."""
        return TcpEndpoint(self._membership.credentials, lambda peer, frame: None, listen="127.0.0.1:0")

    def close(self) -> None:
        """End the connection."""
        self._rpc.close()


def _kind(name: object) -> type[FarflungError]:
    found = getattr(errors, name) if isinstance(name, str) and name in errors.__all__ else TrainingError
    return found if issubclass(found, FarflungError) else TrainingError
