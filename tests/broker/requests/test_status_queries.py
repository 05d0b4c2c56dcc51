"""What the broker answers about workers, from a worker that really joined."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from benchmarks.commands.idle_members import IdleMembers, member_name
from farflung.broker.requests import status_queries
from farflung.client import control
from farflung.messages.calls import Status, StatusAnswer
from farflung.messages.remote_calls import ask
from farflung.transports.rpc import RpcClient
from farflung.worker import process
from tests.support.loopback import Loopback
from tests.support.quiet import until


def test_status_has_the_region_and_the_free_disk_of_each_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    free = iter([8e9])
    monkeypatch.setattr(process, "free_space", lambda folders: next(free, 7e8))
    with Loopback(tmp_path, 0) as cluster:
        cluster.add("a", region="attic")

        def row() -> tuple[object, object]:
            (found,) = cluster.client.status()["members"]
            return found["region"], found["disk"]

        assert row() == ("attic", 8e9)
        until(lambda: row() == ("attic", 7e8))  # a heartbeat has reported it


def test_a_worker_that_does_not_know_its_disk_reports_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(process, "free_space", lambda folders: None)
    with Loopback(tmp_path, 1) as cluster:
        (found,) = cluster.client.status()["members"]
        assert (found["region"], found["disk"]) == ("", None)


def test_many_members_come_in_pages(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = [member_name(number) for number in range(5)]
    with Loopback(tmp_path, 0) as cluster, closing(IdleMembers(cluster.ticket("join"))) as idle:
        for name in reversed(names):
            idle.join([name])
        assert [one["name"] for one in cluster.client.status()["members"]] == names[::-1], "one page: as they joined"
        asked: list[Status] = []

        def count(client: RpcClient, request: Status, answer: type[StatusAnswer]) -> StatusAnswer:
            asked.append(request)
            return ask(client, request, answer)

        monkeypatch.setattr(status_queries, "_PAGE", 2)
        monkeypatch.setattr(control, "ask", count)
        status = cluster.client.status()
        assert [one["name"] for one in status["members"]] == names
        assert status["states"] == dict.fromkeys(names, "standby")
        assert "more_members" not in status
        assert [one.after or "" for one in asked] == ["", names[1], names[3]]
