"""Frames survive any chunking; anything else gives a WireError or VersionError and takes no memory to speak of."""

from __future__ import annotations

import tracemalloc
import zlib
from dataclasses import replace

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.errors import VersionError, WireError
from farflung.wire.frames import Frame, FrameDecoder, FrameLimits, decode_frame, encode_frame
from farflung.wire.headers import pack_value, unpack_value

SMALL = FrameLimits(max_header=4096, max_sections=8, max_bytes=1 << 16, max_depth=4, max_items=100)
HEADER = {"step": 7, "names": ["a", "b"], "loss": 0.5, "raw": b"\0\1", "none": None, "yes": True}
FRAME = Frame("grad", HEADER, (b"abc", b"", b"defgh"))
#: The bytes of Frame("hi", {"n": 1}, (b"abc",)): other languages can check themselves against them.
GOLDEN = "46464c1a0101010008000000cbc3bc830300000000000000c241243592a2686981a16e01616263"


def joined(frame: Frame, **options: bool) -> bytes:
    return b"".join(encode_frame(frame, **options))


def read_stream(data: bytes | bytearray) -> list[Frame]:
    decoder = FrameDecoder(SMALL)
    frames = decoder.feed(data)
    decoder.close()
    return frames


def sealed(data: bytes, header: bytes, lengths: tuple[int, ...] = (), flags: int = 0, version: int = 1) -> bytes:
    """A frame with a correct checksum around whatever it is given."""
    start = b"FFL\x1a" + bytes([version, flags]) + len(lengths).to_bytes(2, "little") + len(header).to_bytes(4, "little")
    table = b"".join(length.to_bytes(8, "little") + bytes(4) for length in lengths)
    return start + zlib.crc32(start + table + header).to_bytes(4, "little") + table + header + data


@pytest.mark.parametrize("checksum", [True, False])
@pytest.mark.parametrize("frame", [FRAME, Frame("empty"), Frame("only", {}, (bytes(5000),))])
def test_round_trip(frame: Frame, checksum: bool) -> None:
    assert decode_frame(joined(frame, checksum=checksum), SMALL) == frame


def test_golden_bytes() -> None:
    frame = Frame("hi", {"n": 1}, (b"abc",))
    assert joined(frame).hex() == GOLDEN
    assert decode_frame(bytes.fromhex(GOLDEN)) == frame


def test_sections_are_not_copied() -> None:
    data = np.arange(10, dtype=np.float32)
    buffers = encode_frame(Frame("x", {}, (memoryview(data.data),)))
    assert np.shares_memory(np.frombuffer(buffers[1], np.uint8), data)
    whole = b"".join(buffers)
    section = decode_frame(whole).sections[0]
    assert np.shares_memory(np.frombuffer(section, np.uint8), np.frombuffer(whole, np.uint8))


@given(st.lists(st.integers(1, 40), min_size=1, max_size=30), st.booleans())
@settings(deadline=None, max_examples=60)
def test_any_chunks_give_the_same_frames(sizes: list[int], checksum: bool) -> None:
    stream = joined(FRAME, checksum=checksum) + joined(Frame("empty")) + joined(FRAME)
    decoder, frames, position = FrameDecoder(SMALL), [], 0
    for size in sizes * len(stream):
        frames += decoder.feed(stream[position : position + size])
        position += size
        if position >= len(stream):
            break
    decoder.close()
    assert decoder.idle
    assert frames == [FRAME, Frame("empty"), FRAME]


@given(st.data())
@settings(deadline=None, max_examples=100)
def test_flipped_bits_are_noticed(data: st.DataObject) -> None:
    whole = bytearray(joined(FRAME))
    bit = data.draw(st.integers(0, 8 * len(whole) - 1))
    whole[bit // 8] ^= 1 << bit % 8
    with pytest.raises((WireError, VersionError)):
        decode_frame(whole, SMALL)
    with pytest.raises((WireError, VersionError)):
        read_stream(whole)


@given(st.integers(0, len(joined(FRAME)) - 1))
def test_truncation_is_noticed(size: int) -> None:
    part = joined(FRAME)[:size]
    with pytest.raises(WireError, match="truncated"):
        decode_frame(part, SMALL)
    decoder = FrameDecoder(SMALL)
    assert decoder.feed(part) == []
    if size:
        with pytest.raises(WireError, match="truncated frame: the stream ended"):
            decoder.close()


@given(st.binary(max_size=200), st.lists(st.integers(0, 2**64 - 1), max_size=3), st.integers(0, 1))
@settings(deadline=None, max_examples=100)
def test_random_headers_behind_a_good_checksum(header: bytes, lengths: list[int], flags: int) -> None:
    data = sealed(b"", header, tuple(lengths), flags)
    texts: list[str] = []
    for read in (lambda: decode_frame(data, SMALL), lambda: FrameDecoder(SMALL).feed(data)):
        try:
            read()
        except WireError as error:
            texts.append(str(error))
    assert not any("\n" in text for text in texts)


@given(st.binary(max_size=200))
@settings(deadline=None, max_examples=80)
def test_random_bytes(data: bytes) -> None:
    with pytest.raises((WireError, VersionError)):
        decode_frame(data, SMALL)


plain = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats(allow_nan=False) | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=10,
)


