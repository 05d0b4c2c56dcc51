"""Reading the header fields of frames that peers sent: a wrong one is a ``WireError``, never a ``KeyError``."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from farflung.errors import WireError

__all__ = ["number", "table", "text", "texts", "whole"]

Header = Mapping[str, Any]

_MAX_TEXT = 4000
_MAX_WHOLE = 2**53


def text(header: Header, key: str, *, limit: int = _MAX_TEXT) -> str:
    """The text under ``key``, of at most ``limit`` signs.

    Raises:
        WireError: it is missing, no text, or too long.
    """
    value = header.get(key)
    if not isinstance(value, str) or len(value) > limit:
        raise WireError(f"bad message: {key!r} must be a text of at most {limit} signs, got {value!r:.60}")
    return value


def whole(header: Header, key: str, *, low: int = 0, high: int = _MAX_WHOLE) -> int:
    """The whole number under ``key``, from ``low`` to ``high``.

    Raises:
        WireError: it is missing, not whole, or out of range.
    """
    value = header.get(key)
    if type(value) is not int or not low <= value <= high:
        raise WireError(f"bad message: {key!r} must be a whole number from {low} to {high}, got {value!r:.60}")
    return value


def number(header: Header, key: str, *, low: float = -math.inf) -> float:
    """The number under ``key``, at least ``low`` (where ``low`` is finite, the number must be, too).

    Raises:
        WireError: it is missing, no number, or out of range.
    """
    value = header.get(key)
    if not isinstance(value, (int, float)) or isinstance(value, bool) or (math.isfinite(low) and not low <= value < math.inf):
        least = f", at least {low:g}" if math.isfinite(low) else ""
        raise WireError(f"bad message: {key!r} must be a number{least}, got {value!r:.60}")
    return float(value)


def texts(header: Header, key: str) -> list[str]:
    """The list of texts under ``key``.

    Raises:
        WireError: it is missing, or something else.
    """
    value = header.get(key)
    if not isinstance(value, list) or not all(isinstance(item, str) and len(item) <= _MAX_TEXT for item in value):
        raise WireError(f"bad message: {key!r} must be a list of texts, got {value!r:.60}")
    return value


def table(header: Header, key: str) -> dict[str, Any]:
    """The map under ``key`` (an empty one if there is none).

    Raises:
        WireError: it is something else.
    """
    value = header.get(key, {})
    if not isinstance(value, dict):
        raise WireError(f"bad message: {key!r} must be a map, got {value!r:.60}")
    return value
