"""Damage to payloads, fields and bytes, as a hostile sender may do it; a generator decides what and where (``fuzz``)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

from farflung.codecs import CODECS, Payload, get_codec
from farflung.codecs.base import Array
from farflung.wire.arrays import DTYPES

__all__ = ["INTEGERS", "OTHERS", "bent", "damaged", "hurt", "resealed", "some_array", "some_payload"]

_VARIANTS: tuple[tuple[str, dict[str, Any]], ...] = (
    ("topk", {"ratio": 10}),
    ("topk", {"ratio": 50, "values": "float16"}),
    ("topk", {"ratio": 10, "values": "int8"}),
    ("topk", {"ratio": 20, "format": "paper"}),
    ("topk", {"ratio": 20, "format": "paper", "values": "int4"}),
    ("randomk", {"ratio": 10, "values": "int4"}),
    ("quantized", {"bits": 3, "rotate": True, "block": 64}),
    ("quantized", {"bits": 1, "block": 16}),
    ("int4", {"rotate": True, "block": "row"}),
    ("lowrank", {"rank": 2}),
    ("lowrank", {"rank": 3, "values": "int4"}),
)
INTEGERS = (
    -1,
    0,
    1,
    2,
    3,
    7,
    8,
    63,
    64,
    255,
    256,
    4096,
    1 << 16,
    1 << 20,
    (1 << 31) - 1,
    1 << 31,
    1 << 40,
    (1 << 63) - 1,
    -(1 << 63),
)
OTHERS: tuple[Any, ...] = (
    None,
    True,
    False,
    "",
    "float32",
    "float16",
    "bfloat16",
    "quantized",
    "bool",
    1.5,
    float("nan"),
    [],
    {},
    b"x",
)
_PRELUDE = struct.Struct("<4sBBHI")

Damage = Callable[[Payload, np.random.Generator], Payload]


def damaged(payload: Payload, generator: np.random.Generator) -> Payload:
    """``payload`` with one to four changes of fields, shape, element type, codec or sections."""
    for _ in range(int(generator.integers(1, 5))):
        payload = _DAMAGES[int(generator.integers(len(_DAMAGES)))](payload, generator)
    return payload


def hurt(value: Any, generator: np.random.Generator) -> Any:
    """``value`` (of lists, maps and plain values) with one value somewhere in it changed or lost."""
    if isinstance(value, dict) and value and generator.random() < 0.9:
        name = sorted(value)[int(generator.integers(len(value)))]
        if generator.random() < 0.1:
            return {key: item for key, item in value.items() if key != name}
        return {**value, name: hurt(value[name], generator)}
    if isinstance(value, list | tuple) and value and generator.random() < 0.9:
        place = int(generator.integers(len(value)))
        return [*value[:place], hurt(value[place], generator), *value[place + 1 :]]
    if type(value) is int and generator.random() < 0.4:
        return max(-(1 << 63), min((1 << 63) - 1, value + int(generator.integers(-3, 4))))
    table = INTEGERS if generator.random() < 0.6 else OTHERS
    return table[int(generator.integers(len(table)))]


def some_payload(generator: np.random.Generator) -> Payload:
    """A payload of a random codec and array."""
    names = [*((name, {}) for name in CODECS), *_VARIANTS]
    name, params = names[int(generator.integers(len(names)))]
    return get_codec(name, **params).encode(some_array(generator))


def some_array(generator: np.random.Generator) -> Array:
    """An array of a random shape and element type, of heavy-tailed numbers, now and then with a NaN."""
    shapes = ((700,), (40, 30), (3, 5, 64), (4096,), (1,), (), (0, 3), (20_000,))
    dtypes = [*DTYPES, "float32", "float32", "float16"]
    shape = shapes[int(generator.integers(len(shapes)))]
    array: Array = (generator.standard_t(3, shape) * 10 if shape else np.array(generator.normal())).astype(
        DTYPES[dtypes[int(generator.integers(len(dtypes)))]]
    )
    if array.size and array.dtype.kind == "f" and generator.random() < 0.2:
        array.reshape(-1)[:1] = np.nan
    return array


def _change_field(payload: Payload, generator: np.random.Generator) -> Payload:
    fields = dict(payload.fields)
    if not fields or generator.random() < 0.05:
        return replace(payload, fields={**fields, "more": 1})
    name = sorted(fields)[int(generator.integers(len(fields)))]
    kind, value = generator.random(), fields[name]
    if kind < 0.1:
        del fields[name]
    elif kind < 0.4 and type(value) is int:
        fields[name] = max(-(1 << 63), min((1 << 63) - 1, value + int(generator.integers(-3, 4))))
    elif kind < 0.7:
        fields[name] = INTEGERS[int(generator.integers(len(INTEGERS)))]
    else:
        fields[name] = OTHERS[int(generator.integers(len(OTHERS)))]
    return replace(payload, fields=fields)


def _change_shape(payload: Payload, generator: np.random.Generator) -> Payload:
    sizes = (0, 1, 2, 63, 64, 699, 700, 701, 4096, 1 << 16, 1 << 20, 1 << 40)
    shape = list(payload.shape) or [1]
    place = int(generator.integers(len(shape)))
    if generator.random() < 0.5:
        shape[place] = sizes[int(generator.integers(len(sizes)))]
    else:
        shape[place] = max(0, shape[place] + int(generator.integers(-2, 3)))
    return replace(payload, shape=tuple(shape))


def _change_dtype(payload: Payload, generator: np.random.Generator) -> Payload:
    return replace(payload, dtype=list(DTYPES)[int(generator.integers(len(DTYPES)))])


def _change_codec(payload: Payload, generator: np.random.Generator) -> Payload:
    names = list(CODECS)
    return replace(payload, codec=names[int(generator.integers(len(names)))])


def _change_sections(payload: Payload, generator: np.random.Generator) -> Payload:
    sections = list(payload.sections)
    kind = generator.random()
    if not sections or kind < 0.05:
        return replace(payload, sections=(*sections, bytes(3))[:8])
    place = int(generator.integers(len(sections)))
    if kind < 0.1:
        del sections[place]
    elif kind < 0.2:
        other = some_payload(generator).sections
        sections[place] = other[int(generator.integers(len(other)))]
    elif kind < 0.25:
        sections.reverse()
    else:
        sections[place] = bent(bytes(sections[place]), generator)
    return replace(payload, sections=tuple(sections))


def bent(data: bytes, generator: np.random.Generator) -> bytes:
    """``data`` extended, cut, overwritten, or with bits flipped."""
    kind = int(generator.integers(5))
    if kind == 0 or not data:
        return data + generator.bytes(int(generator.integers(1, 9)))
    if kind == 1:
        return data[: int(generator.integers(len(data)))]
    if kind == 2:
        return (b"\x00" if generator.random() < 0.5 else b"\xff") * len(data)
    if kind == 3:
        return generator.bytes(len(data))
    changed = bytearray(data)
    for _ in range(int(generator.integers(1, 6))):
        changed[int(generator.integers(len(changed)))] ^= 1 << int(generator.integers(8))
    return bytes(changed)


def resealed(data: bytes, generator: np.random.Generator) -> bytes:
    """Flip bits of the header or the table, and make the checksum of both right again."""
    changed = bytearray(data)
    *_, sections, header = _PRELUDE.unpack_from(changed)
    first, last = _PRELUDE.size + 4, _PRELUDE.size + 4 + 12 * sections + header
    for _ in range(int(generator.integers(1, 4))):
        changed[int(generator.integers(first, last))] ^= 1 << int(generator.integers(8))
    crc = zlib.crc32(changed[first:last], zlib.crc32(changed[: _PRELUDE.size]))
    changed[_PRELUDE.size : first] = struct.pack("<I", crc)
    return bytes(changed)


_DAMAGES: tuple[Damage, ...] = (
    _change_field,
    _change_field,
    _change_field,
    _change_shape,
    _change_dtype,
    _change_codec,
    _change_sections,
    _change_sections,
    _change_sections,
)
