"""Payloads as bytes: golden vectors for other languages, limits, and damage."""

from __future__ import annotations

import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.codecs import CODECS, Payload, decode_payload, get_codec
from farflung.errors import CodecError, VersionError
from farflung.wire.frames import Frame, encode_frame

ARRAY = np.zeros((8, 32), np.float32)
ARRAY.reshape(-1)[[3, 4, 10, 30, 31, 60]] = [1.5, -2.0, 0.25, 8.0, -1.0, 3.0]
#: (codec, parameters, fields, sections as hexadecimal digits) of ARRAY; docs/wire-format.md explains each.
GOLDEN = [
    (
        "topk",
        {"ratio": 42},
        {"count": 6, "values": "float32", "exponent": 0, "shift": 3},
        ["6704", "0d0924", "0000c03f000000c00000803e00000041000080bf00004040"],
    ),
    (
        "topk",
        {"ratio": 42, "values": "float16"},
        {"count": 6, "values": "float16", "exponent": 11, "shift": 3},
        ["6704", "0d0924", "006a00ec0060007400e8006e"],
    ),
    (
        "topk",
        {"ratio": 42, "values": "int8"},
        {"count": 6, "values": "quantized", "bits": 8, "block": 64, "shift": 3},
        ["6704", "0d0924", "18e0047ff030", "0402813d"],
    ),
    (
        "topk",
        {"ratio": 42, "format": "paper"},
        {"count": 6, "values": "float32", "exponent": 0},
        [
            "".join(f"{index:02x}" + "00" * 7 for index in (3, 4, 10, 30, 31, 60)),
            "0000c03f000000c00000803e00000041000080bf00004040",
        ],
    ),
]
SMALL = np.array([1.0, -3.0, 0.5, 2.0] * 16, np.float32)
GOLDEN_SMALL = [
    ("identity", {}, {}, ["0000803f000040c00000003f00000040" * 16]),
    ("bf16", {}, {"to": "bfloat16", "exponent": 0}, ["803f40c0003f0040" * 16]),
    ("fp16", {}, {"to": "float16", "exponent": 13}, ["007000f6006c0074" * 16]),
    ("int8", {}, {"bits": 8, "block": 256}, ["2a811555" * 16, "0683c13c"]),
    ("int4", {}, {"bits": 4, "block": 128}, ["1ad9" * 16, "b76ddb3e"]),
    ("quantized", {"bits": 3, "block": 32}, {"bits": 3, "block": 32}, ["33" * 8 + "88" * 8 + "dd" * 8, "0000803f" * 2]),
    ("int2", {}, {"bits": 2, "block": 256}, ["88" * 8 + "dd" * 8, "3333533f"]),
    ("sign", {}, {"bits": 1, "block": 1024}, ["dd" * 8, "0000d03f"]),
    (
        "int2",
        {"rounding": "stochastic", "seed": 1},
        {"bits": 2, "block": 256},
        ["0c40000c004480c8d99dddd9dd99dd9d", "0000803f"],
    ),
    (
        "int4",
        {"rotate": True, "block": 16, "seed": 9},
        {"bits": 4, "block": 16, "rotation": 16, "seed": 1663964398},
        ["793d3d79c2a8571b" * 4, "0000003f" * 4],
    ),
    (
        "randomk",
        {"ratio": 16, "seed": 5},
        {"count": 4, "seed": 5, "scaled": 1, "values": "float32", "exponent": 0},
        ["0000003f0000803f00000040000040c0"],
    ),
]


#: identity of the uint8 array [[1, 2]], as a whole.
GOLDEN_BYTES = (
    "46464c1a010101003f00000055826d34"  # prelude
    "02000000000000009242ccb6"  # one section of 2 bytes
    "92a77061796c6f616485"  # ["payload", a map of 5
    "a5636f646563a86964656e74697479"  # codec: identity
    "a776657273696f6e01"  # version: 1
    "a56474797065a575696e7438"  # dtype: uint8
    "a57368617065920102"  # shape: [1, 2]
    "a66669656c647380"  # fields: {}]
    "0102"
)


