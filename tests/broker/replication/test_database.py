"""The tables that brokers share, in SQLite and, behind the marker ``postgres``, on a PostgreSQL server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing
from importlib import import_module
from pathlib import Path

import pytest

from farflung import extras
from farflung.broker.replication.database import Change, LeaderRow, RecordsDatabase, Superseded, Unreachable
from farflung.errors import DataError, InputError


@pytest.fixture
def database(url: str) -> Iterator[RecordsDatabase]:
    with closing(RecordsDatabase(url)) as found:
        yield found


def _put(number: int, path: str, body: bytes, kind: str = "put") -> Change:
    return Change(number=number, path=path, kind=kind, body=body)


def test_who_takes_the_lead_has_the_next_term(database: RecordsDatabase) -> None:
    assert database.leader() == LeaderRow()
    first = database.take(database.leader(), "a", "host-a:7070")
    assert first == LeaderRow(term=1, beat=1, holder="a", address="host-a:7070") == database.leader()
    database.write(1, cluster="key", ends=True)
    assert database.leader() == LeaderRow(cluster="key", term=1, beat=2, address="host-a:7070")


def test_only_one_of_two_that_saw_the_same_leader_takes_over(database: RecordsDatabase, url: str) -> None:
    seen = database.leader()
    with closing(RecordsDatabase(url)) as other:
        other.take(seen, "b", "host-b:7070")
    with pytest.raises(Superseded, match="another broker took over first"):
        database.take(seen, "a", "host-a:7070")
    assert database.leader().holder == "b"


def test_a_leader_that_writes_cannot_be_taken_for_silent(database: RecordsDatabase) -> None:
    database.take(database.leader(), "a", "host-a:7070")
    seen = database.leader()
    database.write(1, [_put(1, "x", b"1")])
    with pytest.raises(Superseded):
        database.take(seen, "b", "host-b:7070")


def test_a_superseded_leader_changes_nothing(database: RecordsDatabase) -> None:
    database.take(database.leader(), "a", "host-a:7070")
    database.write(1, [_put(1, "x", b"1")], cluster="key")
    database.take(database.leader(), "b", "host-b:7070")
    before = database.leader()
    for late in ([_put(2, "x", b"late")], []):
        with pytest.raises(Superseded, match="another broker has taken over"):
            database.write(1, late, cluster="other", ends=True)
    assert database.leader() == before
    assert list(database.changes(0)) == [_put(1, "x", b"1")]


def test_a_write_that_is_repeated_counts_once(database: RecordsDatabase) -> None:
    database.take(database.leader(), "a", "host-a:7070")
    for _ in range(2):
        database.write(1, [_put(1, "x", b"1"), _put(2, "x", b"2", "append")])
    assert database.last() == 2
    assert [change.body for change in database.changes(0)] == [b"1", b"2"]


def test_changes_are_read_in_order_whatever_their_number(database: RecordsDatabase) -> None:
    database.take(database.leader(), "a", "host-a:7070")
    many = [_put(number, f"f{number}", bytes([number % 256])) for number in range(1, 200)]
    database.write(1, many)
    assert list(database.changes(0)) == many
    assert list(database.changes(150)) == many[150:]


def test_a_new_content_replaces_all_changes_of_the_file(database: RecordsDatabase) -> None:
    database.take(database.leader(), "a", "host-a:7070")
    database.write(1, [_put(1, "x", b"1"), _put(2, "x", b"2", "append"), _put(3, "y", b"y")])
    database.write(1, [_put(4, "x", b"new")])
    assert list(database.changes(0)) == [_put(3, "y", b"y"), _put(4, "x", b"new")]


def test_standbys_are_listed_until_they_leave_or_lead(database: RecordsDatabase) -> None:
    database.stand_by("host-b:7070", 1)
    database.stand_by("host-c:7070", 1)
    database.stand_by("host-b:7070", 2)
    assert database.standbys() == {"host-b:7070": 2, "host-c:7070": 1}
    database.leave("host-c:7070")
    database.take(database.leader(), "b", "host-b:7070")
    assert database.standbys() == {}


def test_an_unreachable_database_is_named_without_its_password() -> None:
    pytest.importorskip("psycopg", reason="no psycopg: pip install 'farflung[sql]'")
    pattern = (
        r"cannot use the database postgresql\+psycopg://me:\*\*\*@127\.0\.0\.1:1/x: .*refused.*; check its address and rights"
    )
    with pytest.raises(Unreachable, match=f"(?s){pattern}") as found:
        RecordsDatabase("postgresql://me:hidden@127.0.0.1:1/x")
    assert "hidden" not in str(found.value)
    assert "\n" not in str(found.value)


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ("records", r"--records is no URL of a database: write e\.g\. sqlite:////shared/records\.sqlite or postgresql://"),
        ("sqlite://", r"--records sqlite:// names no file: write e\.g\. sqlite:////shared/records\.sqlite"),
        ("nosuch://host/base", r"--records nosuch://host/base: SQLAlchemy knows no database 'nosuch'; use sqlite or postgresql"),
    ],
)
def test_a_wrong_url_is_an_error(text: str, error: str) -> None:
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy: pip install 'farflung[sql]'")
    with pytest.raises(InputError, match=error):
        RecordsDatabase(text)


def test_a_missing_driver_is_named_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy: pip install 'farflung[sql]'")
    monkeypatch.setitem(sys.modules, "psycopg", None)
    pattern = r"--records postgresql\+psycopg://me:\*\*\*@host/x needs the driver psycopg, .* pip install 'farflung\[sql\]'"
    with pytest.raises(InputError, match=pattern):
        RecordsDatabase("postgresql://me:hidden@host/x")


def test_without_sqlalchemy_the_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(extras, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"--records needs SQLAlchemy, .* pip install 'farflung\[sql\]'"):
        RecordsDatabase("sqlite:///x")


def test_options_of_the_url_are_not_shown() -> None:
    pytest.importorskip("psycopg", reason="no psycopg: pip install 'farflung[sql]'")
    with pytest.raises(Unreachable) as found:
        RecordsDatabase("postgresql://127.0.0.1:1/x?user=me&password=hidden")
    assert "hidden" not in str(found.value)


def test_a_dead_connection_is_noticed_within_the_lease(monkeypatch: pytest.MonkeyPatch) -> None:
    psycopg = pytest.importorskip("psycopg", reason="no psycopg: pip install 'farflung[sql]'")
    given: dict[str, object] = {}

    def connect(*_: object, **named: object) -> None:
        given.update(named)
        raise psycopg.OperationalError("refused")

    monkeypatch.setattr(psycopg, "connect", connect)
    with pytest.raises(Unreachable, match="refused"):
        RecordsDatabase("postgresql://me:hidden@host/x")
    wanted = {"keepalives_idle": 1, "keepalives_interval": 1, "keepalives_count": 3}
    assert {name: given.get(name) for name in wanted} == wanted


def test_a_database_with_other_tables_of_these_names_is_an_error(tmp_path: Path) -> None:
    pytest.importorskip("sqlalchemy", reason="no SQLAlchemy: pip install 'farflung[sql]'")
    (tmp_path / "other.sqlite").write_bytes(b"this is no database at all, but a text of some length" * 40)
    with pytest.raises(DataError, match=r"the database sqlite:///.* cannot be used: file is not a database; give the brokers"):
        RecordsDatabase(f"sqlite:///{tmp_path}/other.sqlite")


def test_the_module_needs_no_sqlalchemy_to_be_imported() -> None:
    assert import_module("farflung.broker.replication.leadership")
