"""Sending: one thread per peer and urgency takes values from a bounded queue, encodes them and hands frames to the transport.

Encoding happens here, off the compute thread, so that compute, encode and send overlap. The queues are short: when a link is
slower than the compute, ``post`` blocks, and memory stays bounded by the plan's figure. Frames of one urgency stay in order;
the more urgent overtake the others, here and on the link (``transports.base.Urgency``).
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from farflung.errors import ConnectionLost
from farflung.step.frame_log import frame_facts
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import SpanRing, frame_name
from farflung.transports.base import Endpoint, Urgency
from farflung.wire.frames import Frame

__all__ = ["LinkUse", "Outbox", "OutgoingFrame"]

#: Builds a frame on the sender's thread (this is where a codec runs); None: an earlier frame of the lane had it with it.
MakeFrame = Callable[[], Frame | None]

#: Peer and urgency.
Lane = tuple[str, Urgency]

#: Stage that sends and stage that receives.
StagePair = tuple[int, int]

_QUEUE_FRAMES = 6
#: For all sender threads together: no run waits longer for those of the last one.
_CLOSE_SECONDS = 2.0
#: A frame that many small things share shall take a link so long, or its round trip: bytes at least, at most, and before the rate
#: of the link is known.
_TOGETHER_SECONDS, _TOGETHER = 0.04, (16 << 10, 1 << 20, 64 << 10)


@dataclass(slots=True)
class LinkUse:
    """What one step sent: bytes by pair of stages, as sent and as they would be without a codec; seconds of encoding."""

    sent: dict[StagePair, int] = field(default_factory=dict)
    dense: dict[StagePair, int] = field(default_factory=dict)
    encode_seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingFrame:
    """A frame to be made and sent. ``pair`` and ``dense`` (bytes) are for the meter of step ``step``.

    ``waits``: its poster waits while the queue is full; not so where the frame holds memory that is there anyway.
    """

    make: MakeFrame
    urgency: Urgency = Urgency.VALUES
    step: int = -1
    pair: StagePair | None = None
    dense: int = 0
    waits: bool = True


class _Meter:
    """Adds up what each step sends; a step's sum is told once all its parcels have been made."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._use: dict[int, LinkUse] = {}
        self._open: dict[int, int] = {}
        self._waiting: dict[int, Callable[[LinkUse], None]] = {}

    def posted(self, parcel: OutgoingFrame) -> None:
        if parcel.pair is not None:
            with self._lock:
                self._open[parcel.step] = self._open.get(parcel.step, 0) + 1

    def made(self, parcel: OutgoingFrame, frame: Frame | None, seconds: float) -> None:
        if parcel.pair is None:
            return
        size = 0 if frame is None else sum(memoryview(section).nbytes for section in frame.sections)
        with self._lock:
            use = self._use.setdefault(parcel.step, LinkUse())
            use.sent[parcel.pair] = use.sent.get(parcel.pair, 0) + size
            use.dense[parcel.pair] = use.dense.get(parcel.pair, 0) + parcel.dense
            use.encode_seconds += seconds
            self._open[parcel.step] -= 1
            told = self._take(parcel.step)
        if told is not None:
            told[0](told[1])

    def when_done(self, step: int, tell: Callable[[LinkUse], None]) -> None:
        with self._lock:
            self._waiting[step] = tell
            told = self._take(step)
        if told is not None:
            told[0](told[1])

    def _take(self, step: int) -> tuple[Callable[[LinkUse], None], LinkUse] | None:
        if self._open.get(step, 0) > 0 or step not in self._waiting:
            return None
        self._open.pop(step, None)
        return self._waiting.pop(step), self._use.pop(step, LinkUse())


