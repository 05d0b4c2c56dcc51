"""Text of others (names, descriptions, generated text) on this terminal."""

from __future__ import annotations

import re

__all__ = ["printable", "shown"]

_ADDRESS = re.compile(r"( object)? at 0x[0-9a-f]+")


def printable(text: str) -> str:
    """Return ``text`` without the characters that control a terminal (a model may write any byte). Line ends stay."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text.expandtabs(4))


def shown(value: object) -> str:
    """Return ``repr(value)`` in one line of at most 80 characters, without addresses: of most objects only the type is left."""
    return " ".join(_ADDRESS.sub("", repr(value)).split())[:80]
