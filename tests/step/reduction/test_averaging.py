"""Means that are added up on the way: every member ends with the same bits, whatever comes when, and little is under way."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.clock import VirtualClock
from farflung.engines.base import Array
from farflung.errors import WireError
from farflung.messages.data import MeanPieces, PieceItem
from farflung.step.inbox import Inbox
from farflung.step.reduction.averaging import Averager, Averaging, Outcome
from farflung.step.reduction.piece_sender import PieceSender
from farflung.step.reduction.pieces import first_servers, pieces_of
from farflung.step.transfer.outbox import OutgoingMessage
from tests.support.network.futures import PATIENCE, later

NAMES = "abcd"


class Net:
    """Averagers with lanes that deliver when they are told to; stands for the links of all members."""

    def __init__(self, members: int) -> None:
        self.lanes: dict[tuple[int, int], list[OutgoingMessage]] = {}
        self.boxes = [Inbox() for _ in range(members)]
        self.clock = VirtualClock()
        self.members: list[Averager] = []
        groups = {0: tuple(NAMES[:members])}
        for rank in range(members):
            sender = PieceSender("run", _Links(self, rank))  # type: ignore[arg-type]
            self.members.append(Averager(groups, 0, self.boxes[rank], sender, self.clock))
        self.delivered: list[tuple[int, int, MeanPieces]] = []

    def begin(self, rank: int, arrays: Sequence[Array], tag: str = "t", **changes: Any) -> None:
        count = len(self.members)
        weights = changes.pop("weights", tuple(1 / count for _ in range(count)))
        devices = tuple(NAMES[:count])
        spec = Averaging(stage=0, tag=tag, rank=rank, devices=devices, weights=weights, arrays=tuple(arrays), **changes)
        self.members[rank].contribute(spec)

    def deliver(self, choose: Callable[[list[tuple[int, int]]], tuple[int, int]] = min) -> None:
        """All frames, in the order that ``choose`` gives to lanes; those of one lane stay in order."""
        while lanes := [lane for lane, parcels in self.lanes.items() if parcels]:
            lane = choose(sorted(lanes))
            message = self.lanes[lane].pop(0).make()
            if message is not None:
                assert isinstance(message, MeanPieces)
                self.delivered.append((*lane, message))
                self.members[lane[1]].receive(NAMES[lane[0]], message)

    def outcome(self, rank: int, tag: str = "t") -> Outcome:
        assert self.boxes[rank].holds([("averaged", 0, tag)])
        return self.members[rank].wait(0, tag)


class _Links:
    def __init__(self, net: Net, rank: int) -> None:
        self._net, self._rank = net, rank

    def post(self, device: str, parcel: OutgoingMessage) -> None:
        assert not parcel.waits
        self._net.lanes.setdefault((self._rank, NAMES.index(device)), []).append(parcel)

    def together(self, device: str) -> int:
        return 20_000


def values(sizes: Sequence[int], rank: int) -> list[Array]:
    draw = np.random.default_rng(rank)
    return [draw.standard_normal(size).astype(np.float32) for size in sizes]


def mean_by_rank(rows: Sequence[Array], weights: Sequence[float]) -> Array:
    total = rows[0] * np.float32(weights[0])
    for row, weight in zip(rows[1:], weights[1:], strict=True):
        total = total + row * np.float32(weight)
    return total


@settings(deadline=None, max_examples=40)
@given(sizes=st.lists(st.integers(0, 60_000), min_size=1, max_size=4), members=st.integers(2, 4), seed=st.integers(0, 999))
def test_all_members_end_with_the_same_mean_in_place(sizes: list[int], members: int, seed: int) -> None:
    net, draw = Net(members), random.Random(seed)
    weights = tuple(np.random.default_rng(seed).dirichlet(np.ones(members)))
    held = [values(sizes, rank) for rank in range(members)]
    expected = [mean_by_rank([row[i] for row in held], weights).copy() for i in range(len(sizes))]
    for rank in draw.sample(range(members), members):
        net.begin(rank, held[rank], weights=weights, first=seed % members)
        if draw.random() < 0.5:
            net.deliver(draw.choice)
    net.deliver(draw.choice)
    for rank in range(members):
        assert net.outcome(rank).missing == frozenset()
        for array, mean in zip(held[rank], expected, strict=True):
            assert array.tobytes() == mean.tobytes()


@given(sizes=st.lists(st.integers(0, 700_000), min_size=1, max_size=3), members=st.integers(2, 5), first=st.integers(0, 4))
@settings(deadline=None, max_examples=40)
def test_pieces_cover_every_number_once_and_none_is_large(sizes: list[int], members: int, first: int) -> None:
    arrays = [np.zeros(size, np.float32) for size in sizes]
    pieces = pieces_of(arrays, members, first % members)
    runs = [run for piece in pieces for run in piece.runs]
    for index, size in enumerate(sizes):
        own = [(start, stop) for number, start, stop in runs if number == index]
        assert [start for start, _ in own] == [0, *(stop for _, stop in own)][: len(own)]
        assert (own[-1][1] if own else 0) == size
    assert all(piece.nbytes <= (256 << 10) + 4 for piece in pieces)
    served = [sum(piece.nbytes for piece in pieces if piece.server == rank) for rank in range(members)]
    if sum(sizes) * 4 >= members * (8 << 10):
        assert max(served) - min(served) <= 4 * len(pieces), "large exchanges are served evenly"


def test_small_layers_are_served_in_turn() -> None:
    assert first_servers([512, 512, 100_000, 512], 4) == (0, 1, 2, 2)


def test_little_is_on_its_way_however_large_the_exchange() -> None:
    net = Net(2)
    held = [values([2_000_000], rank) for rank in range(2)]
    net.begin(0, held[0])
    sent = sum(parcel.dense for parcel in net.lanes[0, 1])
    assert sent <= net.members[0].window.limit
    net.begin(1, held[1])
    net.deliver()
    assert held[0][0].tobytes() == held[1][0].tobytes()


def test_members_that_begin_exchanges_in_another_order_do_not_wait_for_each_other() -> None:
    net = Net(2)
    large, small = [values([900_000], rank) for rank in range(2)], [values([900_000], rank + 5) for rank in range(2)]
    net.begin(0, large[0], "large")
    net.begin(1, small[1], "small")
    net.deliver()
    net.begin(0, small[0], "small")
    net.begin(1, large[1], "large")
    net.deliver()
    for one, two in (large, small):
        assert one[0].tobytes() == two[0].tobytes()


def test_what_waits_for_a_link_shares_a_frame() -> None:
    net = Net(2)
    for number in range(8):
        net.begin(0, values([500], number), f"t{number}", first=number % 2)
    net.deliver()
    assert len(net.delivered) == 1
    assert len(net.delivered[0][2].pieces) == 4, "every second one is served here"


def test_a_round_ends_without_who_does_not_come_and_says_so() -> None:
    net = Net(3)
    held = [values([30_000], rank) for rank in range(3)]
    before = [row[0].copy() for row in held]
    for rank in (0, 1):
        net.begin(rank, held[rank], weights=(0.5, 0.25, 0.25), patience=2.0, quorum=2)
    net.deliver()
    for rank in (0, 1):
        net.members[rank].expire()
    assert not net.boxes[0].holds([("averaged", 0, "t")]), "the deadline has not come"
    net.clock.advance(2.0)
    for rank in (0, 1):
        net.members[rank].expire()
    net.deliver()
    served = [piece.server for piece in pieces_of(held[0], 3)]
    assert 2 in served, "member 2 serves pieces, too, and those stay open"
    open_pieces = net.members[0]._exchanges[0, "t"].left
    assert {served[number] for number in open_pieces} == {2}
    net.begin(2, held[2], weights=(0.5, 0.25, 0.25), patience=2.0, quorum=2)
    net.deliver()
    assert [net.outcome(rank).missing for rank in range(3)] == [frozenset({2})] * 3
    assert held[0][0].tobytes() == held[1][0].tobytes() == held[2][0].tobytes()
    piece = next(p for p in pieces_of(held[0], 3) if p.server == 0)
    (_, start, stop) = piece.runs[0]
    scale = np.float32(1 / 0.75)
    expected = mean_by_rank([before[0][start:stop], before[1][start:stop]], (0.5, 0.25)) * scale
    np.testing.assert_array_equal(held[2][0][start:stop], expected)


def test_divergence_is_how_far_the_own_values_were_from_the_mean() -> None:
    net = Net(2)
    held = [[np.full(10, 1.0, np.float32)], [np.full(10, 3.0, np.float32)]]
    for rank in range(2):
        net.begin(rank, held[rank])
    net.deliver()
    outcome = net.outcome(0)
    assert (outcome.gap, outcome.norm) == (pytest.approx(10.0), pytest.approx(40.0))


def one_piece(size: int = 40, **changes: Any) -> MeanPieces:
    item = PieceItem(**{"tag": "t", "piece": 0, "sections": 1} | changes)
    return MeanPieces(run="run", stage=0, pieces=(item,), sections=(bytes(size),))


REFUSED = {
    "number": (one_piece(piece=7), "has 1 pieces, number 7 came"),
    "server": (one_piece(), "is added up by another member"),
    "mean": (one_piece(mean=True), "is added up by member 1, not by 2"),
    "size": (one_piece(44), "a run of 40 bytes came with 44"),
    "runs": (one_piece(sections=0), "a piece of 1 runs came as 0 sections"),
}


@pytest.mark.parametrize(("bad", "text"), REFUSED.values(), ids=REFUSED)
def test_pieces_that_do_not_belong_here_are_refused(bad: MeanPieces, text: str) -> None:
    net = Net(3)
    net.begin(0, [np.zeros(10, np.float32)], first=1)
    with pytest.raises(WireError, match=text):
        net.members[0].receive("c", bad)


@pytest.mark.parametrize(("bad", "text"), REFUSED.values(), ids=REFUSED)
def test_pieces_that_came_early_and_do_not_belong_here_are_laid_to_their_sender(bad: MeanPieces, text: str) -> None:
    net = Net(3)
    net.members[0].receive("c", bad)
    with pytest.raises(WireError, match=f"^c: .*{text}") as found:
        net.begin(0, [np.zeros(10, np.float32)], first=1)
    assert found.value.blames == "c"


def test_who_is_no_member_is_refused() -> None:
    with pytest.raises(WireError, match="d is no replica of stage 0, of which one is here"):
        Net(3).members[0].receive("d", one_piece())


def test_a_checkpoint_does_not_wait_for_a_member_that_does_not_come() -> None:
    net = Net(2)
    held = values([4], 0)
    net.begin(0, held, patience=0.01)  # it has one piece, which rank 0 serves
    net.clock.advance(1.0)
    later(net.members[0].settle).result(PATIENCE)
    assert net.outcome(0).missing == {1}