class Outbox:
    """The outgoing side of one executor. ``on_error`` is called once, on a sender's thread, when a peer is lost."""

    def __init__(
        self,
        endpoint: Endpoint,
        peers: Sequence[str],
        on_error: Callable[[BaseException], None],
        trace: SpanRing | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._trace = trace or SpanRing()
        #: When the last frame of each lane had arrived: one that was posted earlier began to move only then.
        self._arrived: dict[Lane, float] = {}
        self._on_error = on_error
        self._meter = _Meter()
        self._changed = threading.Condition()
        self._error: BaseException | None = None
        self._peers = frozenset(peers)
        self._waiting: dict[Lane, deque[OutgoingFrame]] = {}
        self._under_way = 0
        self._threads: list[threading.Thread] = []

    def post(self, peer: str, parcel: OutgoingFrame) -> None:
        """Queue a frame for ``peer``; blocks while its queue is full.

        Raises:
            KeyError: ``peer`` is none of this run's.
            BaseException: what ended the links meanwhile.
        """
        self._meter.posted(parcel)
        with self._changed:
            waiting = self._lane((peer, parcel.urgency))
            if parcel.waits and len(waiting) >= _QUEUE_FRAMES:
                begin = self._trace.now()
                self._changed.wait_for(lambda: self._error is not None or len(waiting) < _QUEUE_FRAMES)
                if parcel.step >= 0:  # others, such as copies of states, are not sent by the thread that computes
                    self._trace.note(SpanKind.WAIT, "for the link's queue", begin, step=parcel.step, peer=peer)
            if self._error is not None:
                raise self._error
            waiting.append(parcel)
            self._changed.notify_all()

    def together(self, peer: str) -> int:
        """Bytes that small things for ``peer`` should have together in a frame: few frames are under way, whatever their size."""
        least, most, unknown = _TOGETHER
        seen = self._endpoint.statistics().get(peer)
        if seen is None or not seen.rate:
            return unknown
        return int(min(max(seen.rate * max(float(seen.round_trip), _TOGETHER_SECONDS), least), most))

    def rate(self, peer: str) -> float:
        """Bytes per second that the link to ``peer`` has carried while it was busy (0: not known)."""
        seen = self._endpoint.statistics().get(peer)
        return 0.0 if seen is None else seen.rate

    def when_sent(self, step: int, tell: Callable[[LinkUse], None]) -> None:
        """Call ``tell`` (on some thread) with what ``step`` sent, once its last frame is made; post nothing for it after."""
        self._meter.when_done(step, tell)

    def flush(self) -> None:
        """Wait until everything queued so far has been delivered.

        Raises:
            BaseException: what ended the links meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not (self._under_way or any(self._waiting.values())))
            if self._error is not None:
                raise self._error

    def abort(self, error: BaseException) -> None:
        """Drop what is queued; whoever posts, flushes or waits here gets ``error`` (the first one stays)."""
        with self._changed:
            self._error = self._error or error
            for waiting in self._waiting.values():
                waiting.clear()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the sender threads; queued frames are dropped. One whose link stands still ends when that moves, or breaks."""
        self.abort(ConnectionLost("the links of this run are closed"))
        end = time.monotonic() + _CLOSE_SECONDS
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(timeout=max(end - time.monotonic(), 0.0))

    def _lane(self, lane: Lane) -> deque[OutgoingFrame]:
        """The queue of ``lane``, whose thread starts with its first frame (under the lock)."""
        peer, urgency = lane
        if peer not in self._peers:
            raise KeyError(peer)
        if lane not in self._waiting and self._error is None:
            self._waiting[lane] = deque()
            name = f"send-{peer}-{urgency.name.lower()}"
            self._threads.append(threading.Thread(target=self._send_all, args=(lane,), name=name, daemon=True))
            self._threads[-1].start()
        return self._waiting.get(lane, deque())

    def _send_all(self, lane: Lane) -> None:
        waiting = self._waiting[lane]
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._error is not None or bool(waiting))
                if self._error is not None:
                    return
                parcel = waiting.popleft()
                self._under_way += 1
                self._changed.notify_all()
            try:
                self._send_one(lane[0], parcel)
            except Exception as error:  # noqa: BLE001 - whatever ends this thread must reach the compute thread
                self._delivered(error)
                return

    def _send_one(self, peer: str, parcel: OutgoingFrame) -> None:
        begin = self._trace.now()
        frame = parcel.make()
        seconds = self._trace.now() - begin
        if frame is None:
            self._meter.made(parcel, frame, seconds)
            self._delivered(None)
            return
        if parcel.pair is not None:
            facts = frame_facts(frame)
            place = {"step": parcel.step, "stage": parcel.pair[0], "micro_batch": facts.micro_batch}
            self._trace.note(SpanKind.ENCODE, frame_name("encode", facts.what), begin, peer=peer, **place)
        posted = self._trace.now()
        future = self._endpoint.post(peer, frame, parcel.urgency)
        self._meter.made(parcel, frame, seconds)  # before the frame counts as delivered: after a flush all sums are told
        future.add_done_callback(lambda done: self._moved(peer, parcel, frame, posted, done.exception()))

    def _moved(self, peer: str, parcel: OutgoingFrame, frame: Frame, posted: float, error: BaseException | None) -> None:
        size = sum(memoryview(section).nbytes for section in frame.sections)
        facts = frame_facts(frame)
        stage = facts.source if parcel.pair is None else parcel.pair[0]
        step = facts.step if parcel.step < 0 else parcel.step
        lane = (peer, parcel.urgency)
        begin = max(posted, self._arrived.get(lane, 0.0))
        self._arrived[lane] = self._trace.now()
        place = {"step": step, "stage": stage, "micro_batch": facts.micro_batch}
        self._trace.note(SpanKind.SEND, frame_name("send", facts.what), begin, peer=peer, nbytes=size, **place)
        self._delivered(error)

    def _delivered(self, error: BaseException | None) -> None:
        with self._changed:
            self._under_way -= 1
            first = error is not None and self._error is None
            self._error = self._error or error
            self._changed.notify_all()
        if first and error is not None:
            self.abort(error)
            self._on_error(error)
