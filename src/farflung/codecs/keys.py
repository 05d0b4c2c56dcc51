"""Random numbers of codecs: keyed by a seed and a counter, never drawn from a state, the same on every machine.

Word i of a seed is SplitMix64's output for the state ``seed + (i + 1) * 0x9E3779B97F4A7C15`` (all modulo 2^64):
``z = (z ^ z >> 30) * 0xBF58476D1CE4E5B9; z = (z ^ z >> 27) * 0x94D049BB133111EB; z = z ^ z >> 31``.
G. L. Steele, D. Lea, C. H. Flood, "Fast splittable pseudorandom number generators", 2014. Being a function of a counter, it
can be computed for any part of an array alone, in any language, on any device. Cost: eight passes over blocks in cache.

A codec that draws has the field ``seed``. The same codec gives the same bytes for the same array; ``keyed(codec, step,
micro_batch, name)`` gives the codec of one message, so that no two messages share their numbers.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import fields, is_dataclass, replace
from hashlib import blake2b
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

from farflung.errors import InputError

__all__ = ["MAX_SEED", "check_seed", "derive", "fractions", "keyed", "signs", "words"]

C = TypeVar("C")
Words = NDArray[np.uint64]
MAX_SEED = (1 << 63) - 1
_GAMMA = 0x9E3779B97F4A7C15
_BLOCK = 1 << 14
_MASK = (1 << 64) - 1


def words(seed: int, start: int, count: int) -> Words:
    """Words ``start`` to ``start + count - 1`` of ``seed``."""
    result = np.empty(count, np.uint64)
    for first in range(0, count, _BLOCK):
        _fill(result[first : first + _BLOCK], seed, start + first)
    return result


def fractions(seed: int, count: int, block: int) -> Iterator[NDArray[np.float32]]:
    """``count`` numbers in [0, 1), in runs of ``block`` (a multiple of 4): number i is the 16 bits from bit 16 (i mod 4) of word
    i // 4, divided by 2^16."""
    for first in range(0, count, block):
        size = min(block, count - first)
        parts = words(seed, first // 4, -(-size // 4)).astype("<u8", copy=False).view("<u2")[:size]
        yield parts * np.float32(2.0**-16)


def signs(seed: int, count: int) -> NDArray[np.int8]:
    """``count`` numbers that are 1 or -1: bit j mod 64 of word j // 64 of the seed, 1 is minus."""
    bits = np.unpackbits(words(seed, 0, -(-count // 64)).astype("<u8", copy=False).view(np.uint8), bitorder="little")[:count]
    found: NDArray[np.int8] = 1 - 2 * bits.astype(np.int8)
    return found


def derive(seed: int, *key: int | str) -> int:
    """The seed of one message: the first 63 bits of BLAKE2b over the decimal and text parts."""
    text = "\0".join([str(seed), *map(str, key)])
    return int.from_bytes(blake2b(text.encode(), digest_size=8).digest(), "little") & MAX_SEED


def keyed(codec: C, *key: int | str) -> C:
    """``codec`` for the message called ``key``; codecs that draw no random numbers stay as they are."""
    if not is_dataclass(codec) or isinstance(codec, type) or all(item.name != "seed" for item in fields(codec)):
        return codec
    return cast(C, replace(cast(Any, codec), seed=derive(cast(Any, codec).seed, *key)))


def check_seed(name: str, seed: object) -> None:
    """Check the parameter ``seed`` of codec ``name``.

    Raises:
        InputError: it is no integer from 0 to 2^63 - 1.
    """
    if type(seed) is not int or not 0 <= seed <= MAX_SEED:
        raise InputError(f"codec {name!r} needs a seed from 0 to 2^63 - 1, got {seed!r}")


def _fill(out: Words, seed: int, start: int) -> None:
    z = out
    z[:] = np.arange(z.size, dtype=np.uint64)
    z *= np.uint64(_GAMMA)
    z += np.uint64((seed + (start + 1) * _GAMMA) & _MASK)
    scratch = z >> np.uint64(30)
    z ^= scratch
    z *= np.uint64(0xBF58476D1CE4E5B9)
    np.right_shift(z, np.uint64(27), out=scratch)
    z ^= scratch
    z *= np.uint64(0x94D049BB133111EB)
    np.right_shift(z, np.uint64(31), out=scratch)
    z ^= scratch
