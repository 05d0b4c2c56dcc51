"""Whatever ends the planning of an attempt ends the run with that cause: no run waits forever for a plan."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from farflung.broker.attempts import planner
from farflung.broker.planning import run_planner
from farflung.thread_group import ThreadGroup
from tests.support.loopback import Loopback, text_job


def fail(*_: Any) -> Any:
    raise KeyError("gone")


@pytest.mark.parametrize("part", ["preparation_of", "routes_of"])
def test_a_failure_inside_ends_the_run(home: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """``routes_of`` runs after the plan has taken effect on disk, ``preparation_of`` before."""
    monkeypatch.setattr(planner, part, fail)
    with Loopback(home, 1) as cluster:
        found = cluster.run(text_job(steps=2))
    assert found.result.status == "failed"
    assert found.result.cause == "planning failed inside: KeyError: 'gone'"


def test_a_machine_without_threads_ends_the_run_and_not_the_session(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ThreadGroup.spawn

    def spawn(self: ThreadGroup, name: str, *given: Any, **more: Any) -> Any:
        if name.startswith("plan-"):
            raise RuntimeError("can't start new thread")
        return real(self, name, *given, **more)

    monkeypatch.setattr(ThreadGroup, "spawn", spawn)
    with Loopback(home, 1) as cluster:
        found = cluster.run(text_job(steps=2))
        assert found.result.cause == "planning failed inside: RuntimeError: can't start new thread"
        assert cluster.members() == ["a"]


def test_a_planner_that_fails_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = "broken"

        def plan(self, graph: object, topology: object, *, job: object) -> object:
            raise ValueError("no route")

    monkeypatch.setattr(run_planner, "get_planner", lambda name: Broken())
    with Loopback(home, 1) as cluster:
        found = cluster.run(text_job(steps=2))
    assert found.result.cause == "the planner equal_compute failed: ValueError: no route"
