"""Requests to the broker that need neither a plan nor tensors: status, logs, watch, stop, resume.

``farflung status`` and the other short commands import only this much.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING

from farflung import errors
from farflung.clock import monotonic
from farflung.errors import ConnectionLost, FarflungError, TrainingError
from farflung.ids import new_id
from farflung.units import Seconds
from farflung.wire.frames import Frame
from farflung.worker.membership import Membership

if TYPE_CHECKING:
    from farflung.telemetry.log_file import LogPart

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
        self._failed: dict[str, type[FarflungError]] = {}
        self._closed = threading.Event()

    def resumable(self, source: str) -> Mapping[str, object]:
        """``step``, ``steps`` and ``schedule`` of an earlier run, from whose newest checkpoint another one may continue.

        Raises:
            FarflungError: there is no such run or checkpoint, or it is somebody else's.
        """
        return self._rpc.call("resumable", Frame("resumable", {"source": source})).header

    def resume(self, source: str, steps: int | None, say: Callable[[str], None] = lambda line: None) -> Mapping[str, str]:
        """Submit a run that continues ``source`` up to ``steps`` (None: as many as before); returns what ``submit`` returns."""
        header = {"source": source, "run": new_id("run")} | ({} if steps is None else {"steps": steps})
        return self._accepted("resume", Frame("resume", header), say)

    def _accepted(self, method: str, request: Frame, say: Callable[[str], None]) -> Mapping[str, str]:
        """Call ``method``; return the broker's answer to a submission."""
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
        from farflung.telemetry.log_file import LogPart  # here: status needs no telemetry

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
        """The broker's messages about ``run``, from its beginning to its end.

        If the broker is lost, it is called again for ``patience``, and a ``note`` says so. Records then continue where they broke
        off; the other messages (the plan, notes) are repeated.
        """
        records, away, patience = 0, False, self.patience
        until = monotonic() + patience
        while not self._closed.is_set():
            try:
                for frame in self._rpc.stream("watch", Frame("watch", {"run": run, "records": records})):
                    away, until = False, monotonic() + patience
                    records += frame.kind == "record"
                    if frame.kind == "result" and frame.header.get("kind"):
                        self._failed[run] = _kind(frame.header["kind"])
                    yield frame
                    if frame.kind == "result":
                        return
            except ConnectionLost as error:
                if monotonic() >= until:
                    raise
                if not away:
                    yield Frame("note", {"text": f"{error}; trying again for at most {patience}"})
                away = True
            else:
                if monotonic() >= until:
                    return
            self._closed.wait(_RETRY_SECONDS)

    def failure(self, run: str) -> type[FarflungError]:
        """The class of the error that ended ``run``, as the last ``watch`` of it said (``TrainingError`` where it did not)."""
        return self._failed.get(run, TrainingError)

    def close(self) -> None:
        """End the connection; ``watch`` ends too."""
        self._closed.set()
        self._rpc.close()


def _kind(name: object) -> type[FarflungError]:
    found = getattr(errors, name) if isinstance(name, str) and name in errors.__all__ else TrainingError
    return found if issubclass(found, FarflungError) else TrainingError
