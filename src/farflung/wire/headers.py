"""Headers as msgpack, read strictly: the structure is walked before the library builds anything.

A hostile msgpack text can declare nested lists of billions of items in a few bytes, and the library takes their memory at
the declaration. The walk refuses that: the items declared in all must fit the bytes that are there. It also refuses
extension types, and nesting deeper than the limit.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgpack  # type: ignore[import-untyped]

from farflung.errors import WireError

__all__ = ["pack_value", "unpack_value"]

#: type byte -> (bytes of a length that follows, bytes or items known from the type byte, items per entry: 0 for a scalar)
_LAYOUT: dict[int, tuple[int, int, int]] = (
    dict.fromkeys([*range(0x80), *range(0xE0, 0x100), 0xC0, 0xC2, 0xC3], (0, 0, 0))
    | {0x80 + n: (0, n, 2) for n in range(16)}
    | {0x90 + n: (0, n, 1) for n in range(16)}
    | {0xA0 + n: (0, n, 0) for n in range(32)}
    | {0xC4: (1, 0, 0), 0xC5: (2, 0, 0), 0xC6: (4, 0, 0), 0xD9: (1, 0, 0), 0xDA: (2, 0, 0), 0xDB: (4, 0, 0)}
    | {0xCA: (0, 4, 0), 0xCB: (0, 8, 0)}
    | {0xCC + n: (0, 1 << n, 0) for n in range(4)}
    | {0xD0 + n: (0, 1 << n, 0) for n in range(4)}
    | {0xDC: (2, 0, 1), 0xDD: (4, 0, 1), 0xDE: (2, 0, 2), 0xDF: (4, 0, 2)}
)


def pack_value(value: object) -> bytes:
    """``value`` (str, int of 64 bits, float, bool, None, bytes, lists or tuples, maps with str keys) as msgpack.

    Raises:
        WireError: something inside has another type, or an integer needs more than 64 bits.
    """
    _check_plain(value, "header")
    try:
        packed = msgpack.packb(value)
    except (ValueError, OverflowError) as error:
        raise WireError(f"cannot write a header: {error}") from None
    return bytes(packed)


def unpack_value(data: memoryview | bytes, max_depth: int, max_items: int = 1 << 20) -> Any:
    """Read what ``pack_value`` wrote (tuples come back as lists).

    Raises:
        WireError: ``data`` is not exactly one value of the allowed types, nests deeper than ``max_depth``, or has more than
            ``max_items`` items.
    """
    _walk(data, max_depth, max_items)
    try:
        return msgpack.unpackb(data, raw=False, strict_map_key=True, object_pairs_hook=_pairs)
    except ValueError as error:
        raise WireError(f"cannot read a header: {type(error).__name__} {error}".rstrip()) from None


def _check_plain(value: object, where: str) -> None:
    if value is None or type(value) in (str, int, float, bool, bytes):
        return
    if type(value) in (list, tuple):
        for index, item in enumerate(value):  # type: ignore[arg-type, var-annotated]
            _check_plain(item, f"{where}[{index}]")
    elif isinstance(value, dict):
        for key, item in value.items():
            if type(key) is not str:
                raise WireError(f"cannot write {where}: its key {key!r} must be a text")
            _check_plain(item, f"{where}[{key!r}]")
    else:
        raise WireError(
            f"cannot write {where}: {type(value).__name__} is not a plain value "
            "(text, int, float, bool, None, bytes, list or map); convert it, or send it as a section"
        )


def _pairs(pairs: Iterable[tuple[object, object]]) -> dict[str, object]:
    result: dict[str, object] = {}
    for key, value in pairs:
        if not isinstance(key, str):
            raise ValueError(f"map key {key!r} is not a text")
        if key in result:
            raise ValueError(f"map key {key!r} stands twice")
        result[key] = value
    return result


def _walk(data: memoryview | bytes, max_depth: int, max_items: int) -> None:
    """Check nesting, sizes and types of one msgpack value that must fill ``data``; costs time per item, no memory."""
    end, position, declared = len(data), 0, 1
    most = min(end, max_items)
    open_counts = [1]
    while open_counts:
        if open_counts[-1] == 0:
            open_counts.pop()
            continue
        open_counts[-1] -= 1
        if position >= end:
            raise WireError(f"truncated header: it ends after {end} bytes inside a value")
        layout = _LAYOUT.get(data[position])
        if layout is None:
            raise WireError(f"bad header: type byte 0x{data[position]:02x} at {position} is not allowed")
        width, size, entries = layout
        position += 1
        if width:
            size = int.from_bytes(data[position : position + width], "big")
            position += width
        if entries:
            declared += size * entries
            open_counts.append(size * entries)
        else:
            position += size
        if position > end or declared > most:
            raise WireError(
                f"bad header: it has more than {max_items} items"
                if position <= end and declared <= end
                else f"truncated header: a length at {position} says more than the {end} bytes that are there"
            )
        if len(open_counts) - 1 > max_depth:
            raise WireError(f"bad header: nested deeper than {max_depth} levels")
    if position != end:
        raise WireError(f"bad header: {end - position} bytes follow its end")
