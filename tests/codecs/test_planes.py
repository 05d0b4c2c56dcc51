"""Lossless planes: what goes in comes out, damage is refused before memory is taken, and real states shrink."""

from __future__ import annotations

import struct
import tracemalloc

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.codecs.planes import MAX_PIECE, expand, shrink
from farflung.errors import CodecError


def coded(raw: bytes, width: int = 4, base: bytes | None = None) -> bytes:
    found = shrink(raw, width, base)
    assert found is not None
    return found


WIDTHS = st.sampled_from([1, 2, 4, 8])


@settings(deadline=None)
@given(width=WIDTHS, data=st.data(), kind=st.sampled_from(["any", "near", "same", "alone"]))
def test_what_goes_in_comes_out(width: int, data: st.DataObject, kind: str) -> None:
    count = data.draw(st.sampled_from([0, 1, 7, 128, 700, 1024]))
    random = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    span = 2 ** (8 * width) if data.draw(st.booleans()) else data.draw(st.integers(1, 255))
    base, other = (random.integers(0, span, count, f"<u{width}") for _ in range(2))
    raw = base
    if kind == "any":
        raw = other
    elif kind == "near":
        raw = base + random.integers(0, data.draw(st.integers(1, 255)), count, np.uint8).astype(f"<u{width}")
    known = None if kind == "alone" else base.tobytes()
    found = shrink(raw.tobytes(), width, known)
    if found is not None:
        assert len(found) < raw.nbytes
        assert bytes(expand(found, raw.nbytes, known)) == raw.tobytes()


@pytest.mark.parametrize("width", [1, 2, 4, 8])
def test_the_ends_of_the_number_line_are_exact(width: int) -> None:
    ends = np.array([0, 1, 2 ** (8 * width) - 1, 2 ** (8 * width - 1), 2 ** (8 * width - 1) - 1], f"<u{width}")
    raw, base = (np.tile(grid.reshape(-1), 40) for grid in np.meshgrid(ends, ends))
    assert bytes(expand(coded(raw.tobytes(), width, base.tobytes()), raw.nbytes, base.tobytes())) == raw.tobytes()
    assert bytes(expand(coded(raw.tobytes(), width), raw.nbytes)) == raw.tobytes()


def test_numbers_that_are_no_numbers_pass_as_they_are() -> None:
    special = np.array([np.nan, -np.nan, np.inf, -np.inf, 0.0, -0.0, 1e-45, -1e-45], np.float32)
    raw, base = np.tile(special, 64), np.repeat(special, 64)
    assert bytes(expand(coded(raw.tobytes(), 4, base.tobytes()), raw.nbytes, base.tobytes())) == raw.tobytes()


def test_weights_after_small_updates_shrink_more_by_what_both_ends_know() -> None:
    random = np.random.default_rng(0)
    base = random.normal(scale=0.02, size=1 << 16).astype(np.float32)
    raw = (base + random.normal(scale=1e-5, size=base.size)).astype(np.float32)
    alone, against = len(coded(raw.tobytes())), len(coded(raw.tobytes(), base=base.tobytes()))
    assert alone < 0.88 * raw.nbytes
    assert against < 0.65 * raw.nbytes


def test_noise_is_sent_as_it_is() -> None:
    noise = np.random.default_rng(0).integers(0, 256, 1 << 16, np.uint8).tobytes()
    assert shrink(noise, 4) is None
    assert shrink(noise, 4, noise[::-1]) is None
    assert shrink(b"", 4) is None
    assert shrink(bytes(256), 4) is None, "too small to be worth the time"


def test_another_base_is_chosen_only_where_it_helps() -> None:
    random = np.random.default_rng(0)
    raw, other = (random.normal(size=1 << 14).astype(np.float32).tobytes() for _ in range(2))
    assert len(coded(raw, base=other)) <= len(coded(raw))


def test_sizes_are_checked_on_both_sides() -> None:
    with pytest.raises(CodecError, match="cannot code 6 bytes as elements of 4"):
        shrink(bytes(6), 4)
    with pytest.raises(CodecError, match="the older version has 4 bytes, not 8"):
        shrink(bytes(8), 4, bytes(4))
    with pytest.raises(CodecError, match="at most"):
        shrink(bytes(MAX_PIECE + 4), 4)
    good = coded(bytes(4096))
    for wrong in (4092, 8192, 0, 4095, MAX_PIECE * 2):
        with pytest.raises(CodecError, match="bad planes"):
            expand(good, wrong)
    against = coded(bytes(4096), base=np.arange(1024, dtype="<u4").tobytes())
    if against[2]:
        with pytest.raises(CodecError, match="older version that is not here"):
            expand(against, 4096)


def test_a_plane_that_announces_more_takes_no_memory() -> None:
    bomb = zstandard.ZstdCompressor(level=1).compress(bytes(1 << 26))
    damaged = struct.pack("<BBB", 1, 1, 0) + struct.pack("<I", len(bomb)) + bomb
    tracemalloc.start()
    with pytest.raises(CodecError, match="holds 67108864 bytes"):
        expand(damaged, 1 << 16)
    assert tracemalloc.get_traced_memory()[1] < 1 << 20
    tracemalloc.stop()


@settings(deadline=None)
@given(st.binary(max_size=200), st.integers(0, 64))
def test_anything_is_refused_or_has_the_announced_size(data: bytes, count: int) -> None:
    for head in (b"", b"\x01\x01\x00", b"\x01\x04\x01"):
        try:
            assert len(expand(head + data, count * 4, bytes(count * 4))) == count * 4
        except CodecError:
            continue


@settings(deadline=None)
@given(st.integers(0, 4000), st.integers(1, 255))
def test_a_changed_byte_is_refused_or_gives_as_many_bytes(at: int, change: int) -> None:
    raw = np.random.default_rng(1).normal(size=256).astype(np.float32).tobytes()
    damaged = bytearray(coded(raw))
    damaged[at % len(damaged)] ^= change
    try:
        assert len(expand(bytes(damaged), len(raw))) == len(raw)
    except CodecError:
        return
