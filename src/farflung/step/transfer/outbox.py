"""The outbox: one sender thread per peer and urgency takes frames from a queue, encodes them and gives them to the transport.

Encoding happens here, off the compute thread, so that compute, encode and send overlap. The queues of values are short: when a
link is slower than the compute, ``post`` blocks, and memory stays bounded by the plan's figure. Frames of one urgency stay in
order; the more urgent ones overtake the others, here and on the link (``transports.base.Urgency``).

A *guest* is a peer that may leave while the run goes on: a helper. Losing one does not end the outbox, nobody flushes its frames,
and a frozen one blocks its own thread only.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from farflung.errors import ConnectionLost
from farflung.messages.schema import Message
from farflung.messages.wire_form import encode
from farflung.step.transfer.frame_log import MessageFacts, message_facts
from farflung.step.transfer.traffic_meter import LinkUse, StagePair, TrafficMeter
from farflung.telemetry.events import SpanKind
from farflung.telemetry.trace import SpanRing
from farflung.thread_group import ThreadGroup
from farflung.transports.base import Endpoint, Urgency

__all__ = ["LinkUse", "MakeMessage", "Outbox", "OutgoingMessage"]

#: Builds a message on the sender's thread (this is where a codec runs). None: an earlier message already carried the content.
MakeMessage = Callable[[], Message | None]

#: Frames that wait for one peer in one urgency; a full queue stops the sender, so memory is bounded.
_QUEUE_FRAMES = 6
#: For all sender threads together: no run waits longer for the threads of the last one.
_CLOSE_SECONDS = 2.0
#: Seconds that a link takes for a frame of many small items (or its round trip, if longer), and limits of the bytes of such a
#: frame: at least, at most, and before the rate of the link is known.
_TOGETHER_SECONDS, _TOGETHER = 0.04, (16 << 10, 1 << 20, 64 << 10)


@dataclass(frozen=True, slots=True, kw_only=True)
class OutgoingMessage:
    """A message to be made and sent. ``pair`` and ``dense`` (bytes) are for the meter of step ``step``.

    ``seconds``: of encoding before ``make``.
    ``waits``: ``post`` blocks while the queue is full. False where the message refers to memory that exists anyway.
    """

    make: MakeMessage
    urgency: Urgency = Urgency.VALUES
    step: int = -1
    pair: StagePair | None = None
    dense: int = 0
    seconds: float = 0.0
    waits: bool = True


@dataclass(slots=True, kw_only=True)
class _Lane:
    """Frames for one peer in one urgency, and the state of their sender thread. Guarded by the outbox's lock.

    ``news``: the sender thread waits here, so that a frame wakes this thread alone.
    """

    peer: str
    urgency: Urgency
    news: threading.Condition
    #: Called when a guest is lost (None: the peer is no guest).
    lost: Callable[[BaseException], None] | None
    waiting: deque[OutgoingMessage] = field(default_factory=deque)
    closed: bool = False
    #: When the last frame had arrived: a frame that was posted earlier began to move only then.
    arrived: float = 0.0


class Outbox:
    """The outgoing side of one worker's part. ``on_error`` is called once, on a sender's thread, when a peer is lost."""

    def __init__(
        self,
        endpoint: Endpoint,
        peers: Sequence[str],
        on_error: Callable[[BaseException], None],
        trace: SpanRing | None = None,
    ) -> None:
        self._endpoint = endpoint
        self._trace = trace or SpanRing()
        self._on_error = on_error
        self._meter = TrafficMeter()
        #: Guards all fields below but ``_peers`` and ``threads``. Those who post or flush wait for ``_changed``, and a sender
        #: thread for its lane's ``news``. Sender threads encode and send without the lock: that takes long.
        self._lock = threading.RLock()
        self._changed = threading.Condition(self._lock)
        self._error: BaseException | None = None
        self._peers = frozenset(peers)
        self._guests: dict[str, Callable[[BaseException], None]] = {}
        self._lanes: dict[tuple[str, Urgency], _Lane] = {}
        #: Frames that a thread has taken and that have not been delivered, guests' left aside.
        self._under_way = 0
        self.threads = ThreadGroup()

    def post(self, peer: str, outgoing: OutgoingMessage) -> None:
        """Queue a frame for ``peer``; block while its queue is full.

        Raises:
            KeyError: ``peer`` takes no part in this run, or is a guest that has left.
            BaseException: the error that ended the outbox meanwhile.
        """
        if outgoing.pair is not None and (counts := self._meter.posted(outgoing.step)) != outgoing.step:
            outgoing = replace(outgoing, step=counts)
        with self._changed:
            lane = self._lane(peer, outgoing.urgency)
            if outgoing.waits and len(lane.waiting) >= _QUEUE_FRAMES:
                begin = self._trace.now()
                self._changed.wait_for(lambda: self._error is not None or len(lane.waiting) < _QUEUE_FRAMES)
                if outgoing.step >= 0:  # other frames, such as copies of states, do not block the compute thread
                    self._trace.note(SpanKind.WAIT, "for the link's queue", begin, step=outgoing.step, peer=peer)
            if self._error is not None:
                raise self._error
            lane.waiting.append(outgoing)
            lane.news.notify()

    def add_guest(self, name: str, lost: Callable[[BaseException], None]) -> None:
        """Allow frames for the guest ``name``. ``lost`` is called on a sender's thread when it cannot be reached."""
        with self._changed:
            self._guests[name] = lost

    def remove_guest(self, name: str) -> None:
        """Drop the frames that wait for the guest ``name``, and end its threads."""
        with self._changed:
            self._guests.pop(name, None)
            for key in [key for key in self._lanes if key[0] == name]:
                lane = self._lanes.pop(key)
                lane.closed = True
                lane.waiting.clear()
                lane.news.notify()
            self._changed.notify_all()

    def withdraw(self, name: str, urgency: Urgency) -> list[OutgoingMessage]:
        """Remove and return the frames that wait for the guest ``name`` in one urgency."""
        with self._changed:
            lane = self._lanes.get((name, urgency))
            found = [] if lane is None else list(lane.waiting)
            if lane is not None:
                lane.waiting.clear()
            return found

    def together(self, peer: str) -> int:
        """Return the bytes that small items for ``peer`` should have together in a frame: few frames are under way at a time."""
        least, most, unknown = _TOGETHER
        seen = self._endpoint.statistics().get(peer)
        if seen is None or not seen.rate:
            return unknown
        return int(min(max(seen.rate * max(float(seen.round_trip), _TOGETHER_SECONDS), least), most))

    def rate(self, peer: str) -> float:
        """Return the bytes per second that the link to ``peer`` has carried while it was busy (0: not known)."""
        seen = self._endpoint.statistics().get(peer)
        return 0.0 if seen is None else seen.rate

    def when_sent(self, step: int, report: Callable[[LinkUse], None]) -> None:
        """Call ``report`` (on some thread) with what ``step`` sent, once its last frame is encoded."""
        self._meter.when_done(step, report)

    def flush(self) -> None:
        """Wait until everything queued so far has been delivered.

        Raises:
            BaseException: what ended the links meanwhile.
        """
        with self._changed:
            self._changed.wait_for(lambda: self._error is not None or not (self._under_way or self._has_waiting()))
            if self._error is not None:
                raise self._error

    def abort(self, error: BaseException) -> None:
        """Drop all queued frames; whoever posts, flushes or waits here gets ``error`` (the first one stays)."""
        with self._changed:
            self._error = self._error or error
            for lane in self._lanes.values():
                lane.waiting.clear()
                lane.news.notify()
            self._changed.notify_all()

    def close(self) -> None:
        """Stop the sender threads and drop queued frames. A thread whose link is stalled ends when the link moves or breaks."""
        self.abort(ConnectionLost("the links of this run are closed"))
        self.threads.join(_CLOSE_SECONDS)

    def _has_waiting(self) -> bool:
        return any(lane.waiting for lane in self._lanes.values() if lane.lost is None)

    def _lane(self, peer: str, urgency: Urgency) -> _Lane:
        """Return a lane, whose thread starts with its first frame (under the lock)."""
        lost = self._guests.get(peer)
        if peer not in self._peers and lost is None:
            raise KeyError(peer)
        lane = self._lanes.get((peer, urgency))
        if lane is None:
            lane = _Lane(peer=peer, urgency=urgency, lost=lost, news=threading.Condition(self._lock))
            if self._error is None:
                self._lanes[peer, urgency] = lane
                # whatever ends the thread must reach the compute thread
                failed = partial(self._delivered, lane)
                self.threads.spawn(f"send-{peer}-{urgency.name.lower()}", self._send_all, lane, on_error=failed)
        return lane

    def _send_all(self, lane: _Lane) -> None:
        while True:
            with self._changed:
                lane.news.wait_for(lambda: self._error is not None or lane.closed or bool(lane.waiting))
                if self._error is not None or lane.closed:
                    return
                outgoing = lane.waiting.popleft()
                self._under_way += lane.lost is None
                self._changed.notify_all()
            self._send_one(lane, outgoing)

    def _send_one(self, lane: _Lane, outgoing: OutgoingMessage) -> None:
        begin = self._trace.now()
        message = outgoing.make()
        seconds = self._trace.now() - begin + outgoing.seconds
        if message is None:
            self._count(outgoing, 0, seconds)
            self._delivered(lane, None)
            return
        facts = message_facts(message)
        if outgoing.pair is not None:
            place = {"step": outgoing.step, "stage": outgoing.pair[0], "micro_batch": facts.micro_batch}
            self._trace.note(SpanKind.ENCODE, f"encode {facts.what}", begin, peer=lane.peer, **place)
        posted = self._trace.now()
        future = self._endpoint.post(lane.peer, encode(message), outgoing.urgency)
        self._count(outgoing, facts.nbytes, seconds)  # before the frame counts as delivered: after a flush all sums are reported
        future.add_done_callback(lambda done: self._moved(lane, outgoing, facts, posted, done.exception()))

    def _count(self, outgoing: OutgoingMessage, size: int, seconds: float) -> None:
        if outgoing.pair is not None:
            self._meter.encoded(outgoing.step, outgoing.pair, (size, outgoing.dense), seconds)

    def _moved(
        self, lane: _Lane, outgoing: OutgoingMessage, facts: MessageFacts, posted: float, error: BaseException | None
    ) -> None:
        """A frame has arrived, or its link is broken (transport thread)."""
        if lane.lost is None:
            stage = facts.source if outgoing.pair is None else outgoing.pair[0]
            step = facts.step if outgoing.step < 0 else outgoing.step
            begin = max(posted, lane.arrived)
            lane.arrived = self._trace.now()
            place = {"step": step, "stage": stage, "micro_batch": facts.micro_batch}
            self._trace.note(SpanKind.SEND, f"send {facts.what}", begin, peer=lane.peer, nbytes=facts.nbytes, **place)
        self._delivered(lane, error)

    def _delivered(self, lane: _Lane, error: BaseException | None) -> None:
        if lane.lost is not None:
            if error is not None and not lane.closed:
                lane.lost(error)
            return
        with self._changed:
            self._under_way -= 1
            first = error is not None and self._error is None
            self._error = self._error or error
            self._changed.notify_all()
        if first and error is not None:  # without the lock: ``on_error`` may call this outbox
            self.abort(error)
            self._on_error(error)
