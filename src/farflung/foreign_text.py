"""Text of others (names, descriptions, generated text) on this terminal."""

from __future__ import annotations

__all__ = ["printable"]


def printable(text: str) -> str:
    """Return ``text`` without the characters that control a terminal (a model may write any byte). Line ends stay."""
    return "".join(sign if sign.isprintable() or sign == "\n" else "\N{REPLACEMENT CHARACTER}" for sign in text.expandtabs(4))
