"""A group's threads end before their owner does."""

from __future__ import annotations

import threading

import pytest

from farflung.thread_group import ThreadGroup


def test_join_waits_for_all_threads() -> None:
    group, go, done = ThreadGroup(), threading.Event(), list[str]()

    def work(name: str) -> None:
        go.wait()
        done.append(name)

    for name in ("a", "b"):
        assert group.spawn(f"work-{name}", work, name).name == f"work-{name}"
    go.set()
    group.join()
    assert sorted(done) == ["a", "b"]


def test_join_takes_at_most_the_time_that_it_has() -> None:
    group, go = ThreadGroup(), threading.Event()
    thread = group.spawn("waits", go.wait)
    group.join(0.0)
    assert thread.is_alive()
    go.set()
    group.join()
    assert not thread.is_alive()


def test_a_thread_of_the_group_does_not_wait_for_itself() -> None:
    group, joined = ThreadGroup(), threading.Event()

    def close() -> None:
        group.join()
        joined.set()

    group.spawn("closes", close)
    group.join()
    assert joined.is_set()


def test_threads_that_a_thread_starts_are_joined_too() -> None:
    group, done = ThreadGroup(), list[str]()
    group.spawn("first", lambda: group.spawn("second", done.append, "second"))
    group.join()
    assert done == ["second"]


def test_a_thread_that_cannot_start_is_no_member(monkeypatch: pytest.MonkeyPatch) -> None:
    group = ThreadGroup()

    def refuse(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(RuntimeError, match="can't start new thread"):
        group.spawn("never", print)
    group.join()


def test_a_cancelled_thread_does_not_call() -> None:
    group, done = ThreadGroup(), list[str]()
    group.later(0.0, "soon", lambda: done.append("soon")).join()
    group.later(1e6, "much-later", lambda: done.append("much later"))
    group.cancel()
    group.join()
    assert done == ["soon"]


def test_an_owner_learns_what_ended_a_thread() -> None:
    group, errors = ThreadGroup(), list[BaseException]()
    group.spawn("fails", int, "x", on_error=errors.append)
    group.join()
    assert [type(error) for error in errors] == [ValueError]
