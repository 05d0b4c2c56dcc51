"""After a restart, the broker knows who has left and who has not returned."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from farflung.broker.records import presence_book
from farflung.broker.records.presence_book import PresenceBook
from farflung.protocol.members import Gone
from farflung.security.name_book import NameBook
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback

AWAY = "it has not returned since the broker was started again"


def test_who_has_left_and_who_was_here_are_remembered(tmp_path: Path) -> None:
    NameBook(tmp_path / "names.sqlite")  # they share a file
    book = PresenceBook(tmp_path / "names.sqlite")
    for name, generation, cause in (
        ("a", 1, ""),
        ("b", 1, ""),
        ("a", 1, "lost a: " + 1000 * "x"),
        ("a", 2, ""),
        ("c", 3, "it left"),
    ):
        book.write(name, generation, cause)
    found = PresenceBook(tmp_path / "names.sqlite").read()
    assert list(found.values()) == [
        Gone(name="b", generation=1, cause=AWAY),
        Gone(name="a", generation=2, cause=AWAY),
        Gone(name="c", generation=3, cause="it left"),
    ]


def test_only_the_latest_are_remembered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presence_book, "_MOST", 2)
    book = PresenceBook(tmp_path / "names.sqlite")
    for name in "abac":
        book.write(name, 1, "it left")
    assert list(book.read()) == ["a", "c"]


def test_status_knows_gone_workers_after_a_broker_was_killed(home: Path) -> None:
    with Loopback(home, 2) as cluster:
        cluster.workers["b"].close()
        until(lambda: "b" not in cluster.members())
        before = {one["name"]: one["cause"] for one in cluster.client.status()["gone"]}  # type: ignore[attr-defined]
        shutil.copytree(cluster.broker.home, home / "copy", ignore=shutil.ignore_patterns("lock"))
    with Loopback(home, 0, folder="copy") as again:
        gone = {one["name"]: one["cause"] for one in again.client.status()["gone"]}  # type: ignore[attr-defined]
    assert gone == {"a": AWAY, "b": before["b"]}
