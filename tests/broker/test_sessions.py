"""Connections of peers that came back, a broker's goodbye, and a stop that comes while text is generated."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from benchmarks.commands.idle_members import IdleMembers, member_name
from farflung.broker import worker_reports
from farflung.broker.process import Broker
from farflung.broker.session_table import SessionTable
from farflung.broker.sessions import Sessions
from farflung.errors import ConnectionLost, SecurityError, WireError
from farflung.protocol.leases import Leases
from farflung.protocol.members import Member
from farflung.security import Caller
from farflung.telemetry.records import StepRecord
from farflung.units import Seconds
from farflung.wire.frames import Frame
from farflung.worker.membership import join
from farflung.worker.options import WorkerOptions
from farflung.worker.process import Worker
from farflung.worker.run_hooks import WorkerHooks
from tests.support.network.quiet import until
from tests.support.network.session_calls import QuietCall, Said
from tests.support.runs.loopback import Finished, Loopback, text_job

PATIENCE = 60.0


def lose(cluster: Loopback, steps: int, *, stale: bool) -> Finished:
    """Worker a hears in mid-run of the end of a connection with b."""
    other = {name: worker for name, worker in cluster.workers.items() if name == "a"}

    def act(run: str, record: StepRecord) -> None:
        for worker in other.values():
            worker._current.on_lost("b", ConnectionLost("lost b: it went away"), "an-older-run" if stale else run)

    return cluster.run(text_job(steps=steps, on_loss="stop"), on_record=act)


def test_the_loss_of_a_connection_of_another_run_harms_nobody(two: Loopback) -> None:
    """What is left of a peer that came back: its old connection, whose end is noticed late."""
    end = lose(two, 3, stale=True)
    assert (end.result.status, end.result.steps) == ("finished", 3)
    assert "lost b: it went away" in lose(two, 5000, stale=False).result.cause


class Events:
    """What sessions tell, and what goes wrong meanwhile."""

    def __init__(self, failure: Exception | None = None) -> None:
        self.failure, self.told = failure, list[object]()

    def joined(self, name: str, generation: int, hello: Frame) -> tuple[str, list[str]]:
        self._tell(name)
        return "", []

    def report(self, name: str, frame: Frame) -> None:
        self._tell(frame)

    def silent(self, silences: Mapping[str, float], lease: float) -> None:
        self._tell(silences)

    def lost(self, name: str, cause: str) -> None:
        self._tell(name)

    def _tell(self, what: object) -> None:
        self.told.append(what)
        if self.failure is not None:
            raise self.failure


def test_a_name_is_free_again_whatever_the_loss_does() -> None:
    table = SessionTable(lambda name: 1)
    sessions = Sessions(table, Events(RuntimeError("a defect")), lambda text: None)
    call, stream = cast(Any, QuietCall()), cast(Any, Said(()))
    with pytest.raises(RuntimeError, match="a defect"):
        asyncio.run(sessions.read(table.enter("w"), call, stream))
    assert not table.serves("w")


def test_whatever_becomes_of_one_member_the_others_are_looked_after() -> None:
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if len(said) == 3:
            sessions.close()

    sessions = Sessions(SessionTable(lambda name: 1), Events(OSError("the disk is full")), say)
    sessions.watch()
    assert said == ["warning: the handling of a lost worker failed inside: OSError: the disk is full"] * 3


def test_an_end_that_fails_is_said() -> None:
    class Failing(Events):
        def lost(self, name: str, cause: str) -> None:
            raise OSError("the disk is full")

    async def serve() -> None:
        await sessions.serve(cast(Any, QuietCall()), cast(Any, Said([Frame("hello", {"address": "", "offer": Door.OFFER})])))
        while len(asyncio.all_tasks()) > 1:
            await asyncio.sleep(0)

    said = list[str]()
    sessions = Sessions(SessionTable(lambda name: 1), Failing(), said.append)
    asyncio.run(serve())
    assert said == [
        "worker w joined from ",
        "worker w left",
        "warning: the end of a session failed inside: OSError: the disk is full",
    ]


def test_members_that_must_go_all_go_whatever_the_loss_of_one_does() -> None:
    table, said = SessionTable(lambda name: 1), list[str]()
    gone = dict.fromkeys("abc", "its ticket was revoked")

    def unwelcome(connected: object) -> dict[str, str]:
        sessions.close()
        return gone

    sessions = Sessions(table, Events(RuntimeError("a defect")), said.append, unwelcome)
    found = [table.enter(name) for name in "abc"]
    sessions.watch()
    assert [session.ended for session in found] == list(gone.values())
    assert table.connected() == []
    assert said.count("warning: the handling of a lost worker failed inside: RuntimeError: a defect") == 1 + 3


def test_only_plain_heartbeats_are_handled_on_the_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """A bad one that names a run fails that run, which writes files."""
    threads = list[object]()

    async def on_thread(call: QuietCall, work: Any) -> Any:
        if getattr(work, "args", ()):
            threads.append(work.args[-1].header)
        return work()

    monkeypatch.setattr(QuietCall, "on_thread", on_thread)
    table = SessionTable(lambda name: 1)
    sessions = Sessions(table, Events(), lambda text: None)
    beats = [Frame("beat", {}), Frame("beat", {"disk": "x", "run": "r"}), Frame("beat", {"disk": 1.0})]
    asyncio.run(sessions.read(table.enter("w"), cast(Any, QuietCall()), cast(Any, Said(beats))))
    assert threads == [beats[1].header]


def test_runs_whose_files_are_being_written_do_not_hold_up_an_end(tmp_path: Path) -> None:
    broker = Broker(tmp_path, listen="127.0.0.1:0")
    writes, goes_on, failed = threading.Event(), threading.Event(), list[Exception]()

    def write() -> None:
        writes.set()
        goes_on.wait(PATIENCE)
        raise OSError("interrupted")

    def submit() -> None:
        try:
            broker.manager.submit(cast(Any, SimpleNamespace(run="r", records=SimpleNamespace(unwritten=broker))), write)
        except OSError as error:
            failed.append(error)

    thread = threading.Thread(target=submit)
    thread.start()
    assert writes.wait(PATIENCE)
    broker.close()
    goes_on.set()
    thread.join(PATIENCE)
    assert len(failed) == 1


def test_sessions_take_no_threads(home: Path) -> None:
    """Each of many members reports, and the broker's threads are as many as with one."""
    with Loopback(home, 0) as cluster, closing(IdleMembers(cluster.ticket("join"))) as idle:

        def reported() -> list[object]:
            return [row["disk"] for row in cast(Any, cluster.client.status()["members"])]

        def rest() -> bool:
            """Whether no call or report is being served, and there are about as many threads as with one member."""
            names = [thread.name for thread in threading.enumerate()]
            return "call-control" not in names and len(names) <= before + 4

        before = len(threading.enumerate())
        idle.join([member_name(0)])
        until(rest)
        idle.join(member_name(number) for number in range(1, 24))
        assert reported() == [5e10] * 24
        until(rest)
        idle.leave(member_name(1))
        idle.kill(member_name(2))
        until(lambda: len(reported()) == 22)
        assert idle.lost() == {}
        until(rest)


