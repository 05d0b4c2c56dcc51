"""An event that a signal handler may set."""

from __future__ import annotations

import signal
import sys
import threading
from collections.abc import Iterator

import pytest

from farflung.signal_event import SignalEvent
from farflung.thread_group import ThreadGroup


@pytest.fixture
def user_signal() -> Iterator[None]:
    before = signal.getsignal(signal.SIGUSR1)
    yield
    sys.settrace(None)
    signal.signal(signal.SIGUSR1, before)


def test_a_wait_ends_when_it_is_set() -> None:
    event, threads = SignalEvent(), ThreadGroup()
    assert not event.wait(0.0)
    assert not event.is_set()
    found: list[bool] = []
    for name in ("a", "b"):
        threads.spawn(name, lambda: found.append(event.wait(60.0)))
    event.set()
    threads.join(60.0)
    assert found == [True, True]
    assert event.is_set()
    assert event.wait(0.0)


@pytest.mark.usefixtures("user_signal")
@pytest.mark.parametrize("moment", range(1, 12))
def test_a_signal_at_any_line_of_a_wait_sets_it(moment: int) -> None:
    """The signal comes before the given line that a wait runs. ``threading.Event`` waits for itself at some of them."""
    event, lines, sent = SignalEvent(), 0, threading.get_ident()
    signal.signal(signal.SIGUSR1, lambda *_: event.set())

    def trace(frame: object, what: str, _: object) -> object:
        nonlocal lines
        lines += what == "line"
        if lines == moment and not event.is_set():
            signal.pthread_kill(sent, signal.SIGUSR1)
        return trace

    sys.settrace(trace)
    while not event.wait(0.001):
        pass
    sys.settrace(None)
    assert event.is_set()
