"""The two halves of a link against each other, over connections that lose, repeat and reorder; no sockets, no clock."""

from __future__ import annotations

import random
from collections.abc import Hashable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.errors import WireError
from farflung.transports.base import Urgency
from farflung.transports.tcp.halves import Inbox, Outbox, read_states
from farflung.wire.frames import Frame, FrameLimits, encode_frame


def midway(inbox: Inbox) -> bool:
    """Whether a frame is only partly there."""
    return any(not lane.decoder.idle or lane.early for lane in inbox._lanes)


def _put(outbox: Outbox[int], lane: int, number: int, size: int) -> None:
    outbox.put(lane, encode_frame(Frame("x", {"n": number}, (bytes([number % 256]) * size,)), checksum=False), number)


def _joined(pieces: list[memoryview]) -> memoryview:
    return memoryview(b"".join(pieces))


class World:
    """An outbox and an inbox with three roads between them, on which anything may happen."""

    def __init__(self, frames: list[tuple[Urgency, int]], seed: int, chunk: int, small: int) -> None:
        self.chance = random.Random(seed)
        self.chunk = chunk
        self.outbox: Outbox[int] = Outbox(window=2, credit=4000, small=small)
        self.inbox = Inbox(FrameLimits(), credit=4000, window=2)
        self.left = list(enumerate(frames))
        self.got: dict[int, list[int]] = {lane: [] for lane in Urgency}
        self.handled: list[int] = []
        self.roads: dict[Hashable, list[tuple[int, int, memoryview]]] = {"a": [], "b": [], "c": []}
        self.news: list[list[tuple[int, int]]] = []

    def put(self) -> None:
        """All that the window lets in; in each lane in order."""
        full: set[Urgency] = set()
        left = []
        for number, (lane, size) in self.left:
            if lane in full or not self.outbox.has_room(lane):
                full.add(lane)
                left.append((number, (lane, size)))
            else:
                _put(self.outbox, lane, number, size)
        self.left = left

    def happen(self) -> None:
        road = self.chance.choice(list(self.roads))
        deeds = (self.load, self.load, self.arrive, self.arrive, self.confirm, self.shake)
        self.chance.choice(deeds)(road)

    def load(self, road: Hashable) -> None:
        self.put()
        sent = self.outbox.take(road, self.chunk)
        if sent is not None:
            self.roads[road].append((sent.lane, sent.number, _joined(sent.pieces)))

    def arrive(self, road: Hashable) -> None:
        if not self.roads[road]:
            return
        lane, number, data = self.roads[road].pop(0)
        for frame, _ in self.inbox.take(lane, number, data, 0.0):
            self.got[lane].append(frame.header["n"])
            self.inbox.handled(lane)
        self.news.append(self.inbox.states())

    def confirm(self, road: Hashable) -> None:
        if self.news:  # perhaps an old one
            told = self.outbox.acknowledge(self.news.pop(self.chance.randrange(len(self.news))))
            self.handled += [token for _, _, token in told.handled]

    def shake(self, road: Hashable) -> None:
        """Now and then a connection breaks; what is on it is lost, or arrives late and twice."""
        if self.chance.random() < 0.2:
            if self.chance.random() < 0.5:
                self.roads[road].clear()
            self.outbox.release(road)

    def calm(self) -> None:
        """Whatever chance did, a calm end brings everything home."""
        for road in self.roads:
            self.outbox.release(road)
            self.roads[road].clear()
        while self.left or self.outbox.waits():
            self.load("a")
            self.arrive("a")
            self.news = self.news[-1:]
            self.confirm("a")


@given(
    st.lists(st.tuples(st.sampled_from(list(Urgency)), st.integers(0, 3000)), min_size=1, max_size=12),
    st.integers(0, 2**32),
    st.integers(64, 1500),
    st.integers(0, 4000),
)
def test_every_frame_arrives_once_and_in_order_whatever_connections_do(
    frames: list[tuple[Urgency, int]], seed: int, chunk: int, small: int
) -> None:
    world = World(frames, seed, chunk, small)
    for _ in range(400):
        world.happen()
    world.calm()
    told = world.outbox.acknowledge(world.inbox.states())
    handled = world.handled + [token for _, _, token in told.handled]
    for lane in Urgency:
        assert world.got[lane] == [number for number, (its, _) in enumerate(frames) if its is lane]
    assert sorted(handled) == list(range(len(frames)))
    assert not midway(world.inbox)
    assert not world.outbox.busy
    assert world.outbox.unhandled == 0


def test_the_urgent_goes_first_in_the_middle_of_a_bulky_frame() -> None:
    outbox: Outbox[str] = Outbox(window=2, credit=1 << 20)
    outbox.put(Urgency.BULK, [bytes(1000)], "bulk")
    first = outbox.take("a", 100)
    outbox.put(Urgency.VALUES, [bytes(50)], "value")
    outbox.put(Urgency.CONTROL, [bytes(10)], "verdict")
    order = [first, *(outbox.take("a", 100) for _ in range(3))]
    assert [chunk.lane for chunk in order if chunk] == [Urgency.BULK, Urgency.CONTROL, Urgency.VALUES, Urgency.BULK]


def test_what_broke_goes_again_before_what_is_new() -> None:
    outbox: Outbox[str] = Outbox(window=2, credit=1 << 20)
    outbox.put(Urgency.VALUES, [bytes(500)], "x")
    taken = [outbox.take(road, 100) for road in ("a", "b", "a")]
    assert outbox.release("a") == 200
    assert [chunk.number for chunk in (outbox.take("b", 100), outbox.take("b", 100), outbox.take("b", 100)) if chunk] == [0, 2, 3]
    assert len(taken) == 3