def test_nothing_fails_because_nobody_can_be_told(tmp_path: Path) -> None:
    def say(line: str) -> None:
        raise BrokenPipeError("the terminal is gone")

    broker = Broker(tmp_path, listen="127.0.0.1:0", say=say)
    broker.close()


class Kicking:
    """The owner kicks each worker while its hello is handled."""

    def __init__(self) -> None:
        self.table, self.told = SessionTable(lambda name: 1), list[str]()
        self.sessions = Sessions(self.table, cast(Any, self), self.told.append)

    def joined(self, name: str, generation: int, hello: object) -> tuple[str, list[str]]:
        assert self.sessions.remove(lambda one: one == name, "it was kicked") == [name]
        self.told.append("MemberJoined")
        return "a test", []

    def lost(self, name: str, cause: str) -> None:
        self.told.append("MemberLost")


def test_who_is_kicked_while_it_joins_is_lost_afterwards() -> None:
    """Else it would stay a member without a session."""
    kicking = Kicking()
    stream = Said([Frame("hello", {"address": "", "offer": Door.OFFER})])
    asyncio.run(kicking.sessions.serve(cast(Any, QuietCall()), cast(Any, stream)))
    assert kicking.told == ["MemberJoined", "worker w joined from a test", "worker w is gone: it was kicked", "MemberLost"]
    assert not kicking.table.serves("w")
    assert stream.sent == ["welcome", "fenced"]


