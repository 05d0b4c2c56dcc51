"""A worker that returns: while its broker is unreachable, it tries to join again, for a limited time."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from msgspec.structs import asdict

from farflung.clock import monotonic
from farflung.errors import ConnectionLost, FarflungError, InputError, SecurityError
from farflung.extras import require_engine
from farflung.messages.commands import OwnerRequest
from farflung.messages.schema import UNSET
from farflung.protocol.members import Parting
from farflung.telemetry.log_line import Detail
from farflung.transports.base import LinkStatistics
from farflung.transports.rpc import RpcClient
from farflung.units import Seconds
from farflung.worker.membership import Membership
from farflung.worker.observer import WorkObserver
from farflung.worker.options import WorkerOptions
from farflung.worker.owner_limits import OwnerLimitsFile, minute_of_day

if TYPE_CHECKING:
    from farflung.worker.process import CarriedOver, Worker

__all__ = ["Service"]

#: Seconds between two calls of an unreachable broker: a refused connection costs little, and its return should be noticed.
_FIRST_PAUSE, _LONGEST_PAUSE = 0.1, 0.5
#: Seconds between two polls of the owner's limits.
_POLL_SECONDS = 1.0


def _ignore(text: str) -> None:
    del text


class Service:
    """Serves a broker until ``stop``, through as many sessions as it takes.

    One thread calls ``run``, another one may call ``watch``; any thread may call ``part`` and ``stop``.
    """

    def __init__(
        self,
        enter: Callable[[], Membership],
        options: WorkerOptions,
        say: Callable[[str], None],
        limits: OwnerLimitsFile | None = None,
        phase: Callable[[str], None] = _ignore,
        observer: WorkObserver | None = None,
    ) -> None:
        """``enter`` joins with the ticket; ``say`` takes lines for the person here; ``limits`` are polled every second.

        ``phase`` is called with each slow part of the start, and with an empty text when the start is over.
        ``observer`` gets the steps and spans of runs.
        """
        self._observer = observer
        self._enter, self._options, self._say, self._phase = enter, options, say, phase
        self._limits, self._reported = limits, dict[str, Any]()
        #: What the file of limits said last. The broker may have sent newer wishes, which a full disk kept out of the file.
        self._polled: dict[str, Any] = {}
        #: Guards ``_worker``, ``_parting`` and what was polled and reported: the thread that serves, the one that polls and the
        #: session's thread change them. It is released before a message is sent.
        self._lock = threading.Lock()
        self._leaving = threading.Event()
        self._parting = False
        self._worker: Worker | None = None

    def run(self, patience: Seconds) -> None:
        """Serve; a broker that does not answer, or is lost without a goodbye, is called again for at most ``patience``.

        Raises:
            ConnectionLost: the broker said goodbye, or did not answer in time.
            FarflungError: the broker refuses this worker.
        """
        worker = self._first(patience)
        if worker is None:
            return
        try:
            self._serve(worker, patience)
        finally:
            worker.carried.device.engine.end()

    def _serve(self, worker: Worker, patience: Seconds) -> None:
        """Serve through as many sessions as it takes, the first one with ``worker``."""
        until = 0.0  # monotonic seconds; 0: no session has been lost yet
        while True:
            try:
                worker.serve()
                if not worker.session.welcomed:  # this worker left before that
                    worker.membership.withdraw()
                return
            except (ConnectionLost, InputError) as error:
                taken = isinstance(error, InputError)  # the broker has not noticed yet that the old session is over
                if self._parting:
                    return  # the broker is lost: no other worker can continue the run
                if worker.session.dismissed or (taken and not until):
                    raise
                now = monotonic()
                if worker.session.welcomed or not until:
                    until = now + patience
                    if patience:
                        self._say(f"{error}; trying again for at most {patience}")
                if now >= until:
                    raise
                again = self._again(worker.membership, until, error)
            finally:
                worker.close()
            if again is None:
                return
            worker = self._start(again, worker.carried)

    def _first(self, patience: Seconds) -> Worker | None:
        """Register with the broker, then load PyTorch, measure the device and return the worker of the first session.

        The broker lists the machine as joining meanwhile. A wrong ticket is reported before the slow part.
        Return ``None`` if this worker leaves before the broker answers.
        """
        require_engine(self._options.engine)
        self._phase("connecting to the broker")
        member = self._register(patience)
        if member is None:
            return None
        self._say(Detail(f"{member.name}: registered with the broker at {member.client.address}"))
        with ExitStack() as undo:  # the broker must not list a machine that does not come
            undo.callback(member.client.close)
            undo.callback(member.withdraw)
            from farflung.worker.device_measurement import open_device  # here and in _start: PyTorch takes seconds to load
            from farflung.worker.process import CarriedOver
            from farflung.worker.retained_states import RetainedStates

            device = open_device(self._options, self._say, self._phase)
            undo.callback(device.engine.end)
            worker = self._start(member, CarriedOver(device=device, retained=RetainedStates()))
            undo.pop_all()
        self._phase("")
        return worker

    def _register(self, patience: Seconds) -> Membership | None:
        """Join; a broker that does not answer yet is called again for at most ``patience`` (None: this worker leaves)."""
        try:
            return self._enter()
        except ConnectionLost as error:
            if not patience:
                raise
            until = monotonic() + patience
            self._say(f"{error}; trying again for at most {patience}")
            return self._again(None, until, error)

    def links(self) -> Mapping[str, LinkStatistics] | None:
        """Return the traffic of this session with each peer (None: there is no session)."""
        with self._lock:
            worker = self._worker
        return worker.endpoint.statistics() if worker is not None and worker.session.welcomed else None

    def watch(self) -> None:
        """Poll the owner's limits until the end, on the calling thread."""
        assert self._limits is not None
        while not self._leaving.wait(_POLL_SECONDS):
            wanted = self._wanted(self._limits)
            with self._lock:
                worker, before = self._worker, self._polled
                changed = wanted != before
                if changed:
                    self._polled = self._reported = wanted
            if changed and worker is not None:
                if wanted.get("paused") != before.get("paused"):
                    self._say("paused until farflung resume: no run uses it" if wanted.get("paused") else "no longer paused")
                worker.announce(wanted)

    def _wanted(self, limits: OwnerLimitsFile) -> dict[str, Any]:
        """Return what the file says now (what it said last, if it cannot be read: a damaged file ends no worker)."""
        try:
            return limits.read().in_force(minute_of_day())
        except FarflungError:
            return self._polled

    def part(self) -> None:
        """Leave as soon as other workers can continue the run; the second call leaves at once. Any thread may call."""
        with self._lock:
            worker, again = self._worker, self._parting
            self._parting = True
        if again or worker is None or not worker.session.welcomed:
            self.stop()
            return
        self._say("leaving as soon as others can go on (Ctrl-C again: at once)")
        worker.announce({**self._reported, "parting": Parting.LEAVE.value})

    def _owner_asked(self, request: OwnerRequest) -> None:
        """The owner has changed the limits through the broker (session's thread)."""
        changes = {key: value for key, value in asdict(request).items() if value is not UNSET}
        if self._limits is not None:
            try:
                self._limits.change(**changes)
            except FarflungError as error:
                self._say(f"warning: the changed limits apply until this worker ends, because they cannot be stored: {error}")
        with self._lock:
            worker = self._worker
            self._reported = self._reported | changes  # a new value: ``_polled`` stays
        if worker is not None:
            worker.announce(self._reported)

    def stop(self) -> None:
        """Leave, from any thread."""
        self._leaving.set()
        with self._lock:
            worker = self._worker
        if worker is not None:
            worker.stop()

    def _start(self, member: Membership, carried: CarriedOver) -> Worker:
        """Return the worker of a new session (``carried``: the device, and what is left of the last session)."""
        from farflung.worker.process import Worker

        worker = Worker(member, self._options, self._say, carried=carried, on_owner=self._owner_asked, observer=self._observer)
        if self._limits is not None:
            with self._lock:
                wanted = self._wanted(self._limits)
                if wanted != self._polled:
                    self._polled = self._reported = wanted
            worker.announce(self._reported)
        with self._lock:
            self._worker = worker
        if self._leaving.is_set():  # ``stop`` may have come before it could find this worker
            worker.stop()
        return worker

    def _again(self, old: Membership | None, until: float, error: FarflungError) -> Membership | None:
        """Join again, with growing pauses (None: this worker leaves). ``old``: as which it was joined before.

        Raises:
            FarflungError: why the last try failed.
        """
        pause = _FIRST_PAUSE
        while not self._leaving.wait(min(pause, max(until - monotonic(), 0.0))):
            try:
                return self._enter()
            except SecurityError:  # a ticket expires early, a certificate is valid for seven days
                if old is None:
                    raise
                return replace(old, client=RpcClient(old.client.address, old.credentials))
            except ConnectionLost as failure:
                error = failure
            if monotonic() >= until:
                raise error
            pause = min(2 * pause, _LONGEST_PAUSE)
        return None
