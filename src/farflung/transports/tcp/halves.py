"""The two halves of a link as pure state, without sockets, threads or clock: what is to be sent, and what has come.

A frame is cut into chunks that are numbered within its lane (urgency), so each lane is an ordered stream of its own and an
urgent frame overtakes a bulky one chunk by chunk. Any connection carries any chunk. The receiver says up to which number it
holds each lane, and how many frames were handled; the sender keeps chunks (as views, no copies) until then. So a broken
connection costs its unconfirmed chunks only: they are sent again on another one, and a chunk that comes twice is dropped.

Credit bounds memory on both sides: at most ``window`` frames of a lane are unhandled, and at most ``credit`` bytes of a lane
are unconfirmed, which is what can lie at the receiver out of order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from farflung.errors import WireError
from farflung.memory_budget import MemoryBudget
from farflung.transports.base import Urgency
from farflung.transports.meter import frame_bytes
from farflung.wire.frames import Frame, FrameDecoder, FrameLimits

__all__ = ["Acknowledged", "Chunk", "Inbox", "LaneState", "Outbox"]

T = TypeVar("T")
#: For each lane: the number of the next chunk that is missing, and how many frames were handled.
LaneState = tuple[int, int]
LANES = len(Urgency)
#: Of ``TransportConfig.window``.
_MAX_WINDOW = 64
#: Frames under way, however small.
_MOST_FRAMES = 48
#: Chunks ahead of a missing one hold memory besides their bytes: credit is for so many bytes each, on average.
_LEAST_EARLY, _MAX_SMALL = 512, 1024


@dataclass(slots=True, eq=False)
class Chunk:
    """A piece of a lane; ``carrier``: the connection that it was last given to."""

    lane: int
    number: int
    pieces: list[memoryview]
    size: int
    carrier: Hashable | None = None


@dataclass(slots=True)
class _OutLane(Generic[T]):
    uncut: deque[memoryview] = field(default_factory=deque)
    frames: deque[T] = field(default_factory=deque)
    sizes: deque[int] = field(default_factory=deque)
    handled: int = 0
    next_number: int = 0
    unconfirmed: dict[int, Chunk] = field(default_factory=dict)
    bytes_unconfirmed: int = 0
    again: deque[Chunk] = field(default_factory=deque)


@dataclass(frozen=True, slots=True)
class Acknowledged(Generic[T]):
    """What an acknowledgement was worth: bytes confirmed by it, and the frames that are handled now, with their numbers."""

    nbytes: int
    handled: list[tuple[int, int, T]]


class Outbox(Generic[T]):
    """Frames on their way to one peer; ``T`` is what the caller wants back when a frame was handled. Not thread-safe."""

    def __init__(self, window: int, credit: int, small: int = 0) -> None:
        self.window, self.credit, self.small = window, credit, small
        self._lanes: list[_OutLane[T]] = [_OutLane() for _ in range(LANES)]

    @property
    def busy(self) -> bool:
        """Whether any byte is not confirmed."""
        return any(lane.uncut or lane.unconfirmed for lane in self._lanes)

    @property
    def behind(self) -> bool:
        """Whether any byte was not given to a connection yet."""
        return any(lane.uncut or lane.again for lane in self._lanes)

    @property
    def under_way(self) -> int:
        """Bytes that were given to connections and are not confirmed."""
        return sum(lane.bytes_unconfirmed for lane in self._lanes)

    @property
    def unhandled(self) -> int:
        """Frames that the peer has not handled yet."""
        return sum(len(lane.frames) for lane in self._lanes)

    def has_room(self, lane: int) -> bool:
        """Whether the window lets one more frame in."""
        frames, sizes = self._lanes[lane].frames, self._lanes[lane].sizes
        return len(frames) < self.window or (len(frames) < _MOST_FRAMES and sum(sizes) < self.small)

    def put(self, lane: int, buffers: Sequence[memoryview | bytes], token: T) -> None:
        """Queue one frame's buffers; they must not change any more."""
        self._lanes[lane].uncut.extend(memoryview(buffer) for buffer in buffers if len(buffer))
        self._lanes[lane].frames.append(token)
        self._lanes[lane].sizes.append(sum(memoryview(buffer).nbytes for buffer in buffers))

    def waits(self) -> bool:
        """Whether ``take`` would give something."""
        return any(lane.again or self._may_cut(lane) for lane in self._lanes)

    def take(self, carrier: Hashable, chunk_bytes: int) -> Chunk | None:
        """The next chunk to be sent, by urgency; ``carrier`` carries it from now on."""
        for index, lane in enumerate(self._lanes):
            while lane.again:
                chunk = lane.again.popleft()
                if chunk.number in lane.unconfirmed and chunk.carrier is None:
                    chunk.carrier = carrier
                    return chunk
            if self._may_cut(lane):
                return self._cut(index, lane, carrier, chunk_bytes)
        return None

    def acknowledge(self, states: Sequence[LaneState]) -> Acknowledged[T]:
        """Take what the receiver says (older news than what is known changes nothing).

        Raises:
            WireError: it confirms what was never sent.
        """
        confirmed = 0
        handled: list[tuple[int, int, T]] = []
        for index, (lane, (number, count)) in enumerate(zip(self._lanes, states, strict=True)):
            if number > lane.next_number or count > lane.handled + len(lane.frames):
                raise WireError(f"an acknowledgement confirms chunk {number} and frame {count}, which were never sent")
            for known in [known for known in lane.unconfirmed if known < number]:
                confirmed += lane.unconfirmed[known].size
                lane.bytes_unconfirmed -= lane.unconfirmed.pop(known).size
            while lane.handled < count:
                handled.append((index, lane.handled, lane.frames.popleft()))
                lane.sizes.popleft()
                lane.handled += 1
        return Acknowledged(confirmed, handled)

    def release(self, carrier: Hashable) -> int:
        """``carrier`` broke: its unconfirmed chunks are to be sent again; their bytes."""
        size = 0
        for lane in self._lanes:
            lost = [chunk for chunk in lane.unconfirmed.values() if chunk.carrier == carrier]
            for chunk in lost:
                chunk.carrier = None
                size += chunk.size
            lane.again.extend(lost)
            lane.again = deque(sorted(lane.again, key=lambda chunk: chunk.number))
        return size

    def carries(self, carrier: Hashable) -> bool:
        """Whether ``carrier`` has something that is not confirmed."""
        return any(chunk.carrier == carrier for lane in self._lanes for chunk in lane.unconfirmed.values())

    def oldest_carrier(self) -> Hashable | None:
        """Who carries the oldest unconfirmed chunk (None: nothing is on its way)."""
        for lane in self._lanes:
            for chunk in lane.unconfirmed.values():
                if chunk.carrier is not None:
                    return chunk.carrier
        return None

    def drop(self) -> list[T]:
        """Forget everything: the frames that were not handled."""
        lost = [token for lane in self._lanes for token in lane.frames]
        self._lanes = [_OutLane() for _ in range(LANES)]
        return lost

    def _may_cut(self, lane: _OutLane[T]) -> bool:
        return bool(lane.uncut) and (lane.bytes_unconfirmed < self.credit)

    def _cut(self, index: int, lane: _OutLane[T], carrier: Hashable, chunk_bytes: int) -> Chunk:
        room = min(chunk_bytes, self.credit - lane.bytes_unconfirmed)
        chunk = Chunk(lane=index, number=lane.next_number, pieces=[], size=0, carrier=carrier)
        while room and lane.uncut:
            buffer = lane.uncut[0]
            piece = buffer[:room]
            chunk.pieces.append(piece)
            chunk.size += len(piece)
            room -= len(piece)
            if len(piece) == len(buffer):
                lane.uncut.popleft()
            else:
                lane.uncut[0] = buffer[len(piece) :]
        lane.next_number += 1
        lane.unconfirmed[chunk.number] = chunk
        lane.bytes_unconfirmed += chunk.size
        return chunk


