"""What watchers of a run receive, as frames, whose kinds and headers tests compare."""

from __future__ import annotations

from collections.abc import Iterator

from farflung.client.connection import Client
from farflung.messages.wire_form import encode
from farflung.wire.frames import Frame

__all__ = ["watched"]


def watched(client: Client, run: str) -> Iterator[Frame]:
    """Return the frames of ``client.watch(run)``."""
    return map(encode, client.watch(run))