@given(plain)
@settings(deadline=None, max_examples=80)
def test_plain_values_survive(value: object) -> None:
    assert unpack_value(pack_value(value), 40) == value


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", "not a frame: it begins with b'GET '"),
        (b"", "truncated frame: 0 bytes of 16"),
        (sealed(b"", b"\x92\xa1a\x80", flags=8), "unknown flags 0x08"),
        (sealed(b"", bytes(5000)), "oversized frame: 5000 bytes of header, the limit is 4096"),
        (sealed(b"", b"\x92\xa1a\x80", (0,) * 9), "9 sections, the limit is 8"),
        (sealed(b"", b"\x92\xa1a\x80", (2**62, 2**62)), "9223372036854775808 bytes of sections, the limit is 65536"),
        (sealed(b"", b"\x92\xa1a\x80", (4,)), "truncated frame: 32 bytes of 36"),
        (sealed(b"more", b"\x92\xa1a\x80"), "4 bytes follow its end"),
        (sealed(b"", b"\x01"), "must be a kind (text) and a map"),
        (sealed(b"", b"\x92\x01\x80"), "must be a kind (text) and a map"),
        (sealed(b"", b"\x92\xa1a\x81\xc4\x01a\x01"), "map key b'a' is not a text"),
        (sealed(b"", b"\x92\xa1a\x82\xa1k\x01\xa1k\x02"), "map key 'k' stands twice"),
        (sealed(b"", b"\x92\xa1a\xd4\x01\x01"), "type byte 0xd4 at 3 is not allowed"),
        (sealed(b"", b"\x92\xa1a\xc1"), "type byte 0xc1 at 3"),
        (sealed(b"", b"\x92\xa1a\x81\xa1k\xa1\xff"), "UnicodeDecodeError"),
        (sealed(b"", b"\x92\xa1a\xdd\xff\xff\xff\xff"), "truncated header"),
        (sealed(b"", b"\x92\xa1a\xdb\xff\xff\xff\xff"), "truncated header"),
        (sealed(b"", b"\x92\xa1a"), "truncated header: it ends after 3 bytes inside a value"),
        (sealed(b"", b"\x91" * 20 + b"\x01"), "nested deeper than 4 levels"),
        (sealed(b"", b"\xdc\x00\x70" + b"\x90" * 112), "it has more than 100 items"),
        (sealed(b"", b"\x92\xa1a\x80\x01"), "bad header: 1 bytes follow its end"),
    ],
)
def test_errors_name_what_is_wrong(data: bytes, text: str) -> None:
    with pytest.raises(WireError) as caught:
        decode_frame(data, SMALL)
    assert text in str(caught.value)
    if "truncated frame" not in text and "follow its end" not in text:
        with pytest.raises(WireError) as caught:
            FrameDecoder(SMALL).feed(data)
        assert text in str(caught.value)


def test_another_version_says_what_to_do() -> None:
    with pytest.raises(VersionError, match=r"sender speaks version 2 .* this machine version 1; install the same farflung"):
        decode_frame(sealed(b"", b"\x92\xa1a\x80", version=2))


def test_a_damaged_section_is_named() -> None:
    whole = joined(FRAME)[:-1] + b"X"
    with pytest.raises(WireError, match="checksum of section 2 does not match"):
        decode_frame(whole)


def test_a_broken_stream_stays_broken() -> None:
    decoder = FrameDecoder(SMALL)
    with pytest.raises(WireError, match="not a frame"):
        decoder.feed(bytes(16))
    with pytest.raises(WireError, match="this stream broke before: not a frame"):
        decoder.feed(joined(FRAME))


@pytest.mark.parametrize(
    ("frame", "text"),
    [
        (Frame("x", {"a": {"b": [1, {2}]}}), "cannot write header[1]['a']['b'][1]: set is not a plain value"),
        (Frame("x", {"a": np.float32(1)}), "float32 is not a plain value"),
        (Frame("x", {1: 2}), "its key 1 must be a text"),  # type: ignore[dict-item]
        (Frame("x", {"a": 1 << 64}), "cannot write a header"),
        (Frame("x", {"a": "\ud800"}), "cannot write a header"),
        (Frame(3), "a frame's kind must be a text, got 3"),  # type: ignore[arg-type]
        (Frame("x", {}, (memoryview(b"abcd")[::2],)), "section 0 of a frame is not contiguous"),
        (Frame("x", {}, (bytes(1 << 17),)), "oversized frame: 131072 bytes of sections, the limit is 65536"),
    ],
)
def test_the_sender_refuses_too(frame: Frame, text: str) -> None:
    with pytest.raises(WireError) as caught:
        encode_frame(frame, limits=SMALL)
    assert text in str(caught.value)


def test_bombs_take_no_memory() -> None:
    bombs = [
        sealed(b"", b"\xdd\x00\x0f\xff\xff" * 800),
        sealed(b"", b"\x92\xa1a\xdf\x7f\xff\xff\xff"),
        sealed(b"", b"\x92\xa1a\x80", (1 << 16, 1 << 50)),
    ]
    tracemalloc.start()
    for bomb in bombs:
        with pytest.raises(WireError):
            decode_frame(bomb, SMALL)
        with pytest.raises(WireError):
            FrameDecoder(SMALL).feed(bomb)
    assert tracemalloc.get_traced_memory()[1] < 1 << 18
    tracemalloc.stop()


def test_the_header_is_ordinary_msgpack() -> None:
    assert msgpack.unpackb(encode_frame(FRAME)[0][16 + 36 :]) == ["grad", dict(FRAME.header)]


@pytest.mark.parametrize("checksum", [True, False])
def test_a_received_frame_knows_its_bytes(checksum: bool) -> None:
    sent = Frame("some", {"a": [1, "b"]}, (b"", b"1234", bytes(70_000)))
    data = b"".join(map(bytes, encode_frame(sent, checksum=checksum)))
    decoder = FrameDecoder()
    streamed = [frame for start in range(0, len(data), 1000) for frame in decoder.feed(data[start : start + 1000])]
    assert [frame.nbytes for frame in (decode_frame(data), *streamed)] == [len(data)] * 2
    assert sent.nbytes == 0, "it was made here"
    assert streamed == [sent]
    assert replace(streamed[0], header={}).nbytes == 0, "another frame"