@dataclass(slots=True)
class _InLane:
    decoder: FrameDecoder
    #: sizes of the frames that are here and not yet handled
    waiting: deque[int] = field(default_factory=deque)
    next_number: int = 0
    handled: int = 0
    complete: int = 0
    #: when the first byte of the frame that is coming in was there
    since: float = 0.0
    early: dict[int, memoryview] = field(default_factory=dict)
    early_bytes: int = 0


class Inbox:
    """Frames coming from one peer. Not thread-safe.

    What a lane holds is bounded by ``credit`` bytes ahead of a missing chunk, and by as many of frames that nobody has handled
    yet and one frame more (or by ``window`` frames, where these are larger).
    """

    def __init__(
        self,
        limits: FrameLimits | Callable[[], FrameLimits],
        credit: int,
        window: int = 2,
        budget: MemoryBudget | None = None,
    ) -> None:
        """Frames take their memory from ``budget``, and so do chunks ahead of a missing one."""
        self._credit, self._window = credit, window
        self._budget = budget or MemoryBudget()
        #: Bytes of chunks that came, early ones too, none twice.
        self.arrived = 0
        self._lanes = [_InLane(FrameDecoder(limits, self._budget)) for _ in range(LANES)]

    def take(self, lane: int, number: int, data: memoryview, now: float) -> list[tuple[Frame, float]]:
        """Take a chunk; the frames that it completes, each with the time at which its first byte came.

        Raises:
            WireError, VersionError: the peer sends beyond its credit, or what is no frame, or one above the limits.
            MemoryExceeded: the budget has no room.
        """
        if not 0 <= lane < LANES:
            raise WireError(f"a chunk must belong to lane 0 to {LANES - 1}, got {lane}")
        held = self._lanes[lane]
        if number < held.next_number or number in held.early:
            return []  # it came twice: its connection broke before this side could confirm it
        if not len(data):
            raise WireError("a chunk must not be empty")
        if len(held.early) >= max(self._credit // _LEAST_EARLY, _MAX_SMALL):
            raise WireError(f"the peer sent {len(held.early)} chunks ahead of a missing one, more than its credit allows")
        if held.early_bytes + len(data) > self._credit:
            raise WireError(f"the peer sent more than its credit of {self._credit} bytes ahead of a missing chunk")
        self._budget.reserve(len(data), "a piece of a frame")
        held.early[number] = data
        held.early_bytes += len(data)
        self.arrived += len(data)
        done: list[tuple[Frame, float]] = []
        while (ready := held.early.pop(held.next_number, None)) is not None:
            held.early_bytes -= len(ready)
            self._budget.release(len(ready))
            held.next_number += 1
            if held.decoder.idle:
                held.since = now
            for frame in held.decoder.feed(ready):
                done.append((frame, held.since))
                held.since = now
        self._hold(held, done)
        return done

    def close(self) -> None:
        """Nothing comes any more: drop what waits for a missing chunk."""
        for lane in self._lanes:
            self._budget.release(lane.early_bytes)
            lane.early.clear()
            lane.early_bytes = 0

    def _hold(self, held: _InLane, done: list[tuple[Frame, float]]) -> None:
        """Count frames that wait to be handled."""
        held.complete += len(done)
        held.waiting.extend(frame_bytes(frame) for frame, _ in done)
        # a sender may begin any frame while all before it are few or small: the last one's size is not judged
        if len(held.waiting) > self._window and sum(held.waiting) - held.waiting[-1] > self._credit:
            raise WireError(
                f"the peer sent {len(held.waiting)} frames of {sum(held.waiting)} bytes before the first was handled; "
                f"its window is {self._window} frames, its credit {self._credit} bytes"
            )
        if held.complete - held.handled > _MAX_WINDOW:
            raise WireError(f"the peer sent {held.complete - held.handled} frames ahead, more than any window allows")

    def handled(self, lane: int) -> int:
        """One more frame of ``lane`` was handled; its number."""
        self._lanes[lane].waiting.popleft()
        self._lanes[lane].handled += 1
        return self._lanes[lane].handled - 1

    def states(self) -> list[LaneState]:
        """What an acknowledgement says."""
        return [(lane.next_number, lane.handled) for lane in self._lanes]


def read_states(value: Any) -> list[LaneState]:
    """The lane states of an acknowledgement.

    Raises:
        WireError: they are malformed.
    """
    good = isinstance(value, list) and len(value) == LANES
    if not good or not all(isinstance(s, list) and len(s) == 2 and all(type(n) is int and n >= 0 for n in s) for s in value):
        raise WireError(f"an acknowledgement must have {LANES} pairs of whole numbers, got {value!r:.80}")
    return [(first, second) for first, second in value]
