"""What the broker answers about workers, from a worker that really joined."""

from __future__ import annotations

from pathlib import Path

import pytest

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
