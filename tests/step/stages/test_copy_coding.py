"""Copies piece by piece: what comes out, what is refused, and when pieces are coded."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace

from farflung.engines.base import Array
from farflung.errors import MemoryExceeded, WireError
from farflung.memory_budget import MemoryBudget
from farflung.messages.array_headers import ArrayHeader
from farflung.messages.commands import CopyRounds
from farflung.messages.data import CopyPiece
from farflung.messages.schema import UNSET
from farflung.step.stages.copy_coding import Coder, Incoming, Version

SLOW, FAST = 1e6, 1e18


def state(seed: int, *, near: Mapping[str, Array] | None = None) -> dict[str, Array]:
    random = np.random.default_rng(seed)
    if near is not None:
        return {k: (v + random.normal(scale=1e-5, size=v.shape)).astype(v.dtype) for k, v in near.items()}
    large, slots = (600, 500), "optimizer"
    sizes = {"weight": large, f"{slots}/exp_avg/weight": large, "bias": (3,), f"{slots}/step/weight": (), "none": (0, 4)}
    found: dict[str, Array] = {name: random.normal(scale=0.02, size=size).astype(np.float32) for name, size in sizes.items()}
    return {**found, "seen": np.arange(5), "turned": np.asfortranarray(found["weight"][:40])}


def pieces(arrays: Mapping[str, Array], base: Version | None = None, link: float = SLOW) -> list[CopyPiece]:
    return [make(link) for make in Coder(lambda: 0.0).pieces("run", arrays, base)]


def received(
    sent: list[CopyPiece], *held: Version, limit: int = 1 << 24, tensors: int = 99, budget: MemoryBudget | None = None
) -> Incoming:
    versions = dict(held)
    incoming = Incoming((limit, tensors), budget or MemoryBudget(), versions.get)
    for piece in sent:
        incoming.add(piece)
    return incoming


def nbytes(sent: list[CopyPiece]) -> int:
    return sum(memoryview(piece.sections[0]).nbytes for piece in sent)


def same(one: Mapping[str, Array], other: Mapping[str, Array]) -> None:
    assert one.keys() == other.keys()
    for name, array in one.items():
        assert (array.dtype, array.shape, array.tobytes()) == (other[name].dtype, other[name].shape, other[name].tobytes())


def test_a_copy_is_what_was_sent_and_smaller_by_what_both_hold() -> None:
    old = state(0)
    new = state(1, near=old)
    alone, against, plain = pieces(new), pieces(new, (7, old)), pieces(new, (7, old), FAST)
    for sent in (alone, against, plain):
        same(received(sent, (7, old)).arrays(), new)
    assert nbytes(against) < 0.8 * nbytes(alone) < 0.8 * nbytes(plain)
    assert nbytes(plain) == sum(array.nbytes for array in new.values()), "a fast link carries them as they are"
    assert received(against, (7, old)).nbytes == nbytes(against)


def test_who_lacks_the_older_version_says_so_and_holds_nothing() -> None:
    old = state(0)
    incoming = received(pieces(state(1, near=old), (7, old)), (6, old))
    assert incoming.lacks
    other = {**old, "weight": old["weight"][:3]}
    assert received(pieces(state(1, near=old), (7, old)), (7, other)).lacks
    assert not received(pieces(state(1, near=old), (7, old), FAST)).lacks, "plain pieces need nothing"


@settings(deadline=None, max_examples=30)
@given(st.integers(0, 2**32), st.lists(st.sampled_from(["float32", "float64", "int64", "bool", "float16"]), max_size=4))
def test_any_state_passes(seed: int, dtypes: list[str]) -> None:
    random = np.random.default_rng(seed)
    new: dict[str, Array] = {}
    old: dict[str, Array] = {}
    for index, dtype in enumerate(dtypes):
        new[f"t{index}"] = (random.integers(0, 5, random.integers(0, 50, 2)) - 2).astype(dtype)
        old[f"t{index}"] = (new[f"t{index}"] * random.integers(0, 2)).astype(dtype)
    same(received(pieces(new, (3, old)), (3, old)).arrays(), new)


def test_the_coder_is_left_out_where_the_link_is_faster_than_it() -> None:
    ticks = iter(range(1000))
    coder = Coder(lambda: float(next(ticks)))  # a second for each piece: a megabyte per second at most
    arrays = {"weight": state(0)["weight"]}
    for _ in range(60):
        list(make(1.0) for make in coder.pieces("run", arrays, None))  # noqa: C400
    assert coder.rate < 4e6
    assert all(make(5e6).coded is UNSET for make in coder.pieces("run", arrays, None))
    assert all(make(1e5).coded is not UNSET for make in coder.pieces("run", arrays, None))
    assert coder.sent < coder.raw


def broken(at: int = 0, **change: object) -> list[CopyPiece]:
    sent = pieces({"weight": np.zeros((700, 500), np.float32)})
    return [replace(piece, **change) if i == at else piece for i, piece in enumerate(sent)]


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(WireError, match="larger than the states of its sender's stages"):
        received(pieces(state(0)), limit=1 << 10)
    with pytest.raises(WireError, match="is larger than it says"):
        received(broken(coded=1 << 30))
    with pytest.raises(WireError, match="bad planes"):
        received(broken(coded=4))
    with pytest.raises(WireError, match="begins before the one before it has ended"):
        received(broken(1, name="other"))
    with pytest.raises(WireError, match="bytes of"):
        received(broken(last=True))
    with pytest.raises(WireError, match="was cut in transfer"):
        received(broken()[:1]).arrays()
    whole = pieces({"weight": np.zeros(4, np.float32)})
    with pytest.raises(WireError, match="larger than the states"):
        received([*whole, *whole])


def test_rounds_are_as_far_apart_as_the_last_one_was_large() -> None:
    rounds = CopyRounds(every=9, guards={"a": ("b",)}, least=3, budget=100.0)
    assert [rounds.gap(nbytes) for nbytes in (0, 250, 400, 1001)] == [3, 3, 4, 11]
    assert CopyRounds(every=9).gap(10**9) == 9, "what the job says is kept"


def test_a_copy_counts_in_the_budget_until_it_is_dropped() -> None:
    sent, budget = pieces(state(0)), MemoryBudget(1 << 22)
    incoming = received(sent, budget=budget)
    arrays = incoming.arrays()
    nbytes = sum(array.nbytes for array in arrays.values())
    assert budget.used == nbytes
    with pytest.raises(
        MemoryExceeded, match=r"a copy of states, which this worker stores for another one needs .*offer more memory"
    ):
        received(sent, budget=MemoryBudget(nbytes - 1))
    del incoming, arrays
    assert budget.used == 0


def test_gaps_between_elements_are_no_way_to_take_memory() -> None:
    """Four megabytes that claim a page for each element would take four gigabytes."""
    wide = ArrayHeader(dtype="float32", shape=(1 << 18,), strides=(1 << 10,))
    piece = CopyPiece(run="run", name="w", array=wide, last=True, sections=(bytes(1 << 20),))
    with pytest.raises(
        WireError, match=r"copied tensor 'w' takes 107\d+ bytes with its gaps, and 1048576 travel: send it without"
    ):
        received([piece])


def test_a_copy_of_empty_tensors_ends() -> None:
    empty = ArrayHeader(dtype="float32", shape=(0,), strides=None)
    many = [CopyPiece(run="run", name=f"w{index}", array=empty, last=True, sections=(b"",)) for index in range(9)]
    with pytest.raises(WireError, match="larger than the states of its sender's stages"):
        received(many, tensors=8)
