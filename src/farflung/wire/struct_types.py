"""Types of msgspec that several threads use.

msgspec describes a type when it is first used. Until the description is complete, another thread that uses the type reads a null
pointer, and the process dies (msgspec 0.22). So a type that is not described while a module is imported goes through ``prepare``.
"""

from __future__ import annotations

import threading
from typing import Any

import msgspec

__all__ = ["prepare"]

#: Held while a type is described.
_describing = threading.Lock()
_described = set[Any]()


def prepare(kind: Any) -> None:
    """Let msgspec describe ``kind`` and the types of its fields, once, in one thread at a time."""
    if kind not in _described:
        with _describing:
            msgspec.msgpack.Decoder(kind)
            _described.add(kind)
