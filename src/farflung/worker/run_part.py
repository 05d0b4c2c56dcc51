"""A worker's part in one attempt of a run: what training and helping have in common, and the slot for the current part."""

from __future__ import annotations

import threading
import traceback
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import NamedTuple

from farflung.data.base import Place
from farflung.data.fetching import Fetch
from farflung.defects import defect_text
from farflung.engines.base import Engine
from farflung.engines.state_file import DiskSpace
from farflung.errors import ConnectionLost, FarflungError, WireError
from farflung.memory_budget import MemoryBudget
from farflung.messages.commands import Help, Helper, HelperGone, Prepare, Recheck
from farflung.messages.conversions.failed_batches import batch_item
from farflung.messages.conversions.step_reports import StepReport
from farflung.messages.data import RunMessage
from farflung.messages.reports import Failed, Waits
from farflung.messages.schema import UNSET, Flag, Message
from farflung.step.run_setup import attempt_name
from farflung.telemetry.log_line import Detail
from farflung.thread_group import ThreadGroup
from farflung.transports.base import Arrival
from farflung.worker.broker_storage import BrokerStorage
from farflung.worker.links.peer_links import PeerLinks
from farflung.worker.observer import NoObserver, WorkObserver
from farflung.worker.retained_states import RetainedStates

__all__ = ["CurrentPart", "EndedAttempt", "RunPart", "RunRequests", "RunServices", "Sender"]

#: How long a part may take to end, in seconds.
_END_SECONDS = 30.0
#: Shorter waits are not reported, in seconds.
_WAITS_SECONDS = 2.0


class Sender(NamedTuple):
    """Where a message of the data plane comes from. ``nbytes``: of its frame."""

    peer: str
    nbytes: int


@dataclass(frozen=True, kw_only=True)
class RunServices:
    """What a worker offers to its part in a run.

    ``memory``: bytes for training. ``budget``: for what peers send. ``report`` sends a message to the broker. ``log`` takes lines
    for the person here. ``place``: where jobs find files. ``disk``: for optimizer states (None: no space).
    """

    engine: Engine
    device: str
    memory: int
    budget: MemoryBudget
    place: Place
    links: PeerLinks
    retained: RetainedStates
    storage: BrokerStorage
    report: Callable[[Message], None]
    log: Callable[[str], None]
    observer: WorkObserver = field(default_factory=NoObserver)
    disk: DiskSpace | None = None


class RunRequests:
    """What others ask of a run part. Any thread may set them; the part's own thread reads them."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._stop, self._drain = threading.Event(), threading.Event()
        #: Set when the run stops or ends.
        self._wake = threading.Event()
        #: The first error that ended the part.
        self.ended_by: BaseException | None = None
        #: Whether the broker has the cause of the end already.
        self.broker_knows = False
        #: Whether other workers may continue from the states that this part leaves.
        self.keep = True

    @property
    def stopping(self) -> bool:
        """Whether the run shall end after the current step."""
        return self._stop.is_set()

    @property
    def draining(self) -> bool:
        """Whether the attempt shall end after the current step with a checkpoint, for other workers to continue."""
        return self._drain.is_set()

    def stop(self) -> None:
        """End after the current step."""
        self._stop.set()
        self._wake.set()

    def drain(self) -> None:
        """End the attempt after the current step, with a checkpoint."""
        self._drain.set()

    def end(self, error: BaseException, *, broker_knows: bool, keep: bool) -> None:
        """End with ``error``, unless there is an earlier one."""
        with self._lock:  # the session's thread and transport threads may both end a part
            self.keep = self.keep and keep
            self.broker_knows = self.broker_knows or broker_knows
            self.ended_by = self.ended_by or error
        self._wake.set()

    def raise_if_ended(self) -> None:
        """Raise the error that ended the part, if there is one."""
        if self.ended_by is not None:
            raise self.ended_by

    def wait(self, seconds: float) -> None:
        """Wait ``seconds``, or until the run stops or ends."""
        self._wake.wait(seconds)


class RunPart(ABC):
    """A worker's part in one attempt of a run, on a thread of its own."""

    def __init__(self, command: Prepare | Help, services: RunServices, on_end: Callable[[RunPart], None]) -> None:
        """``on_end`` is called on the part's thread when the part has ended."""
        self._services, self._on_end = services, on_end
        self.run, self.attempt = command.run, command.attempt
        #: What peers call this attempt.
        self.name = attempt_name(self.run, self.attempt)
        #: What this part fetches of the job's data.
        self.fetch = Fetch()
        self._requests = RunRequests()
        self._threads = ThreadGroup()

    # -- from other threads -------------------------------------------------------------------------------------------

    @abstractmethod
    def start(self) -> None:
        """Prepare, on the part's thread."""

    def join(self, timeout: float | None = _END_SECONDS) -> None:
        """Wait for the part's thread, at most ``timeout`` seconds (None: no limit)."""
        self._threads.join(timeout)

    def begin(self) -> None:  # noqa: B027 - a helper has nothing to do
        """All workers of the run are prepared: train."""

    def stop(self) -> None:
        """End after the current step."""
        self._requests.stop()

    def drain(self) -> None:
        """End after the current step with a checkpoint, from which other workers continue."""
        self._requests.drain()

    def on_command(self, command: Helper | HelperGone | Recheck) -> None:  # noqa: B027 - a helper has no helpers
        """A helper comes or goes, or work of another worker must be verified, as the broker reports."""

    def on_arrival(self, arrival: Arrival) -> None:  # noqa: B027 - a helper has no trace
        """A frame has come (transport thread)."""

    def awaited(self) -> tuple[tuple[str, ...], float]:
        """The peers for whose messages this part waits, and for how many seconds it has waited."""
        return (), 0.0

    def reports(self) -> Sequence[StepReport]:
        """Reports of the last steps, with all losses; complete when the part has ended."""
        return ()

    @abstractmethod
    def abort(self, error: BaseException, *, broker_knows: bool = False, keep: bool = True) -> None:
        """End with ``error``. ``keep``: other workers may continue from the states that this part leaves."""

    @abstractmethod
    def on_message(self, sender: Sender, message: RunMessage) -> None:
        """Take a message of this attempt (transport thread).

        Raises:
            WireError: it does not belong here, or its arrays are malformed.
        """

    def on_malformed(self, peer: str, error: WireError) -> None:  # noqa: B027 - a helper leaves it to the sender, which gets the error
        """``peer`` sent a frame that is not a message (transport thread)."""

    @abstractmethod
    def on_lost(self, peer: str, error: FarflungError) -> None:
        """The connection with ``peer`` is lost (transport thread)."""

    # -- the part's thread --------------------------------------------------------------------------------------------

    @abstractmethod
    def _work(self) -> None:
        """Do the part."""

    @abstractmethod
    def _close(self) -> None:
        """Release what the part has opened."""

    @abstractmethod
    def _describe(self, error: Exception, cause: str) -> tuple[str, Flag]:
        """Of a failure: the line for the log, and whether the connection to a peer was lost."""

    def _main(self) -> None:
        try:
            self._work()
        except Exception as error:  # noqa: BLE001 - the thread's outermost: whatever ends this part, the broker gets a report
            self._report_failure(error)
        finally:
            try:
                self._close()
            finally:
                self._on_end(self)  # else this worker would count as busy

    def _report_failure(self, error: Exception) -> None:
        if self._requests.broker_knows:
            return
        ours = isinstance(error, FarflungError)
        cause = str(error) if ours else defect_text(error)
        kind = type(error).__name__ if ours else "TrainingError"
        line, lost_peer = self._describe(error, cause)
        self._services.log(line)
        if not ours:
            self._services.log(Detail("".join(traceback.format_exception(error))))
        with suppress(ConnectionLost):  # the broker is lost too
            known = error if isinstance(error, FarflungError) else FarflungError()
            batch, blames = batch_item(known.batch), known.blames or UNSET
            head = partial(Failed, run=self.run, attempt=self.attempt, lost_peer=lost_peer, batch=batch, blames=blames)
            self._services.report(head(cause=cause[:3000], kind=kind))