def test_who_waits_for_its_turn_hears_heartbeats(monkeypatch: pytest.MonkeyPatch) -> None:
    """And whoever has left when its turn comes begins no session."""
    table = SessionTable(lambda name: 1, Leases(length=Seconds(0.01)))
    events, goes_on = Events(), asyncio.Event()
    sessions = Sessions(table, events, lambda text: None)

    class Heard(Said):
        async def send(self, frame: Frame) -> None:
            await super().send(frame)
            if len(self.sent) == 3:
                goes_on.set()

    async def waits(call: QuietCall, work: Any) -> Any:
        await goes_on.wait()
        return work()

    monkeypatch.setattr(QuietCall, "on_thread", waits)
    monkeypatch.setattr(QuietCall, "active", False)
    stream = Heard([Frame("hello", {"address": "", "offer": Door.OFFER})])
    with pytest.raises(ConnectionLost, match="lost w: the connection broke off"):
        asyncio.run(sessions.serve(cast(Any, QuietCall()), cast(Any, stream)))
    assert stream.sent[:3] == ["beat"] * 3
    assert (events.told, table.connected()) == ([], [])


def test_a_heartbeat_that_repeats_is_reported_once() -> None:
    table, events = SessionTable(lambda name: 1), Events()
    sessions = Sessions(table, events, lambda text: None)
    first, other = Frame("beat", {"disk": 1.0}), Frame("beat", {"disk": 2.0})
    frames = [first, first, other, other, first]
    asyncio.run(sessions.read(table.enter("w"), cast(Any, QuietCall()), cast(Any, Said(frames))))
    assert events.told == [first, other, first, "w"]


class Mute(Said):
    """A worker that says nothing; like gRPC's, its wait ends in a lost connection."""

    async def receive(self) -> Frame | None:
        try:
            return await asyncio.get_running_loop().create_future()
        except asyncio.CancelledError:
            raise ConnectionLost("lost w: the connection broke off") from None


def test_who_says_no_hello_does_not_keep_its_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farflung.broker.sessions._HELLO_SECONDS", 0.0)
    sessions = Sessions(SessionTable(lambda name: 1), Events(), lambda text: None)
    with pytest.raises(WireError, match="a worker's session must begin with hello"):
        asyncio.run(sessions.serve(cast(Any, QuietCall()), cast(Any, Mute(()))))


class Door:
    """Sessions of a worker called w, one after the other, with the hellos that they begin with."""

    OFFER = {
        "memory": 1e9,
        "speed": 1e9,
        "factor": 1.0,
        "overhead": 0.0,
        "host": "h",
        "processors": [],
        "relay": True,
        "reliable": True,
        "kind": "cpu",
        "description": "",
        "versions": {},
    }

    def __init__(self, broker: Broker) -> None:
        self.broker = broker

    def welcome(self, **wishes: object) -> str:
        """The kind of what is answered first."""
        stream = Said([Frame("hello", {"address": "", "offer": self.OFFER, **wishes})])
        asyncio.run(self.broker.serving.serve(cast(Any, QuietCall()), cast(Any, stream)))
        return stream.sent[0]


