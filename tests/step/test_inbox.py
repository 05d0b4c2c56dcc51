"""The inbox: keys, bounds, waiting, and how everybody who waits is woken."""

from __future__ import annotations

import threading

import pytest

from farflung.errors import TrainingError, WireError
from farflung.step.inbox import Inbox
from tests.support.network.futures import PATIENCE, later


def test_take_waits_for_its_own_key() -> None:
    box = Inbox()
    taken = later(lambda: box.take(("value", 1)))
    box.put(("value", 2), "other")
    assert not taken.done()
    box.put(("value", 1), "mine")
    assert taken.result(PATIENCE) == "mine"
    assert len(box) == 1
    assert box.holds([("value", 2)])
    assert not box.holds([("value", 2), ("value", 1)])


def test_a_mailbox_takes_no_more_keys_than_the_run_can_have() -> None:
    box = Inbox(limit=2)
    box.put("a", 1)
    box.put("b", 2)
    box.put("a", 3)
    with pytest.raises(WireError, match="2 values wait already, more than this run can have: 'c' is refused"):
        box.put("c", 4)
    assert box.take("a") == 3
    box.put("c", 4)


def test_a_repeated_item_replaces_the_first() -> None:
    box = Inbox()
    box.put("k", 1)
    box.put("k", 2)
    assert (box.take("k"), len(box)) == (2, 0)


def test_abort_wakes_everybody_with_the_first_error() -> None:
    box = Inbox()
    waiting = [later(lambda: box.take("never")), later(lambda: box.wait_until(lambda: box.holds(["never"])))]
    box.abort(TrainingError("first"))
    box.abort(TrainingError("second"))
    for one in waiting:
        with pytest.raises(TrainingError, match="first"):
            one.result(PATIENCE)
    with pytest.raises(TrainingError, match="first"):
        box.take("k")
    assert str(box.error) == "first"


def test_poke_makes_waiters_look_again() -> None:
    box, seen, looked = Inbox(), [False], threading.Event()

    def ready() -> bool:
        looked.set()
        return seen[0]

    waiting = later(lambda: box.wait_until(ready))
    assert looked.wait(PATIENCE)
    seen[0] = True
    box.poke()
    assert waiting.result(PATIENCE) is None


def test_whoever_asks_hears_for_what_the_compute_thread_waits() -> None:
    inbox, waiting = Inbox(), threading.Event()

    def awaits() -> tuple[str, ...]:
        return ("here", "there")

    def ready() -> bool:
        waiting.set()
        return len(inbox) == 2

    assert inbox.awaited()[0] == []
    inbox.put("here", 1)
    thread = threading.Thread(target=inbox.wait_until, args=(ready, None, awaits))
    thread.start()
    waiting.wait()
    assert inbox.awaited()[0] == ["there"]
    inbox.put("there", 2)
    thread.join()
    assert inbox.awaited()[0] == []
