"""Relays as fields of headers: which relays reach a peer, which pairs a member relays for, what it carried."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from farflung.errors import WireError
from farflung.messages.fields import table

__all__ = ["read_carried", "read_pairs", "read_relays", "write_relays"]

_MAX_PAIRS, _MAX_RELAYS, _MAX_NAME = 10_000, 8, 300


def write_relays(relays: Mapping[str, Sequence[tuple[str, str]]]) -> dict[str, Any]:
    """Peer -> (relay, address), as a header's field."""
    return {peer: [list(entry) for entry in entries] for peer, entries in relays.items()}


def read_relays(header: Mapping[str, Any]) -> dict[str, list[tuple[str, str]]]:
    """The relays of a header (it may have none): peer -> names and addresses.

    Raises:
        WireError: they are malformed.
    """
    found: dict[str, list[tuple[str, str]]] = {}
    for peer, entries in (table(header, "relays") if "relays" in header else {}).items():
        if not isinstance(entries, list) or len(entries) > _MAX_RELAYS:
            raise WireError(f"bad message: the relays to {peer!r:.60} must be a short list")
        found[peer] = [_two(entry) for entry in entries]
    return found


def read_pairs(header: Mapping[str, Any]) -> list[tuple[str, str]]:
    """The pairs that a member shall relay for.

    Raises:
        WireError: they are malformed.
    """
    pairs = header.get("pairs")
    if not isinstance(pairs, list) or len(pairs) > _MAX_PAIRS:
        raise WireError("bad message: pairs must be a list")
    return [_two(pair) for pair in pairs]


def _two(value: object) -> tuple[str, str]:
    if not isinstance(value, list) or len(value) != 2 or not all(isinstance(one, str) and len(one) <= _MAX_NAME for one in value):
        raise WireError(f"bad message: two texts belong where {value!r:.60} is")
    return value[0], value[1]


def read_carried(header: Mapping[str, Any]) -> list[tuple[str, str, int]]:
    """Read what a relay carried: (source, target, bytes).

    Raises:
        WireError: it is malformed.
    """
    entries = header.get("carried")
    if not isinstance(entries, list) or len(entries) > 2 * _MAX_PAIRS:
        raise WireError("bad message: what was carried must be a list")
    found = []
    for entry in entries:
        if not isinstance(entry, list) or len(entry) != 3 or type(entry[2]) is not int or entry[2] < 0:
            raise WireError(f"bad message: two names and a number of bytes belong where {entry!r:.60} is")
        found.append((*_two(entry[:2]), entry[2]))
    return found