@dataclass(frozen=True, slots=True, kw_only=True)
class EndedAttempt:
    """The last attempt that this worker took part in, with the reports of its last steps."""

    run: str
    attempt: int
    reports: Sequence[StepReport] = ()


class CurrentPart:
    """The one run part that a worker works on at a time, and the last one that has ended. Any thread may call."""

    def __init__(self, ended: EndedAttempt | None) -> None:
        #: Taken by whoever changes the parts. Readers need no lock: they read one reference, once.
        self._lock = threading.Lock()
        self._part: RunPart | None = None
        #: The newest part of this session, running or not.
        self._newest: RunPart | None = None
        self._ended = ended
        #: Whether the last heartbeat said that the part waits.
        self._waited = False
        #: The bytes that the last heartbeat said that the part has fetched.
        self._fetched = 0

    @property
    def part(self) -> RunPart | None:
        """The part that runs now."""
        return self._part

    @property
    def ended(self) -> EndedAttempt | None:
        """The last attempt that has ended here, in this session or an earlier one."""
        return self._ended

    def waits(self) -> Waits | None:
        """Report for whom the part that runs now has waited for some time, and once that it waits no more; or what it fetches.

        One thread calls.
        """
        part = self._part
        if part is None:
            return None
        peers, seconds = part.awaited()
        peers = peers if seconds >= _WAITS_SECONDS else ()
        before, self._waited = self._waited, bool(peers)
        fetched, self._fetched = self._fetched, part.fetch.nbytes
        if not (peers or before) and fetched == self._fetched:
            return None
        return Waits(run=part.run, attempt=part.attempt, peers=peers, seconds=seconds, fetched=self._fetched or UNSET)

    def named(self, run: str) -> RunPart | None:
        """The part that runs now, if peers call it ``run``; else a message is of an older attempt."""
        part = self._part
        return part if part is not None and part.name == run else None

    def on_arrival(self, arrival: Arrival) -> None:
        """A frame has come (transport thread)."""
        part = self._part
        if part is not None:
            part.on_arrival(arrival)

    def on_lost(self, peer: str, error: ConnectionLost, run: str) -> None:
        """The connection with ``peer`` is lost, whose last frame was of ``run`` (transport thread)."""
        part = self.named(run)  # else it is an old connection, e.g. of a peer that came back since
        if part is not None:
            part.on_lost(peer, error)

    def start(self, part: RunPart) -> None:
        """Begin ``part``; there must be no other."""
        with self._lock:
            self._part = self._newest = part
        part.start()  # after it is known: the answers of peers must find it

    def end(self, error: FarflungError) -> RunPart | None:
        """End the part that runs now, and return it: ``join`` waits for it."""
        with self._lock:
            part, self._part = self._part, None
        if part is not None:
            part.abort(error, broker_knows=True)
        return part

    def wait(self, run: str) -> None:
        """Wait until the newest part has ended, if it is one of ``run``."""
        newest = self._newest
        if newest is not None and newest.run == run:
            newest.join(None)

    def over(self, part: RunPart) -> None:
        """``part`` has ended (on its own thread)."""
        with self._lock:
            if self._part is part:
                self._part = None
            if self._newest is part:
                self._ended = EndedAttempt(run=part.run, attempt=part.attempt, reports=tuple(part.reports()))
