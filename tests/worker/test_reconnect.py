"""A worker's owner changes its limits while the file of limits cannot be used: the worker keeps working, by the new limits."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from farflung.errors import ConnectionLost, DiskFull, SecurityError
from farflung.units import Seconds
from farflung.worker.membership import Membership, join
from farflung.worker.options import WorkerOptions
from farflung.worker.owner_limits import OwnerLimitsFile
from farflung.worker.reconnect import Service
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback


@dataclass
class Owned:
    """A worker with an owner's file, and its broker."""

    cluster: Loopback
    service: Service
    limits: OwnerLimitsFile
    thread: threading.Thread
    said: list[str]

    def member(self) -> dict[str, Any]:
        members = self.cluster.client.status()["members"]
        assert isinstance(members, list)
        return dict(members[0])


@pytest.fixture
def owned(home: Path, tmp_path: Path) -> Iterator[Owned]:
    said: list[str] = []
    with Loopback(home, 0) as cluster:
        limits = OwnerLimitsFile(tmp_path / "members", "w")
        limits.begin({})
        enter = lambda: join(cluster.ticket("join"), name="w", role="worker", key=cluster.key)  # noqa: E731
        service = Service(enter, WorkerOptions(listen="127.0.0.1:0", memory=1e9), said.append, limits)
        thread = threading.Thread(target=service.run, args=(Seconds(5.0),), daemon=True)
        thread.start()
        until(lambda: "w" in cluster.members())
        yield Owned(cluster, service, limits, thread, said)
        service.stop()
        thread.join(30)


def test_a_damaged_file_ends_no_worker(owned: Owned) -> None:
    owned.limits.path.write_text("{")
    owned.cluster.client.wish("w", paused=True)
    until(lambda: not owned.thread.is_alive() or owned.member()["paused"])
    assert owned.thread.is_alive()
    (warning,) = (line for line in owned.said if "warning" in line)
    assert warning.startswith("warning: the changed limits apply until this worker ends, because they cannot be stored: ")
    assert warning.endswith("delete it to begin anew")


def test_the_log_says_when_a_pause_begins_and_ends(owned: Owned) -> None:
    watching = threading.Thread(target=owned.service.watch, daemon=True)
    watching.start()
    for paused in (True, False):
        owned.limits.change(paused=paused)
        until(lambda paused=paused: owned.member()["paused"] is paused)  # type: ignore[misc]
    owned.service.stop()
    watching.join(30)
    lines = [line for line in owned.said if "paused" in line]
    assert lines == ["paused until farflung resume: no run uses it", "no longer paused"]


def test_a_full_disk_does_not_undo_what_the_owner_wants(owned: Owned, monkeypatch: pytest.MonkeyPatch) -> None:
    read, polls = OwnerLimitsFile.read, threading.Semaphore(0)

    def full(self: OwnerLimitsFile, **changes: object) -> None:
        raise DiskFull("no space")

    def seen(self: OwnerLimitsFile) -> Any:
        polls.release()
        return read(self)

    monkeypatch.setattr(OwnerLimitsFile, "change", full)
    owned.cluster.client.wish("w", paused=True)
    until(lambda: owned.member()["paused"])
    monkeypatch.setattr(OwnerLimitsFile, "read", seen)
    watching = threading.Thread(target=owned.service.watch, daemon=True)
    watching.start()
    for _ in range(2):  # the second poll begins after the first one has been reported
        assert polls.acquire(timeout=60)
    assert owned.member()["paused"], "the file still says what was wanted before"
    owned.service.stop()
    watching.join(30)


def test_a_broker_that_is_not_up_yet_is_called_again(home: Path) -> None:
    said: list[str] = []
    with Loopback(home, 0) as cluster:
        refusals = iter([ConnectionLost("cannot reach the broker at x"), ConnectionLost("still not")])

        def enter() -> Membership:
            if (refusal := next(refusals, None)) is not None:
                raise refusal
            return join(cluster.ticket("join"), name="w", role="worker", key=cluster.key)

        service = Service(enter, WorkerOptions(listen="127.0.0.1:0", memory=1e9), said.append)
        thread = threading.Thread(target=service.run, args=(Seconds(60.0),), daemon=True)
        thread.start()
        until(lambda: "w" in cluster.members() or not thread.is_alive())
        assert cluster.members() == ["w"]
        assert said[0] == "cannot reach the broker at x; trying again for at most 1 min 0 s"
        service.stop()
        thread.join(30)


def lost(error: Exception, calls: list[int]) -> Membership:
    calls.append(1)
    raise error


@pytest.mark.parametrize(
    ("error", "patience", "several"),
    [(ConnectionLost("nobody"), 0.0, False), (ConnectionLost("nobody"), 0.25, True), (SecurityError("expired"), 60.0, False)],
)
def test_a_first_call_ends_with_its_error(error: Exception, patience: float, *, several: bool) -> None:
    calls: list[int] = []
    service = Service(lambda: lost(error, calls), WorkerOptions(engine="reference"), lambda line: None)
    with pytest.raises(type(error), match=str(error)):
        service.run(Seconds(patience))
    assert (len(calls) > 1) is several


def test_a_worker_that_leaves_before_the_broker_answers() -> None:
    calls: list[int] = []
    service = Service(lambda: lost(ConnectionLost("nobody"), calls), WorkerOptions(engine="reference"), lambda line: None)
    thread = threading.Thread(target=service.run, args=(Seconds(3600.0),), daemon=True)
    thread.start()
    until(lambda: calls)
    service.part()
    thread.join(30)
    assert not thread.is_alive()