@pytest.mark.parametrize(("name", "params", "fields", "sections"), GOLDEN, ids=["compact", "float16", "int8", "paper"])
def test_golden_sparse_payloads(name: str, params: dict[str, object], fields: dict[str, object], sections: list[str]) -> None:
    payload = get_codec(name, **params).encode(ARRAY)
    assert dict(payload.fields) == fields
    assert [bytes(section).hex() for section in payload.sections] == sections
    np.testing.assert_allclose(decode_payload(payload), ARRAY, atol=0.04 if params.get("values") == "int8" else 0)


@pytest.mark.parametrize(("name", "params", "fields", "sections"), GOLDEN_SMALL, ids=[f"{e[0]}-{e[1]}" for e in GOLDEN_SMALL])
def test_golden_dense_payloads(name: str, params: dict[str, object], fields: dict[str, object], sections: list[str]) -> None:
    payload = get_codec(name, **params).encode(SMALL)
    assert dict(payload.fields) == fields
    assert [bytes(section).hex() for section in payload.sections] == sections


def test_golden_bytes_of_a_whole_payload() -> None:
    payload = get_codec("identity").encode(np.array([[1, 2]], np.uint8))
    assert payload.to_bytes().hex() == GOLDEN_BYTES
    assert Payload.from_bytes(payload.to_bytes()) == payload


PAYLOAD = get_codec("topk", ratio=42).encode(ARRAY)


def bytes_of(header: object, kind: str = "payload", sections: tuple[bytes, ...] = ()) -> bytes:
    return b"".join(encode_frame(Frame(kind, header, sections)))  # type: ignore[arg-type]


@given(st.data())
@settings(deadline=None, max_examples=80)
def test_damaged_bytes_are_refused(data: st.DataObject) -> None:
    whole = bytearray(PAYLOAD.to_bytes())
    if data.draw(st.booleans()):
        bit = data.draw(st.integers(0, 8 * len(whole) - 1))
        whole[bit // 8] ^= 1 << bit % 8
    else:
        del whole[data.draw(st.integers(0, len(whole) - 1)) :]
    with pytest.raises((CodecError, VersionError)):
        Payload.from_bytes(whole)


junk = st.one_of(
    st.none(), st.integers(), st.text(), st.lists(st.integers(0, 300), max_size=3), st.dictionaries(st.text(), st.none())
)


@given(
    st.dictionaries(st.sampled_from(["codec", "version", "dtype", "shape", "fields"]), junk), st.lists(st.binary(), max_size=3)
)
@settings(deadline=None, max_examples=100)
def test_hostile_headers_are_refused_or_decode_to_what_they_declare(changes: dict[str, object], sections: list[bytes]) -> None:
    header = {**PAYLOAD.to_header(), **changes}
    try:
        payload = Payload.from_header(header, tuple(sections) or PAYLOAD.sections, limit=1 << 20)
        result = decode_payload(payload)
    except (CodecError, VersionError):
        return
    assert (result.dtype.name, result.shape) == (payload.dtype, payload.shape)
    assert result.nbytes <= 1 << 20


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (b"", "bad payload: truncated frame"),
        (b"x" * 40, "bad payload: not a frame"),
        (bytes_of({}), "its header must hold codec, version, dtype, shape and fields"),
        (bytes_of(PAYLOAD.to_header(), kind="gradient"), "the frame is a 'gradient'"),
        (bytes_of({**PAYLOAD.to_header(), "dtype": "object"}), "unknown element type 'object'"),
        (bytes_of({**PAYLOAD.to_header(), "shape": [-1]}), "integers from 0 to 2^48 - 1, got -1"),
        (bytes_of({**PAYLOAD.to_header(), "shape": [1 << 40]}), "needs 4398046511104 bytes, the limit is 1048576"),
        (bytes_of({**PAYLOAD.to_header(), "shape": [0, 1 << 40]}), "oversized payload"),
        (bytes_of({**PAYLOAD.to_header(), "codec": 3}), "codec must be a text"),
        (bytes_of(PAYLOAD.to_header(), sections=(b"",) * 9), "9 sections, the limit is 8"),
    ],
)
def test_errors(data: bytes, text: str) -> None:
    with pytest.raises(CodecError) as caught:
        Payload.from_bytes(data, 1 << 20)
    assert text in str(caught.value)


