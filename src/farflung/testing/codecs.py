"""Conformance of a codec: ``check_codec(codec)`` raises ``AssertionError`` with the first rule that it breaks.

The rules: element type and shape come back for every element type, shape and memory order; the array is not modified; equal
arrays give equal bytes; a lossless codec gives every bit back; a NaN is never hidden; finite numbers stay finite and err by no
more than ``error_bound`` says; the size is what ``wire_bytes`` says (``shaped_bytes`` of a codec that has it, for several dims)
and at most a little more than dense; a hostile payload gives ``CodecError``, or an array of the declared type and shape.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Any

import ml_dtypes
import numpy as np

from farflung.codecs import DEFAULT_LIMIT, Codec, Payload, decode_payload, foretold_bytes
from farflung.codecs.base import FLOATING, Array, ByShape
from farflung.errors import CodecError, VersionError
from farflung.wire.arrays import DTYPES

__all__ = ["check_codec", "sample_arrays"]

#: Bytes that a payload may take beyond its dense elements, and beyond its estimate.
HEAD_ALLOWANCE = 256
#: Of several dims, as values between stages have them: few samples first, or long and thin.
_SHAPES = ((4, 32, 32), (2, 3, 500), (128, 32), (700, 3), (2, 40, 50, 3))
_SPECIAL = (np.nan, np.inf, -np.inf, -0.0, 1e-30, 6e4, 3e-8)
_JUNK: tuple[object, ...] = (-1, 0, 1, 3, 1 << 31, 1 << 62, None, True, "", "float32", "bool", 1.5, float("nan"), [], {}, b"x")


def check_codec(codec: Codec, *, size: int = 100_000, seed: int = 0) -> None:
    """Hold ``codec`` against every rule above, on arrays of up to ``size`` elements.

    Raises:
        AssertionError: the text names the rule and the array.
    """
    generator = np.random.default_rng(seed)
    for label, array in sample_arrays(size, generator):
        _check_round_trip(codec, label, array)
    _check_sizes(codec, size, generator)
    for shape in ((3, 50), (700,), (4096,)):
        _check_hostile(codec, codec.encode(generator.standard_normal(shape).astype(np.float32)), generator)
    _check_bytes(codec, codec.encode(generator.standard_normal(3000).astype(np.float32)).to_bytes(), generator)


def sample_arrays(size: int, generator: np.random.Generator) -> Iterator[tuple[str, Array]]:
    """Named arrays of every element type, shape and memory order that a codec must carry."""
    for dtype, kind in DTYPES.items():
        base = (generator.standard_normal(size) * 40).astype(kind)
        yield f"{dtype} of {size}", base
        yield f"{dtype} scalar", base[:1].reshape(())
        yield f"{dtype} empty", base[:0].reshape(0, 7)
        yield f"{dtype} zeros", np.zeros((5, 300), kind)
        yield f"{dtype} with stride", base[: size // 6 * 6].reshape(2, -1, 3)[:, ::2, 1]
        yield f"{dtype} in Fortran order", np.asfortranarray(base[: size // 8 * 8].reshape(8, -1))
        yield f"{dtype} expanded", np.broadcast_to(base[:50, None], (50, 9))
        if dtype in FLOATING:
            spiked = base.copy()
            spiked[:: max(1, size // 7)] = [np.nan, np.inf, -np.inf, -0.0, np.nan, 1e-30, 6e4, 3e-8][
                : len(spiked[:: max(1, size // 7)])
            ]
            yield f"{dtype} with NaN and infinities", spiked
            yield f"{dtype} all NaN", np.full(900, np.nan, kind)
            yield f"{dtype} equal magnitudes", np.where(generator.random(5000) < 0.5, -1, 1).astype(kind)
            yield f"{dtype} mostly zeros", base * (generator.random(size) < 0.003).astype(kind)


def _check_round_trip(codec: Codec, label: str, array: Array) -> None:
    before = array.tobytes()
    payload = codec.encode(array)
    data = payload.to_bytes()
    assert array.tobytes() == before, f"{label}: encode modified the array"
    assert codec.encode(array.copy()).to_bytes() == data, f"{label}: equal arrays give different bytes"
    assert payload.nbytes == len(data), f"{label}: nbytes says {payload.nbytes}, to_bytes gives {len(data)}"
    assert len(data) <= array.nbytes + HEAD_ALLOWANCE, f"{label}: {len(data)} bytes for {array.nbytes} dense ones"
    result = codec.decode(payload)
    assert (result.dtype, result.shape) == (array.dtype, array.shape), f"{label}: came back as {result.dtype} {result.shape}"
    again = decode_payload(Payload.from_bytes(data))
    assert again.tobytes() == result.tobytes(), f"{label}: the payload decodes differently after a trip as bytes"
    if codec.lossless or array.dtype.name not in FLOATING:
        assert result.tobytes() == array.tobytes(), f"{label}: must come back bit for bit"
    elif np.isnan(array).any():
        assert np.isnan(result).any(), f"{label}: a NaN was hidden"
    else:
        _check_error(codec, label, array, result)


def _check_error(codec: Codec, label: str, array: Array, result: Array) -> None:
    if not np.isfinite(array).all():
        return
    assert np.isfinite(result).all(), f"{label}: finite numbers came back as infinities or NaN"
    before, after = array.astype(np.longdouble), result.astype(np.longdouble)
    norm, error = np.sqrt((before**2).sum()), np.sqrt(((before - after) ** 2).sum())
    info: Any = ml_dtypes.finfo(array.dtype)  # type: ignore[no-untyped-call]
    said = codec.error_bound(array.shape)
    rounding = float(info.eps) * (norm + error) + float(info.smallest_subnormal) * array.size**0.5
    assert error <= said * norm * (1 + 1e-6) + rounding, f"{label}: error_bound says {said:.3g}, the error is {error / norm:.3g}"


def _check_sizes(codec: Codec, size: int, generator: np.random.Generator) -> None:
    for dtype in sorted(FLOATING):
        for shape in ((10,), (1000,), (size,), *_SHAPES):
            array = generator.standard_normal(shape).astype(DTYPES[dtype])
            flat = len(shape) == 1
            said = codec.wire_bytes(shape[0], array.itemsize) if flat else foretold_bytes(codec, shape, array.itemsize)
            method = "shaped_bytes" if isinstance(codec, ByShape) and not flat else "wire_bytes"
            real, label = codec.encode(array).nbytes, shape[0] if flat else " x ".join(map(str, shape))
            text = f"{dtype} of {label}: {method} says {said:.0f}, the payload takes {real}"
            assert abs(real - said) <= 0.05 * real + HEAD_ALLOWANCE, text


def _check_hostile(codec: Codec, payload: Payload, generator: np.random.Generator) -> None:
    for changed in _damaged(payload, generator):
        _decode_or_refuse(codec, changed)


def _damaged(payload: Payload, generator: np.random.Generator) -> Iterator[Payload]:
    """Payloads that differ from ``payload`` in one place."""
    for name in payload.fields:
        for junk in _JUNK:
            yield replace(payload, fields={**payload.fields, name: junk})
        yield replace(payload, fields={key: value for key, value in payload.fields.items() if key != name})
    for shape in ((), (0,), (1,), (payload.numel + 1,), (payload.numel - 1,), (2, 3), (1 << 20,)):
        yield replace(payload, shape=shape)
    for dtype in DTYPES:
        yield replace(payload, dtype=dtype)
    yield replace(payload, sections=())
    yield replace(payload, sections=(*payload.sections, b"more"))
    yield replace(payload, codec="no such codec")
    for index, section in enumerate(payload.sections):
        data = bytes(section)
        changes = [b"", data[:-1], data + b"\0", b"\xff" * len(data), bytes(len(data))]
        for _ in range(20 if data else 0):
            flipped = bytearray(data)
            flipped[int(generator.integers(len(data)))] ^= 1 << int(generator.integers(8))
            changes.append(bytes(flipped))
        for change in changes:
            yield replace(payload, sections=(*payload.sections[:index], change, *payload.sections[index + 1 :]))


def _decode_or_refuse(codec: Codec, payload: Payload) -> None:
    """Any other exception than ``CodecError`` passes through and fails the check."""
    text = "one line"
    try:
        result = codec.decode(payload)
    except CodecError as error:
        result, text = None, str(error)
    assert len(text.splitlines()) == 1, f"the error of a hostile payload must be one line: {text!r}"
    if result is None:
        return
    assert (result.dtype, result.shape) == (DTYPES[payload.dtype], payload.shape), f"a damaged payload gave {result.shape}"


def _check_bytes(codec: Codec, data: bytes, generator: np.random.Generator) -> None:
    """Damage on the way is refused before the codec sees it."""
    damaged: Mapping[str, bytes] = {
        "truncated": data[: len(data) // 2],
        "extended": data + b"\0",
        "flipped": _flip(data, int(generator.integers(8 * len(data)))),
    }
    for label, changed in damaged.items():
        try:
            payload = Payload.from_bytes(changed, DEFAULT_LIMIT)
        except (CodecError, VersionError):
            continue
        raise AssertionError(f"{label} bytes of {codec.name} were taken as a payload of {payload.codec}")


def _flip(data: bytes, bit: int) -> bytes:
    changed = bytearray(data)
    changed[bit // 8] ^= 1 << bit % 8
    return bytes(changed)