@pytest.fixture
def door(tmp_path: Path) -> Iterator[Door]:
    broker = Broker(tmp_path, listen="127.0.0.1:0")
    yield Door(broker)
    broker.close()


@pytest.mark.parametrize(
    ("wishes", "says"),
    [
        ({"bandwidth": 0.0}, "Expected `float` >= 1.0 in 'bandwidth', got 0.0"),
        ({"memory": 0.5}, "Expected `float` >= 1.0 in 'memory', got 0.5"),
        ({"parting": "fly"}, "Invalid enum value in 'parting', got 'fly': known are '', drain, leave"),
    ],
)
def test_a_hello_with_bad_wishes_leaves_nobody_behind(door: Door, wishes: dict[str, object], says: str) -> None:
    with pytest.raises(WireError, match=says):
        door.welcome(**wishes)
    assert list(door.broker.runs.machine.members) == []
    assert door.welcome() == "welcome"


def test_who_was_kicked_before_its_hello_begins_no_session(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """The call itself was admitted, and has its line in the audit log."""
    monkeypatch.setattr(QuietCall, "caller", Caller(name="w", role="worker", key="k"))
    door.broker.names.bar("w", "k", barred=True)
    with pytest.raises(SecurityError, match="'w' was kicked by the broker's owner"):
        door.welcome()
    assert (list(door.broker.runs.machine.members), door.broker.sessions.serves("w")) == ([], False)
    audit = door.broker.home / "audit.jsonl"
    assert not audit.exists() or "session" not in audit.read_text()


def test_a_session_that_can_not_begin_leaves_nobody_behind(door: Door, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever is wrong, and after whatever part of it."""

    def broken(members: list[Member]) -> dict[str, list[str]]:
        raise RuntimeError("a defect")

    with monkeypatch.context() as patch:
        patch.setattr(worker_reports, "version_warnings", broken)
        with pytest.raises(RuntimeError, match="a defect"):
            door.welcome()
    assert (list(door.broker.runs.machine.members), door.broker.sessions.serves("w")) == ([], False)
    assert door.welcome() == "welcome"


def test_a_broker_that_ends_says_goodbye(home: Path) -> None:
    said: list[str] = []
    gone = threading.Event()

    def say(text: str) -> None:
        said.append(text)
        if "is gone" in text:
            gone.set()

    own = Loopback(home, 0, say=say)
    worker = Worker(join(own.ticket("join"), name="late", role="worker"), WorkerOptions(listen="127.0.0.1:0", memory=1e9), print)
    failed: list[str] = []

    def serve() -> None:
        try:
            worker.serve()
        except ConnectionLost as error:
            failed.append(str(error))

    thread = threading.Thread(target=serve)
    thread.start()
    until(lambda: "late" in own.members())
    own.client.close()
    own.broker.close()
    thread.join(PATIENCE)
    worker.close()
    assert gone.wait(PATIENCE)
    assert failed == ["the broker said goodbye: it was ended; when it is started again, join again with its ticket"]
    assert said[-1] == "worker late is gone: this broker was ended"


def test_a_stop_ends_a_text_at_the_next_token(two: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[str] = []

    def stop(self: WorkerHooks) -> bool:
        asked.append(self.run)
        return len(asked) >= 2 + 3  # asked by the leader: after each of two steps, then after each token

    monkeypatch.setattr(WorkerHooks, "stop_requested", stop)
    end = two.run(text_job(steps=2, generate={"prompt": "def ", "tokens": 50}, data={"tokenizer": "bytes"}))
    assert end.result.status == "finished"
    notes = [frame.header["text"] for frame in end.frames if frame.kind == "note"]
    assert [note for note in notes if "of the state" not in note] == ["stopped: the text ends after 3 of its 50 tokens"]
    assert end.result.sample.startswith("def ")
    assert len(asked) == 5