def test_another_version_says_what_to_do() -> None:
    with pytest.raises(VersionError, match="payloads of version 2, this machine reads version 1; install the same farflung"):
        Payload.from_bytes(bytes_of({**PAYLOAD.to_header(), "version": 2}))


def test_an_unknown_codec_lists_the_known_ones() -> None:
    with pytest.raises(CodecError, match="unknown codec 'zip'; known are bf16, cast"):
        decode_payload(Payload(codec="zip", dtype="float32", shape=(1,)))


def test_what_was_agreed_is_checked_before_decoding() -> None:
    PAYLOAD.expect("float32", (8, 32))
    with pytest.raises(CodecError, match=r"the payload holds float32 \(8, 32\), agreed was float32 \(256,\)"):
        PAYLOAD.expect("float32", (256,))


def test_refusing_takes_no_memory() -> None:
    data = bytes_of({**PAYLOAD.to_header(), "shape": [1 << 28]}, sections=(b"", b"", b""))
    tracemalloc.start()
    with pytest.raises(CodecError, match="oversized"):
        Payload.from_bytes(data, 1 << 20)
    assert tracemalloc.get_traced_memory()[1] < 1 << 18
    tracemalloc.stop()


def test_elements_of_unknown_types_are_named() -> None:
    for name in ("identity", "topk", "fp16", "int8"):
        with pytest.raises(CodecError, match=r"cannot encode elements of type datetime64\[s\]: known are float64"):
            get_codec(name).encode(np.zeros(3, "datetime64[s]"))


@pytest.mark.parametrize("name", list(CODECS))
def test_complex_numbers_travel_without_loss(name: str) -> None:
    """Outputs of Fourier transforms may cross a link, and lossy codecs are defined for real numbers."""
    values = (np.arange(40) + 1j * np.arange(40)[::-1]).astype(np.complex64)
    codec = get_codec(name)
    np.testing.assert_array_equal(codec.decode(codec.encode(values)), values)


#: Of ``lowrank`` with quantized factors: fields, sections, and the codes of the last row.
GOLDEN_FACTORS = [
    (
        {"rank": 1, "rows": 24, "columns": 24, "bits": 8, "block": 256},
        [
            "050b10151a20252a30353a3f454a4f555a5f656a6f747a7f",
            "d3ecb03c",
            "40c07f2040c07f2040c07f2040c07f2040c07f2040c07f20",
            "341a0d3e",
        ],
        (127, [64, -64, 127, 32]),
    ),
    (
        {"rank": 1, "rows": 24, "columns": 24, "bits": 4, "block": 256},
        ["9899a9aabbcbccdcddeeeeff", "d39ec83e", "4caf4caf4caf4caf4caf4caf", "00002040"],
        (7, [4, -4, 7, 2]),
    ),
]


@pytest.mark.parametrize(("fields", "sections", "codes"), GOLDEN_FACTORS, ids=["8", "4"])
def test_golden_factors_of_low_rank(fields: dict[str, object], sections: list[str], codes: tuple[int, list[int]]) -> None:
    """What encodes may differ in the last bit from machine to machine (it multiplies matrices); what decodes has these bytes."""
    held = tuple(bytes.fromhex(section) for section in sections)
    payload = Payload(codec="lowrank", dtype="float32", shape=(24, 24), fields=fields, sections=held)
    decoded = decode_payload(payload)
    scales = [np.frombuffer(held[place], "<f4")[0] for place in (1, 3)]
    left, right = codes[0] * scales[0], np.array(codes[1] * 6, np.float32) * scales[1]
    np.testing.assert_allclose(decoded[-1], left * right, rtol=1e-6)
    original = np.outer(np.arange(1, 25), np.tile([1.0, -1.0, 2.0, 0.5], 6)).astype(np.float32)
    made = get_codec("lowrank", rank=1, values=f"int{fields['bits']}").encode(original)
    assert made.fields == fields
    assert [memoryview(section).nbytes for section in made.sections] == [len(section) for section in held]
    assert np.linalg.norm(decoded - original) < (0.01 if fields["bits"] == 8 else 0.15) * np.linalg.norm(original)
