"""Waiting for what transports do a moment after a test has heard of it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from farflung.transports import Endpoint
from farflung.transports.meter import Meter

PATIENCE = 60.0


def until(holds: Callable[[], object], patience: float = PATIENCE) -> None:
    """Wait until ``holds`` says so: for what other threads or processes do at their own pace, and nobody tells."""
    end, pause = time.monotonic() + patience, threading.Event()
    while not holds():
        assert time.monotonic() < end, "what was waited for has not come"
        pause.wait(0.005)


@contextmanager
def nobody() -> Iterator[str]:
    """An address at which nobody listens, and at which nobody else on this machine can begin to."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def settled(endpoint: Endpoint) -> None:
    """Wait until every frame that was sent is counted: a future wakes who waits for it first, and is counted then."""
    inner = getattr(endpoint, "_inner", endpoint)
    meters: list[Meter] = [one.meter for one in {id(endpoint): endpoint, id(inner): inner}.values()]
    until(lambda: all(meter.idle for meter in meters))
