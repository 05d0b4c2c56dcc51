"""Fuzzing of every decoder: damaged payloads in, ``CodecError`` or an array of the declared type and shape out.

An input is a payload of a random codec and array, damaged in one to four places: fields, shape, element type, sections
(flipped, cut, extended, exchanged with another payload's), or bytes of the frame, whose checksums are then made right again,
because a hostile sender can do that too. What is held against each: no warning and no other exception than ``CodecError`` and
``VersionError``, one line of text, no more time than ``MAX_SECONDS`` and no more memory than ``MEMORY_FACTOR`` times what
payload and declared array take. The same seed gives the same inputs.
"""

from __future__ import annotations

import struct
import tracemalloc
import warnings
import zlib
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from farflung.clock import Clock, MonotonicClock
from farflung.codecs import CODECS, Payload, decode_payload, get_codec
from farflung.codecs.base import Array
from farflung.errors import CodecError, VersionError
from farflung.wire.arrays import DTYPES

__all__ = ["LIMIT", "MAX_SECONDS", "MEMORY_FACTOR", "Findings", "fuzz_decoders", "fuzz_one", "summary"]

#: The most bytes that a fuzzed payload may decode to.
LIMIT = 1 << 22
MAX_SECONDS = 5.0
MEMORY_FACTOR = 40
_MEMORY_FLOOR = 1 << 20
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
_INTEGERS = (
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
_OTHERS: tuple[Any, ...] = (
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


@dataclass(slots=True)
class Findings:
    """What a fuzzing found: inputs, how they ended, and the first faults in words (none is what one wants)."""

    inputs: int = 0
    outcomes: Counter[str] = field(default_factory=Counter)
    faults: list[str] = field(default_factory=list)
    slowest_seconds: float = 0.0
    most_memory_factor: float = 0.0


def fuzz_decoders(inputs: int, seed: int = 0, clock: Clock | None = None, until: float = float("inf")) -> Findings:
    """Decode ``inputs`` damaged payloads, or as many as can be begun before ``until`` on ``clock``."""
    clock, findings = clock or MonotonicClock(), Findings()
    started = tracemalloc.is_tracing()
    if not started:
        tracemalloc.start()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for number in range(inputs):
                if clock.now() >= until or len(findings.faults) >= 20:
                    break
                fuzz_one(seed, number, findings, clock)
    finally:
        if not started:
            tracemalloc.stop()
    return findings


def fuzz_one(seed: int, number: int, findings: Findings, clock: Clock) -> None:
    """Input ``number`` of ``seed``: make it, decode it, and add what happened to ``findings``."""
    generator = np.random.default_rng([seed, number])
    data = _input(generator)
    tracemalloc.reset_peak()
    before, begin = tracemalloc.get_traced_memory()[0], clock.now()
    outcome, declared = _decode(data)
    spent = clock.now() - begin
    used = tracemalloc.get_traced_memory()[1] - before
    factor = (used - _MEMORY_FLOOR) / (len(data) + declared + 1)
    if factor > MEMORY_FACTOR:  # a table of the interpreter may have grown just now; what a payload takes, it takes each time
        tracemalloc.reset_peak()
        before = tracemalloc.get_traced_memory()[0]
        _decode(data)
        used = min(used, tracemalloc.get_traced_memory()[1] - before)
        factor = (used - _MEMORY_FLOOR) / (len(data) + declared + 1)
    if spent > MAX_SECONDS:
        outcome = f"fault: took {spent:.1f} s"
    elif factor > MEMORY_FACTOR:
        outcome = f"fault: took {used} bytes for a payload of {len(data)} that declares {declared}"
    findings.inputs += 1
    findings.outcomes[outcome.partition(":")[0]] += 1
    findings.slowest_seconds = max(findings.slowest_seconds, spent)
    findings.most_memory_factor = max(findings.most_memory_factor, factor)
    if outcome.startswith("fault"):
        findings.faults.append(f"seed {seed}, input {number}: {outcome}")


def _decode(data: bytes) -> tuple[str, int]:
    """(how it ended, bytes of the array that the payload declares)."""
    declared = 0
    try:
        payload = Payload.from_bytes(data, LIMIT)
        declared = payload.numel * DTYPES[payload.dtype].itemsize
        result = decode_payload(payload)
    except (CodecError, VersionError) as error:
        return ("refused" if len(str(error).splitlines()) == 1 else f"fault: an error of several lines {error!r:.200}"), declared
    except Exception as error:  # noqa: BLE001 - finding what else can be raised is the purpose
        return f"fault: {type(error).__name__}: {error!s:.200}", declared
    if (result.dtype, result.shape) != (DTYPES[payload.dtype], payload.shape):
        return f"fault: declared {payload.dtype} {payload.shape}, got {result.dtype} {result.shape}", declared
    return "decoded", declared


def _input(generator: np.random.Generator) -> bytes:
    payload = _payload(generator)
    for _ in range(int(generator.integers(1, 5))):
        damage = _DAMAGES[int(generator.integers(len(_DAMAGES)))]
        payload = damage(payload, generator)
    data = payload.to_bytes()
    return _resealed(data, generator) if generator.random() < 0.2 else data


def _payload(generator: np.random.Generator) -> Payload:
    names = [*((name, {}) for name in CODECS), *_VARIANTS]
    name, params = names[int(generator.integers(len(names)))]
    return get_codec(name, **params).encode(_array(generator))


def _array(generator: np.random.Generator) -> Array:
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
        fields[name] = _INTEGERS[int(generator.integers(len(_INTEGERS)))]
    else:
        fields[name] = _OTHERS[int(generator.integers(len(_OTHERS)))]
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
        other = _payload(generator).sections
        sections[place] = other[int(generator.integers(len(other)))]
    elif kind < 0.25:
        sections.reverse()
    else:
        sections[place] = _bent(bytes(sections[place]), generator)
    return replace(payload, sections=tuple(sections))


def _bent(data: bytes, generator: np.random.Generator) -> bytes:
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


def _resealed(data: bytes, generator: np.random.Generator) -> bytes:
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


def summary(findings: Findings) -> Mapping[str, Any]:
    """As plain values for JSON."""
    return {
        "inputs": findings.inputs,
        "outcomes": dict(sorted(findings.outcomes.items())),
        "faults": list(findings.faults),
        "slowest_seconds": findings.slowest_seconds,
        "most_memory_factor": findings.most_memory_factor,
    }