def test_credit_and_window_hold_the_sender() -> None:
    outbox: Outbox[int] = Outbox(window=2, credit=250)
    outbox.put(Urgency.VALUES, [bytes(1000)], 0)
    sizes = []
    while (chunk := outbox.take("a", 100)) is not None:
        sizes.append(chunk.size)
    assert sizes == [100, 100, 50]
    assert not outbox.waits()
    assert outbox.acknowledge([(0, 0), (1, 0), (0, 0), (0, 0)]).nbytes == 100
    assert outbox.waits()
    assert outbox.has_room(Urgency.VALUES)
    outbox.put(Urgency.VALUES, [b"x"], 1)
    assert not outbox.has_room(Urgency.VALUES)
    assert outbox.has_room(Urgency.BULK)


def test_a_peer_beyond_its_credit_is_refused() -> None:
    inbox = Inbox(FrameLimits(), credit=100)
    inbox.take(0, 1, memoryview(bytes(80)), 0.0)
    with pytest.raises(WireError, match="more than its credit of 100 bytes"):
        inbox.take(0, 2, memoryview(bytes(80)), 0.0)
    with pytest.raises(WireError, match="lane 0 to 3"):
        inbox.take(7, 0, memoryview(b""), 0.0)


def test_what_arrives_counts_once_and_in_any_order() -> None:
    inbox = Inbox(FrameLimits(), credit=1000)
    whole = b"".join(encode_frame(Frame("x", {}, (bytes(200),)), checksum=False))
    late, early = memoryview(whole[:100]), memoryview(whole[100:])
    for _ in range(2):
        assert inbox.take(1, 1, early, 0.0) == []
        assert inbox.arrived == len(early)
        assert inbox.states()[1] == (0, 0)  # nothing is confirmed: the first chunk is late
    assert len(inbox.take(1, 0, late, 0.0)) == 1
    assert inbox.take(1, 0, late, 0.0) == []
    assert inbox.arrived == len(whole)


def test_too_many_frames_ahead_are_refused() -> None:
    inbox = Inbox(FrameLimits(), credit=1 << 20)
    frame = b"".join(encode_frame(Frame("x"), checksum=False))
    for number in range(64):
        inbox.take(0, number, memoryview(frame), 0.0)
    with pytest.raises(WireError, match="more than any window allows"):
        inbox.take(0, 64, memoryview(frame), 0.0)


def test_confirmations_of_what_was_never_sent_are_refused() -> None:
    outbox: Outbox[int] = Outbox(window=2, credit=1000)
    with pytest.raises(WireError, match="never sent"):
        outbox.acknowledge([(1, 0), (0, 0), (0, 0), (0, 0)])
    with pytest.raises(WireError, match="never sent"):
        outbox.acknowledge([(0, 1), (0, 0), (0, 0), (0, 0)])


@pytest.mark.parametrize("value", [None, [], [[0, 0]], [[0, 0], [0, -1], [0, 0]], [[0, 0], [0, True], [0, 0]], [[0], [0], [0]]])
def test_malformed_states_are_refused(value: object) -> None:
    with pytest.raises(WireError, match="pairs of whole numbers"):
        read_states(value)


def test_empty_and_countless_tiny_chunks_are_refused() -> None:
    inbox = Inbox(FrameLimits(), credit=1 << 20)
    with pytest.raises(WireError, match="a chunk must not be empty"):
        inbox.take(0, 1, memoryview(b""), 0.0)
    for number in range(2048):
        inbox.take(0, number + 1, memoryview(b"x"), 0.0)
    with pytest.raises(WireError, match="the peer sent 2048 chunks ahead of a missing one"):
        inbox.take(0, 2049, memoryview(b"x"), 0.0)


def test_small_frames_may_be_many() -> None:
    outbox: Outbox[int] = Outbox(window=2, credit=1 << 20, small=1000)
    taken = 0
    while outbox.has_room(Urgency.BULK):
        outbox.put(Urgency.BULK, [bytes(300)], taken)
        taken += 1
    assert taken == 4, "the fourth began below 1000 bytes"
    outbox.take("a", 300)
    outbox.acknowledge([(0, 0), (0, 0), (1, 1), (0, 0)])
    assert outbox.has_room(Urgency.BULK)


def test_what_is_here_and_not_handled_is_bounded_in_bytes_too() -> None:
    def frame(size: int) -> memoryview:
        return memoryview(b"".join(encode_frame(Frame("x", {}, (bytes(size),)))))

    small = Inbox(FrameLimits(), credit=4000, window=2)
    for number in range(60):
        small.take(1, number, frame(10), 0.0)
    inbox = Inbox(FrameLimits(), credit=4000, window=2)
    for number in range(2):  # as many as the window has may be larger
        inbox.take(1, number, frame(3900), 0.0)
    inbox.handled(1)
    inbox.take(1, 2, frame(3900), 0.0)
    with pytest.raises(WireError, match=r"3 frames of \d+ bytes before the first was handled; its window is 2"):
        inbox.take(1, 3, frame(10), 0.0)


def test_a_large_frame_may_follow_small_ones() -> None:
    outbox: Outbox[int] = Outbox(window=2, credit=4000, small=2000)
    inbox = Inbox(FrameLimits(), credit=4000, window=2)
    number = 0
    for size in (200, 200, 200, 6000):
        assert outbox.has_room(Urgency.VALUES)
        _put(outbox, Urgency.VALUES, number, size)
    while (chunk := outbox.take("a", 1000)) is not None:
        inbox.take(chunk.lane, chunk.number, _joined(chunk.pieces), 0.0)
        outbox.acknowledge(inbox.states())
    assert inbox.states()[Urgency.VALUES][1] == 0
    assert not midway(inbox)
