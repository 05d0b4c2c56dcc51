"""Which tokens go into which batch: prompts in chunks, next tokens together, and everything again after a loss."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from farflung.serving.model import ServingOptions
from farflung.serving.scheduler import Batch, Draws, Scheduler, Settings, TokenSequence


def sequence(length: int, most: int = 4, first: int = 100) -> TokenSequence:
    return TokenSequence(tokens=list(range(first, first + length)), prompt=length, most=most, draws=Draws())


def scheduler(*sizes: int, slots: int = 2, under_way: int = 1) -> Scheduler:
    made = Scheduler(Settings(sizes=sizes or (1, 2, 4), slots=slots))
    made.restart(under_way)
    return made


def batch_of(made: Scheduler) -> Batch:
    found = made.next_batch()
    assert found is not None
    return found


def test_a_prompt_goes_in_chunks_and_then_token_by_token() -> None:
    made, one = scheduler(under_way=2), sequence(6)
    made.add(one)
    first, second = batch_of(made), batch_of(made)
    assert (first.tokens, first.positions, first.slots, first.draws) == ((100, 101, 102, 103), (0, 1, 2, 3), (0,) * 4, ())
    assert (second.tokens, second.positions, second.rows, second.draws) == ((104, 105), (4, 5), 2, ((1, one),))
    assert made.next_batch() is None, "a token is being drawn"
    assert made.take(first.number, []) == []
    assert made.take(second.number, [7]) == [(one, 0)]
    third = batch_of(made)
    assert (third.tokens, third.positions, third.rows, third.number) == ((7,), (6,), 1, 2)


def test_next_tokens_come_before_prompts_and_share_their_row() -> None:
    made, one, long = scheduler(1, 4, slots=2), sequence(1), sequence(9, first=200)
    made.add(one)
    made.take(batch_of(made).number, [7])
    made.add(long)
    row = batch_of(made)
    assert (row.tokens, row.slots, row.draws) == ((7, 200, 201, 202), (0, 1, 1, 1), ((0, one),))


def test_requests_beyond_the_slots_wait_for_the_end_of_another() -> None:
    made, requests = scheduler(slots=1), [sequence(1), sequence(1, first=200)]
    for one in requests:
        made.add(one)
    first = batch_of(made)
    assert (first.tokens, made.waiting, made.active) == ((100,), 1, 1)
    made.take(first.number, [7])
    made.remove(requests[0])
    assert batch_of(made).tokens == (200,)
    assert made.waiting == 0


def test_a_removed_request_gets_no_token_and_its_slot_is_free() -> None:
    made, one = scheduler(slots=1), sequence(2)
    made.add(one)
    row = batch_of(made)
    made.remove(one)
    made.remove(one)  # twice is once
    assert made.take(row.number, [7]) == []
    assert one.tokens == [100, 101]
    other = sequence(1, first=200)
    made.add(other)
    assert batch_of(made).slots == (0,)


def test_only_so_many_batches_are_under_way() -> None:
    made = scheduler(1, slots=4, under_way=2)
    for first in (100, 200, 300):
        made.add(sequence(1, first=first))
    first, _ = batch_of(made), batch_of(made)
    assert made.next_batch() is None
    assert not made.idle
    made.take(first.number, [7])
    assert made.next_batch() is not None


def test_requests_share_batches_if_that_is_faster() -> None:
    """One stage computes a batch in a second, whatever its size. Two batches under way take two seconds each, in turn."""
    made = scheduler(1, 2, 4, slots=4, under_way=2)
    for first in (100, 200, 300, 400):
        made.add(sequence(1, most=1000, first=first))
    queue, now, sizes = list[Batch](), 0.0, list[int]()
    for _ in range(40):
        while (batch := made.next_batch()) is not None:
            queue.append(batch)
        batch, now = queue.pop(0), now + 1.0
        sizes.append(len(batch.draws))
        made.take(batch.number, [7] * len(batch.draws), now)
    assert 2 in sizes[:6]
    assert set(sizes[20:]) == {4}


def test_nobody_is_left_behind_when_requests_end() -> None:
    made, requests = scheduler(1, 2, 4, 8, slots=7, under_way=2), [sequence(1, most=1000, first=100 * i) for i in range(7)]
    for one in requests:
        made.add(one)
    queue, now = list[Batch](), 0.0
    for turn in range(60):
        while (batch := made.next_batch()) is not None:
            queue.append(batch)
        batch, now = queue.pop(0), now + 1.0
        made.take(batch.number, [7] * len(batch.draws), now)
        if turn == 1:
            made.remove(requests[0])
            made.remove(requests[1])
    drawn = [one.drawn for one in requests[2:]]
    assert min(drawn) > 20
    assert max(drawn) - min(drawn) <= 2


@pytest.mark.parametrize(
    ("slots", "chunk", "sizes"),
    [(8, 64, (1, 2, 4, 8, 64)), (6, 64, (1, 2, 4, 6, 64)), (3, 2, (1, 2)), (1, 1, (1,)), (8, 8, (1, 2, 4, 8))],
)
def test_rows_are_at_most_twice_as_long_as_the_next_tokens_need(slots: int, chunk: int, sizes: tuple[int, ...]) -> None:
    assert ServingOptions(slots=slots, chunk=chunk).sizes == sizes


def test_after_a_restart_all_tokens_are_sent_again() -> None:
    made, one = scheduler(1, 8), sequence(3)
    made.add(one)
    made.take(batch_of(made).number, [7])
    lost = batch_of(made)
    made.restart(1)
    again = batch_of(made)
    assert (again.number, again.tokens, again.positions) == (0, (100, 101, 102, 7), (0, 1, 2, 3))
    assert lost.number == 1
    with pytest.raises(ValueError, match="2 tokens for batch 0, which is not under way with as many draws"):
        made.take(0, [1, 2])
    with pytest.raises(ValueError, match="1 tokens for batch 1"):
        made.take(lost.number, [1])


@given(
    lengths=st.lists(st.integers(1, 20), min_size=1, max_size=8),
    slots=st.integers(1, 4),
    chunk=st.integers(1, 9),
    under_way=st.integers(1, 4),
    losses=st.sets(st.integers(0, 60), max_size=3),
    delays=st.lists(st.sampled_from((1.0, 3.0)), min_size=1, max_size=20),
)
def test_every_request_sends_each_token_once_and_in_order(
    lengths: list[int], slots: int, chunk: int, under_way: int, losses: set[int], delays: list[float]
) -> None:
    """A model whose caches hold what was sent: it never sees a gap, and every request ends."""
    made = scheduler(*sorted({1, min(slots, chunk), chunk}), slots=slots, under_way=under_way)
    requests = [sequence(length, most=3, first=100 * index) for index, length in enumerate(lengths)]
    for one in requests:
        made.add(one)
    caches: dict[int, list[int]] = {}
    queue: list[Batch] = []
    now = 0.0
    for turn in range(2000):
        if turn in losses:
            made.restart(under_way)
            caches, queue = {}, []
        while (batch := made.next_batch()) is not None:
            assert len(batch.tokens) <= batch.rows <= chunk
            assert len(batch.draws) <= min(batch.rows, slots)
            queue.append(batch)
        if not queue:
            break
        batch = queue.pop(0)
        for token, position, slot in zip(batch.tokens, batch.positions, batch.slots, strict=True):
            cache = caches.setdefault(slot, [])
            assert position <= len(cache), "a gap"
            caches[slot] = [*cache[:position], token]
        for place, one in batch.draws:
            assert caches[one.slot] == one.tokens, f"the cache of the one that draws at {place} is its prefix"
        now += delays[turn % len(delays)]
        for one, _ in made.take(batch.number, [5000 + one.drawn for _, one in batch.draws], now):
            if one.drawn == one.most:
                made.remove(one)
    assert [one.drawn for one in requests] == [3] * len(requests)
    assert (made.idle, made.active, made.waiting) == (True, 0, 0)
