"""Which broker leads: leases, fences and hand-overs, in SQLite and on a PostgreSQL server."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from pathlib import Path

import pytest

from farflung.broker.replication import leadership
from farflung.broker.replication.database import Change, LeaderRow, RecordsDatabase, Superseded, Unreachable
from farflung.broker.replication.leadership import Leadership
from farflung.clock import wall_time
from farflung.errors import DataError, InputError, SecurityError
from farflung.security.authority import CertificateAuthority
from farflung.signal_event import SignalEvent
from farflung.thread_group import ThreadGroup
from tests.support.network.quiet import until


class Brokers:
    """Leaderships of several brokers with one database, each with a folder of its own."""

    def __init__(self, place: Path, url: str) -> None:
        self.place, self.url = place, url
        self.ended: dict[str, list[str]] = {}
        self.said: dict[str, list[str]] = {}
        self.over = SignalEvent()
        self.threads = ThreadGroup()
        self.closing = ExitStack()

    def make(self, name: str) -> Leadership:
        self.ended[name], self.said[name] = [], []
        database = RecordsDatabase(self.url)
        self.closing.callback(database.close)
        made = Leadership(self.place / name, database, self.ended[name].append, self.said[name].append)
        self.closing.callback(made.abandon)
        return made

    def leads(self, name: str) -> Leadership:
        made = self.make(name)
        made.lead(f"{name}:7070")
        CertificateAuthority.open(self.place / name / "authority", wall_time())
        made.start()
        return made

    def stands_by(self, name: str) -> tuple[Leadership, threading.Event]:
        """A standby on a thread, and what is set when it leads."""
        made, took = self.make(name), threading.Event()

        def wait() -> None:
            if made.wait(f"{name}:7070", self.over, self.said[name].append):
                took.set()

        self.threads.spawn(f"standby-{name}", wait)
        until(lambda: f"standing by at {name}:7070" in " ".join(self.said[name]))
        return made, took

    def rows(self) -> list[Change]:
        """All that the database has."""
        with closing(RecordsDatabase(self.url)) as database:
            return list(database.changes(0))

    def close(self) -> None:
        self.over.set()
        self.threads.join()
        self.closing.close()


@pytest.fixture
def brokers(tmp_path: Path, url: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Brokers]:
    for name, seconds in {"LEASE": 1.0, "_RENEW": 0.1, "_LOOK": 0.05, "_RETRY": 0.02}.items():
        monkeypatch.setattr(leadership, name, seconds)
    found = Brokers(tmp_path, url)
    yield found
    found.close()


def test_a_standby_takes_over_with_the_whole_folder_when_the_leader_dies(brokers: Brokers) -> None:
    first = brokers.leads("a")
    second, took = brokers.stands_by("b")
    until(lambda: first.standbys == ("b:7070",))
    (brokers.place / "a" / "links.json").write_text("measured")
    first.flush()
    first.abandon()  # no renewal any more, as after SIGKILL
    assert took.wait(30)
    assert (brokers.place / "b" / "links.json").read_text() == "measured"
    keys = [(brokers.place / name / "authority" / "authority-key.pem").read_bytes() for name in "ab"]
    assert keys[0] == keys[1]
    assert "the broker at a:7070 has not renewed its lease: taking over" in brokers.said["b"]
    second.close()


def test_a_standby_whose_files_were_deleted_takes_over_with_the_whole_folder(brokers: Brokers) -> None:
    first = brokers.leads("a")
    _, took = brokers.stands_by("b")
    here, there = (brokers.place / name for name in "ab")
    run = here / "runs" / "r"
    run.mkdir(parents=True)
    for path in (here / "links.json", run / "metrics.jsonl"):
        path.write_text("1\n")
    first.flush()
    until(lambda: (there / "runs" / "r" / "metrics.jsonl").exists() and (there / "links.json").exists())
    (there / "links.json").unlink()
    (there / "runs" / "r" / "metrics.jsonl").unlink()
    with (run / "metrics.jsonl").open("a") as file:
        file.write("2\n")
    first.flush()
    first.abandon()
    assert took.wait(30)
    assert (there / "links.json").read_text() == "1\n"
    assert (there / "runs" / "r" / "metrics.jsonl").read_text() == "1\n2\n"


def test_a_former_leader_that_wakes_up_changes_nothing_and_ends(brokers: Brokers) -> None:
    first = brokers.leads("a")
    second, took = brokers.stands_by("b")
    first.abandon()  # it is stopped
    assert took.wait(30)
    CertificateAuthority.open(brokers.place / "b" / "authority", wall_time())
    second.start()
    (brokers.place / "a" / "links.json").write_text("late")
    with pytest.raises(Superseded):
        first.flush()
    assert brokers.ended["a"] == ["another broker has taken over; this broker has no effect any more"]
    paths = [change.path for change in brokers.rows()]
    assert "links.json" not in paths
    second.close()


def test_a_leader_that_ends_hands_over_at_once(brokers: Brokers) -> None:
    first = brokers.leads("a")
    _, took = brokers.stands_by("b")
    first.hand_over()
    assert took.wait(30)
    assert "the broker at a:7070 has ended: taking over" in brokers.said["b"]


def test_a_second_leader_is_refused(brokers: Brokers) -> None:
    brokers.leads("a")
    with pytest.raises(InputError, match=r"the broker at a:7070 leads this cluster \(.*\): add --standby to take over"):
        brokers.make("b").lead("b:7070")


def test_a_broker_that_is_started_again_leads_at_once(brokers: Brokers) -> None:
    brokers.leads("a").abandon()
    again = brokers.make("a")
    again.lead("a:7070")
    assert not brokers.over.is_set()
    again.close()


def test_a_standby_of_another_cluster_is_refused(brokers: Brokers) -> None:
    brokers.leads("a")
    CertificateAuthority.open(brokers.place / "b" / "authority", wall_time())
    other = brokers.make("b")
    pattern = r"the folder .*/b belongs to another cluster \(key \w{12}\) than .* \(key \w{12}\): choose another --home"
    with pytest.raises(SecurityError, match=pattern):
        other.wait("b:7070", brokers.over, brokers.said["b"].append)
    with pytest.raises(SecurityError, match=pattern):
        other.lead("b:7070")


def test_a_standby_needs_a_cluster(brokers: Brokers) -> None:
    with pytest.raises(InputError, match=r"no broker has led the cluster in .* yet: start one without --standby first"):
        brokers.make("b").wait("b:7070", brokers.over, print)


def test_a_leader_ends_when_it_cannot_renew_its_lease(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    first = brokers.leads("a")

    def unreachable(*_: object, **__: object) -> None:
        raise Unreachable("cannot use the database: gone")

    monkeypatch.setattr(RecordsDatabase, "write", unreachable)
    until(lambda: bool(brokers.ended["a"]))
    causes = ("cannot use the database: gone", "the database did not answer for 1 s")
    assert brokers.ended["a"][0] in [f"this broker could not renew its lease: {cause}" for cause in causes]
    with pytest.raises(Unreachable):
        first.hand_over()


def test_a_leader_ends_when_a_call_of_the_database_hangs(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers.leads("a")
    write, answers = RecordsDatabase.write, threading.Event()

    def hangs(self: RecordsDatabase, *arguments: object, **named: object) -> None:
        answers.wait()
        write(self, *arguments, **named)  # type: ignore[arg-type]

    brokers.closing.callback(answers.set)
    monkeypatch.setattr(RecordsDatabase, "write", hangs)
    until(lambda: bool(brokers.ended["a"]))
    assert brokers.ended["a"] == ["this broker could not renew its lease: the database did not answer for 1 s"]


@pytest.mark.parametrize(
    ("method", "cause"),
    [("write", "could not renew its lease: the table is gone"), ("flush", "could not copy its folder: no space")],
)
def test_a_leader_ends_with_the_cause_when_one_of_its_threads_fails(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch, method: str, cause: str
) -> None:
    first = brokers.leads("a")

    def fails(*_: object, **__: object) -> None:
        raise DataError(cause.partition(": ")[2])

    monkeypatch.setattr(RecordsDatabase if method == "write" else first, method, fails)
    until(lambda: f"this broker {cause}" in brokers.ended["a"])


def test_an_event_whose_journal_cannot_be_stored_fails(brokers: Brokers) -> None:
    first = brokers.leads("a")
    (brokers.place / "a" / "journal.sqlite").write_bytes(b"no database, but long enough to be read as one" * 100)
    with pytest.raises(DataError, match=r"cannot read .*journal\.sqlite: "):
        first.journaled(lambda *_, **__: None)("r", "submitted")


def test_an_interruption_that_is_shorter_than_the_lease_loses_nothing(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    first, write, failures = brokers.leads("a"), RecordsDatabase.write, iter(range(3))

    def interrupted(self: RecordsDatabase, *arguments: object, **named: object) -> None:
        write(self, *arguments, **named)  # type: ignore[arg-type]
        if next(failures, None) is not None:
            raise Unreachable("the answer is lost")

    monkeypatch.setattr(RecordsDatabase, "write", interrupted)
    metrics = brokers.place / "a" / "runs" / "r" / "metrics.jsonl"
    metrics.parent.mkdir(parents=True)
    metrics.write_text("1\n")
    first.recorded("r")
    first.close()
    assert [change.body for change in brokers.rows() if "metrics" in change.path] == [b"1\n"]
    assert brokers.ended["a"] == []


def test_an_event_of_a_run_is_stored_after_the_files_that_it_is_about(brokers: Brokers) -> None:
    first = brokers.leads("a")
    run = brokers.place / "a" / "runs" / "r"
    written = []

    def write(name: str, what: str, /, **fields: object) -> None:
        (brokers.place / "a" / "journal.sqlite").write_bytes(b"")
        written.append((name, what, fields))

    (run / "checkpoints").mkdir(parents=True)
    (run / "checkpoints" / "adopted").write_text("first")
    (run / "job.json").write_text("job")
    first.journaled(write)("r", "submitted", submitter="me")
    assert written == [("r", "submitted", {"submitter": "me"})]
    paths = [change.path for change in brokers.rows()]
    assert paths[-1] == "journal.sqlite"
    assert {"runs/r/job.json", "runs/r/checkpoints/adopted"} <= set(paths)
    first.close()


def test_of_two_brokers_that_are_started_together_one_leads(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second, take = brokers.make("a"), brokers.make("b"), RecordsDatabase.take

    def later(self: RecordsDatabase, seen: LeaderRow, holder: str, address: str) -> LeaderRow:
        monkeypatch.setattr(RecordsDatabase, "take", take)
        first.lead("a:7070")
        return take(self, seen, holder, address)

    monkeypatch.setattr(RecordsDatabase, "take", later)
    with pytest.raises(InputError, match=r"the broker at a:7070 leads this cluster"):
        second.lead("b:7070")


def test_a_standby_reports_an_outage_of_the_database_once(brokers: Brokers, monkeypatch: pytest.MonkeyPatch) -> None:
    brokers.leads("a")
    _, took = brokers.stands_by("b")
    looks: list[object] = []

    def unreachable(*look: object) -> None:
        looks.append(look)
        raise Unreachable("no answer")

    monkeypatch.setattr(RecordsDatabase, "stand_by", unreachable)
    until(lambda: len(looks) > 3)
    assert brokers.said["b"].count("warning: no answer") == 1
    assert not took.is_set()


def test_what_a_former_leader_wrote_without_effect_is_set_aside(brokers: Brokers) -> None:
    first = brokers.leads("a")
    run = brokers.place / "a" / "runs" / "r"
    (run / "checkpoints").mkdir(parents=True)
    (run / "job.json").write_text("job")
    (run / "checkpoints" / "shard").write_text("useful")
    first.flush()
    first.abandon()
    (run / "result.json").write_text("written after the lease")
    brokers.make("a").lead("a:7070")
    assert not (run / "result.json").exists()
    assert (run.parents[1] / "set-aside" / "term-2" / "runs" / "r" / "result.json").read_text() == "written after the lease"
    assert (run / "checkpoints" / "shard").read_text() == "useful"
    assert (run / "job.json").read_text() == "job"


def test_a_standby_that_loses_the_database_while_it_takes_over_leads_later(
    brokers: Brokers, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = brokers.leads("a")
    (brokers.place / "a" / "links.json").write_text("measured")
    first.flush()
    _, took = brokers.stands_by("b")
    changes, failures = RecordsDatabase.changes, iter(range(3))

    def interrupted(self: RecordsDatabase, after: int) -> Iterator[Change]:
        if self.leader().term == 2 and next(failures, None) is not None:
            raise Unreachable("no answer")
        return changes(self, after)

    monkeypatch.setattr(RecordsDatabase, "changes", interrupted)
    first.abandon()
    assert took.wait(30)
    assert next(failures, None) is None, "it was interrupted"
    assert (brokers.place / "b" / "links.json").read_text() == "measured"
