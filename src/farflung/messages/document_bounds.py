"""Bounds of the documents of a submitted job, which hold before anything parses them.

A short text can cost a parser much: 58 kB of compressed empty lists become 60 MB of text and more than a gigabyte of objects. So
four figures are bounded: bytes, the expansion of a compressed document, items, and depth. Bytes that only might be an item count
as one, which costs time per byte and no memory.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from farflung.errors import WireError

__all__ = ["BOUNDS", "DocumentBounds", "check_depth", "count_items"]

_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
_OPEN = np.array([1 if byte in b"[{" else -1 for byte in range(256)], dtype=np.int8)


@dataclass(frozen=True, slots=True, kw_only=True)
class DocumentBounds:
    """What all documents of a job may take together.

    ``expansion``: bytes of a document for each compressed byte, beyond the first ``free`` bytes. Documents with ``small_items``
    items and ``small_bytes`` bytes cost little.
    """

    bytes: int = 256 << 20
    items: int = 4_000_000
    depth: int = 64
    expansion: int = 100
    free: int = 32 << 20
    small_items: int = 200_000
    small_bytes: int = 4 << 20

    def unpacked(self, packed: int, left: int) -> int:
        """Return how many bytes a document of ``packed`` compressed bytes may have if ``left`` bytes are left for all."""
        return min(left, max(self.free, self.expansion * packed))


BOUNDS = DocumentBounds()


def count_items(bodies: Iterable[bytes], bounds: DocumentBounds = BOUNDS) -> int:
    """Return how many items the JSON texts ``bodies`` have together, at most.

    Raises:
        WireError: they are more than ``bounds`` allow.
    """
    items = sum(body.count(b",") + body.count(b"[") + body.count(b"{") for body in bodies)
    if items > bounds.items:
        raise WireError(f"the documents of a job have {items} items: at most {bounds.items} are read; submit a smaller graph")
    return items


def check_depth(name: str, body: bytes, bounds: DocumentBounds = BOUNDS) -> None:
    """See that the JSON text ``body`` of the document ``name`` is not nested too deeply.

    Raises:
        WireError: it is.
    """
    brackets = np.frombuffer(body.translate(None, _NOT_BRACKETS), np.uint8)
    if brackets.size and int(np.cumsum(_OPEN[brackets], dtype=np.int64).max()) > bounds.depth:
        raise WireError(f"the document {name!r:.60} of a job is nested deeper than {bounds.depth} levels")
