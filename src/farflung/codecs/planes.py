"""Lossless compression of numbers by an older version of them that both ends hold.

Elements are taken as unsigned integers with the sign bit turned to the lowest place, so that numbers that are near have integers
that are near. What is coded is the difference from the older version (modulo the width, small ones of both signs near zero), or
the integers themselves where their leading bytes have less entropy. The bytes of one rank of all elements make a plane. A plane
that is nearly random, as the low bytes of a mantissa are, is sent as it is; the others are compressed by zstd, level 1.

Source: byte planes as in Blosc's shuffle filter; predicted values subtracted as integers as in FPC (Burtscher and Ratanaworabhan,
2009), with the older version as the prediction. What differs: which planes are worth compressing, and whether the older version
helps, is told by the entropy of a sample. Cost: some eight passes over the elements, and zstd over the planes with less than 7.8
bits in a byte. Wire format: docs/wire-format.md.
"""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import zstandard
from numpy.typing import NDArray

from farflung.errors import CodecError
from farflung.wire.frames import Buffer

__all__ = ["MAX_PIECE", "expand", "shrink"]

#: The most bytes that a piece may have before it is coded.
MAX_PIECE = 4 << 20
_HEAD = struct.Struct("<BBB")
_VERSION, _ALONE, _AGAINST = 1, 0, 1
_LEVEL, _MAX_WINDOW = 1, 8 << 20
#: Elements that are looked at; bytes below which a piece is not worth the time.
_SAMPLE, _LEAST = 1 << 12, 512
#: Bits of entropy in a byte from which a plane is sent as it is; share of a piece's bits from which all of it is.
_RANDOM, _WORTH = 7.8, 0.97

#: Unsigned, of the element's width, little-endian.
Integers = NDArray[Any]


def shrink(raw: Buffer, width: int, base: Buffer | None = None) -> bytes | None:
    """The elements of ``raw`` (``width`` bytes each, at most ``MAX_PIECE`` bytes) coded; None: that would save next to nothing.

    ``base``: an older version, of the same size.

    Raises:
        CodecError: a size does not fit.
    """
    values = _turned(_integers(raw, width))
    against = None if base is None else _difference(values, _turned(_integers(base, width)))
    if values.nbytes < _LEAST:
        return None
    chosen, how, bits = values, _ALONE, _entropies(values)
    if against is not None and sum(found := _entropies(against)) < sum(bits):
        chosen, how, bits = against, _AGAINST, found
    if sum(bits) > _WORTH * 8 * width:
        return None
    compressor = zstandard.ZstdCompressor(level=_LEVEL, write_checksum=False)
    planes: list[bytes] = []
    for plane, entropy in zip(_planes(chosen), bits, strict=True):
        plain = plane.tobytes()
        coded = plain if entropy > _RANDOM else compressor.compress(plain)
        planes.append(min(plain, coded, key=len))
    lengths = struct.pack(f"<{width}I", *map(len, planes))
    coded = b"".join([_HEAD.pack(_VERSION, width, how), lengths, *planes])
    return coded if len(coded) < len(values) * width else None


def expand(coded: Buffer, nbytes: int, base: Buffer | None = None) -> memoryview:
    """The ``nbytes`` bytes that ``shrink`` was given, from what it gave and the same ``base``.

    Raises:
        CodecError: ``coded`` is damaged, does not hold ``nbytes`` bytes, or needs a base that is not here.
    """
    view = memoryview(coded).cast("B")
    if nbytes > MAX_PIECE or len(view) < _HEAD.size:
        raise CodecError(f"bad planes: {len(view)} bytes for {nbytes}; a piece has at most {MAX_PIECE}")
    version, width, how = _HEAD.unpack_from(view)
    if version != _VERSION or width not in (1, 2, 4, 8) or how not in (_ALONE, _AGAINST) or nbytes % width:
        raise CodecError(f"bad planes: version {version}, elements of {width} bytes, kind {how}, {nbytes} bytes together")
    count, start = nbytes // width, _HEAD.size + 4 * width
    if len(view) < start:
        raise CodecError("bad planes: cut off in the lengths")
    lengths = struct.unpack_from(f"<{width}I", view, _HEAD.size)
    if sum(lengths) != len(view) - start or any(length > count for length in lengths):
        raise CodecError("bad planes: their lengths do not fit")
    values = np.empty(count, f"<u{width}")
    planes = _planes(values)
    for plane, length in zip(planes, lengths, strict=True):
        part = view[start : start + length]
        start += length
        plane[:] = np.frombuffer(part if length == count else _decompressed(part, count), np.uint8)
    if how == _AGAINST:
        if base is None or memoryview(base).nbytes != nbytes:
            raise CodecError("bad planes: they are coded against an older version that is not here")
        values = _undone(values, _turned(_integers(base, width)))
    return memoryview(_straight(values).view(np.uint8).data)


def _decompressed(part: memoryview, count: int) -> bytes:
    try:
        told = zstandard.get_frame_parameters(part)
        if told.content_size != count or told.dict_id:  # it says how much memory will be taken
            raise CodecError(f"bad planes: one says that it holds {told.content_size} bytes, not {count}")
        return zstandard.ZstdDecompressor(max_window_size=_MAX_WINDOW).decompress(part, max_output_size=count)
    except zstandard.ZstdError as error:
        raise CodecError(f"bad planes: {error}") from None


def _integers(raw: Buffer, width: int) -> Integers:
    nbytes = memoryview(raw).nbytes
    if width not in (1, 2, 4, 8) or nbytes % width or nbytes > MAX_PIECE:
        raise CodecError(f"cannot code {nbytes} bytes as elements of {width}; a piece has at most {MAX_PIECE} bytes")
    return np.frombuffer(raw, f"<u{width}") if nbytes else np.empty(0, f"<u{width}")


def _turned(values: Integers) -> Integers:
    """The sign bit in the lowest place."""
    turned: Integers = (values << 1) | (values >> (8 * values.itemsize - 1))
    return turned


def _straight(values: Integers) -> Integers:
    straight: Integers = (values >> 1) | (values << (8 * values.itemsize - 1))
    return straight


def _difference(values: Integers, base: Integers) -> Integers:
    """``values - base`` as 0, -1, 1, -2, 2, ...

    Raises:
        CodecError: ``base`` has another size.
    """
    if values.shape != base.shape:
        raise CodecError(f"the older version has {base.nbytes} bytes, not {values.nbytes}")
    away = values - base
    folded: Integers = (away << 1) ^ np.negative(away >> (8 * away.itemsize - 1))
    return folded


def _undone(coded: Integers, base: Integers) -> Integers:
    away: Integers = (coded >> 1) ^ np.negative(coded & 1)
    return away + base


def _planes(values: Integers) -> list[NDArray[np.uint8]]:
    """Views of the bytes of each rank, the lowest first."""
    flat = values.view(np.uint8)
    return [flat[rank :: values.itemsize] for rank in range(values.itemsize)]


def _entropies(values: Integers) -> list[float]:
    """Bits in a byte of each plane, by a sample."""
    sample = np.ascontiguousarray(values[:: max(1, len(values) // _SAMPLE)])
    found = []
    for plane in _planes(sample):
        counts = np.bincount(plane, minlength=256)
        shares = counts[counts > 0] / max(1, len(plane))
        found.append(float(-(shares * np.log2(shares)).sum()))
    return found
