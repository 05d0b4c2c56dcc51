"""Who leaves by its owner's wish loses no step; who is silent is given up, and not heard when it comes back."""

from __future__ import annotations

import asyncio
import re
import threading
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.broker import sessions
from farflung.broker.sessions import Sessions
from farflung.client.connection import Client
from farflung.engines.base import DeviceReport
from farflung.engines.torch.engine import TorchEngine
from farflung.errors import InputError, SecurityError
from farflung.job import JobSpec
from farflung.messages.commands import OwnerRequest
from farflung.protocol.leases import Leases
from farflung.security import new_key
from farflung.telemetry import RecoveryRecord, RunFolder, StepRecord
from farflung.transports.tcp.adaptation import Cap
from farflung.units import Seconds
from farflung.wire.frames import Frame
from farflung.worker.membership import Membership, join
from farflung.worker.options import WorkerOptions
from farflung.worker.owner_limits import OwnerLimits, OwnerLimitsFile, known_workers
from farflung.worker.reconnect import Service
from tests.support.network.quiet import until
from tests.support.network.session_calls import QuietCall, Said
from tests.support.runs.loopback import Finished, Loopback, same, text_folder, text_job

STEPS = 10


def job() -> JobSpec:
    return text_job(steps=STEPS, checkpoint={"every": 100})


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("leaving")
    text_folder(folder)
    return folder


@pytest.fixture(scope="module")
def truth(place: Path) -> Finished:
    with Loopback(place, 2, folder="undisturbed") as cluster:
        return cluster.run(job())


def states(cluster: Loopback) -> dict[str, str]:
    members = cluster.client.status()["members"]
    assert isinstance(members, list)
    return {str(member["name"]): str(member["state"]) for member in members}


def test_who_leaves_is_not_told_to_be_given_up(place: Path, tmp_path: Path) -> None:
    told: list[str] = []
    with Loopback(place, 1, folder=str(tmp_path), say=told.append) as cluster:
        cluster.workers["a"].announce({"parting": "leave"})
        until(lambda: not cluster.members())
        cluster.threads[0].join(60)
        assert cluster.client.status()["gone"] == [{"name": "a", "generation": 1, "cause": "it left"}]
    assert "worker a left" in told
    assert not any("given this worker up" in text for text in cluster.said["a"]), cluster.said


@pytest.mark.parametrize("wish", [{"parting": "leave"}, {"paused": True}], ids=["leaves", "is-paused"])
def test_a_run_is_handed_over_and_no_step_is_made_again(
    place: Path, tmp_path: Path, truth: Finished, wish: Mapping[str, Any]
) -> None:
    seen: list[dict[str, str]] = []
    with Loopback(place, 2, folder=str(tmp_path)) as cluster:

        def act(run: str, record: StepRecord) -> None:
            if record.step == 3:
                seen.append(states(cluster))
                cluster.workers["b"].announce(wish)
                until(lambda: states(cluster).get("b") != "active")

        found = cluster.run(job(), on_record=act, anybody=True)
        after = states(cluster)
    assert found.result.status == "finished", found.result.cause
    assert seen == [{"a": "active", "b": "active"}]
    assert after == ({"a": "standby"} if "parting" in wish else {"a": "standby", "b": "standby"})
    (recovery,) = [record for record in RunFolder(found.folder).committed() if isinstance(record, RecoveryRecord)]
    assert (recovery.replayed, recovery.devices) == (0, ("a",))
    assert recovery.cause == f"worker b {'leaves' if 'parting' in wish else 'is paused'}"
    assert found.losses == truth.losses, "each step was made once"
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []
    notes = [frame.header["text"] for frame in found.frames if frame.kind == "note"]
    assert f"{recovery.cause}; other workers take over its part" in notes
    (ended,) = [line for line in cluster.said["b"] if line.endswith(" on this worker")]
    assert re.search(r": ended after step \d+ on this worker$", ended)


def test_who_drains_ends_its_run_first(place: Path, tmp_path: Path, truth: Finished) -> None:
    with Loopback(place, 2, folder=str(tmp_path)) as cluster:

        def act(run: str, record: StepRecord) -> None:
            if record.step == 3:
                cluster.workers["b"].announce({"parting": "drain"})
                until(lambda: states(cluster)["b"] != "active")
            if record.step == 6:
                assert states(cluster)["b"] == "draining"

        found = cluster.run(job(), on_record=act)
        until(lambda: "b" not in states(cluster))
        gone = cluster.client.status()["gone"]
    assert found.losses == truth.losses
    assert isinstance(gone, list)
    assert [(one["name"], one["cause"]) for one in gone] == [("b", "it left")]


class Silent(Leases):
    """The lease of ``who`` has run out, no other does, whatever the time is and whatever is heard."""

    who = "b"

    def expired(self, now: float) -> list[tuple[str, int]]:
        return [(name, lease.generation) for name, lease in self._leases.items() if name == self.who]


def test_a_silent_worker_is_given_up_and_not_heard_when_it_comes_back(place: Path, tmp_path: Path) -> None:
    with Loopback(place, 2, folder=str(tmp_path)) as cluster:
        table = cluster.broker.sessions
        zombie = table.session("b")
        assert zombie is not None
        leases = Silent(Seconds(4.0))
        now = time.monotonic()
        leases.grant("a", zombie.generation - 1, now)
        leases.grant("b", zombie.generation, now - 100.0)
        table.leases = leases
        cluster.broker.serving.check_leases(now)  # if the broker's own thread was first, nothing happens here
        until(lambda: "b" not in states(cluster))
        assert list(states(cluster)) == ["a"]
        gone = cluster.client.status()["gone"]
        assert isinstance(gone, list)
        assert gone[0]["cause"] == "no message from it for 4.00 s: it is frozen, or cut off"
        heard: list[object] = []

        deaf: Any = SimpleNamespace(report=lambda name, frame: heard.append(frame), lost=lambda name, cause: heard.append(name))
        late: Any = Said([Frame("measured", {"speed": 1e9, "factor": 1.0, "overhead": 0.0})])
        call: Any = QuietCall()
        asyncio.run(Sessions(table, deaf, print).read(zombie, call, late))
        assert heard == [], "the old session is over, whatever comes from it"
        while cluster.threads[1].is_alive():
            cluster.threads[1].join()
        assert any("the broker has given this worker up" in line for line in cluster.said["b"])
        leases.who = ""
        cluster.add("b")
        back = table.session("b")
        assert back is not None
        assert back.generation > zombie.generation


def test_generations_go_on_in_the_next_life_of_the_broker(place: Path, tmp_path: Path) -> None:
    with Loopback(place, 1, folder=str(tmp_path)) as cluster:
        first = cluster.broker.sessions.leases.generation("a")
    with Loopback(place, 1, folder=str(tmp_path)) as cluster:
        assert cluster.broker.sessions.leases.generation("a") > first


def test_a_worker_notices_that_its_broker_is_silent(place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "BEATS", 1e-9)  # without a beat
    with Loopback(place, 0, folder=str(tmp_path)) as cluster:
        leases = cluster.broker.sessions.leases
        leases.length = Seconds(0.2)  # told to the worker
        monkeypatch.setattr(leases, "expired", lambda now: [])
        cluster.add("a")
        cluster.threads[0].join(60)
        assert not cluster.threads[0].is_alive()
        assert any("no message from the broker for" in line for line in cluster.said["a"])


def test_owners_speak_through_the_broker(place: Path, tmp_path: Path) -> None:
    with Loopback(place, 0, folder=str(tmp_path)) as cluster:
        told: list[OwnerRequest] = []
        done = threading.Event()

        def hear(limits: OwnerRequest) -> None:
            told.append(limits)
            done.set()

        cluster.add("a", on_owner=hear)
        cluster.client.wish("a", paused=True)  # the same key
        assert done.wait(60)
        assert told == [OwnerRequest(paused=True)]
        stranger = Client(join(cluster.ticket("submit"), name="s", role="client", key=new_key()))
        owner = Client(join(cluster.ticket("owner"), name="o", role="client", key=new_key()))
        with pytest.raises(SecurityError, match="worker 'a' belongs to somebody else: only its owner, or the broker's owner"):
            stranger.wish("a", paused=True)
        owner.wish("a", parting="leave")
        with pytest.raises(InputError, match="no worker called 'z' is connected; there are a"):
            owner.wish("z", paused=True)
        stranger.close()
        owner.close()


@pytest.fixture
def service(place: Path, tmp_path: Path) -> Iterator[tuple[Loopback, Service, OwnerLimitsFile, threading.Thread]]:
    with Loopback(place, 0, folder=str(tmp_path / "broker")) as cluster:
        limits = OwnerLimitsFile(tmp_path / "members", "w")
        limits.begin({"bandwidth": 5e6})
        options = WorkerOptions(listen="127.0.0.1:0", memory=1e9)
        enter = lambda: join(cluster.ticket("join"), name="w", role="worker")  # noqa: E731
        made = Service(enter, options, lambda line: None, limits)
        thread = threading.Thread(target=made.run, args=(Seconds(5.0),), daemon=True)
        thread.start()
        until(lambda: "w" in states(cluster))
        yield cluster, made, limits, thread
        made.stop()
        thread.join(30)


def joining(cluster: Loopback) -> object:
    return cluster.client.status()["joining"]


def test_a_worker_whose_device_is_not_there_is_not_joining(place: Path, tmp_path: Path) -> None:
    with Loopback(place, 0, folder=str(tmp_path / "broker")) as cluster:
        lines: list[str] = []
        enter = lambda: join(cluster.ticket("join"), name="w", role="worker")  # noqa: E731
        with pytest.raises(InputError, match="device 'xpu:7' is not available here: there is "):
            Service(enter, WorkerOptions(device="xpu:7"), lines.append).run(Seconds(5.0))
        assert any(re.match("w: registered with the broker at ", line) for line in lines)
        assert joining(cluster) == []


def test_a_worker_that_ends_before_its_session_is_not_joining(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Loopback(place, 0, folder=str(tmp_path / "broker")) as cluster:

        def fails(self: TorchEngine, device: str, peak: float | None = None) -> DeviceReport:
            assert joining(cluster) == ["w"]
            raise RuntimeError("no kernel image is available")

        monkeypatch.setattr(TorchEngine, "measure", fails)
        enter = lambda: join(cluster.ticket("join"), name="w", role="worker")  # noqa: E731
        with pytest.raises(InputError, match="no kernel image is available"):
            Service(enter, WorkerOptions(device="cpu"), lambda line: None).run(Seconds(5.0))
        assert joining(cluster) == []


def test_a_worker_that_is_stopped_before_its_session_is_not_joining(place: Path, tmp_path: Path) -> None:
    with Loopback(place, 0, folder=str(tmp_path / "broker")) as cluster:

        def enter() -> Membership:
            member = join(cluster.ticket("join"), name="w", role="worker")
            made.stop()
            assert joining(cluster) == ["w"]
            return member

        made = Service(enter, WorkerOptions(listen="127.0.0.1:0", memory=1e9), lambda line: None)
        made.run(Seconds(5.0))
        assert joining(cluster) == []


def test_a_file_says_what_the_owner_wants(service: tuple[Loopback, Service, OwnerLimitsFile, threading.Thread]) -> None:
    cluster, made, limits, thread = service
    looking = threading.Thread(target=made.watch, daemon=True)
    looking.start()

    def member() -> Mapping[str, Any]:
        members = cluster.client.status()["members"]
        assert isinstance(members, list)
        return dict(members[0])

    assert (member()["paused"], member()["bandwidth"]) == (False, 5e6)
    assert cluster.broker.network.table.uplink("w") == 5e6
    limits.change(paused=True, memory=5e8)
    until(lambda: member()["paused"])
    assert member()["memory"] == 5e8
    cluster.client.close()
    limits.change(parting="leave")
    thread.join(60)
    assert not thread.is_alive()


def test_the_first_interrupt_hands_over_and_the_second_ends(
    service: tuple[Loopback, Service, OwnerLimitsFile, threading.Thread],
) -> None:
    _, made, _, thread = service
    made.part()
    thread.join(60)
    assert not thread.is_alive()
    made.part()


def test_owner_limits(tmp_path: Path) -> None:
    night = OwnerLimits(hours="22:00-7:30")
    assert [night.rests(hour * 60) for hour in (21, 22, 23, 0, 7, 8)] == [True, False, False, False, False, True]
    assert night.rests(7 * 60 + 30)
    day = OwnerLimits(hours="08:00-24:00", paused=True)
    assert day.rests(10 * 60)
    assert day.in_force(0) == {"paused": True, "parting": "", "bandwidth": None}
    assert str(OwnerLimits(paused=True, hours="8:00-9:00", memory=4e9, bandwidth=2.5e6, parting="drain")) == (
        "paused, parting: drain, works from 8:00 to 9:00, memory 4 GB, sends at most 20 Mbit/s"
    )
    assert str(OwnerLimits()) == "no limits"
    with pytest.raises(InputError, match="hours must be like 22:00-07:00, got 'always'"):
        OwnerLimits(hours="always")
    with pytest.raises(InputError, match="unknown way to go 'fly': known are drain, leave"):
        OwnerLimits(parting="fly")
    with pytest.raises(InputError, match=r"a limit of bandwidth must be at least 8 bit/s, got 0 bit/s: farflung pause lets"):
        OwnerLimits(bandwidth=0.0)
    with pytest.raises(InputError, match=r"a limit of memory must be at least 1 B, got 0\.5 B: farflung pause lets"):
        OwnerLimits(memory=0.5)
    kept = OwnerLimitsFile(tmp_path, "attic")
    assert kept.read() == OwnerLimits()
    kept.change(paused=True, parting="drain", pid=1)
    assert kept.begin({"hours": None, "memory": 1e9}).paused, "a reboot does not wake a machine that was paused"
    assert (kept.read().parting, kept.read().memory, kept.runs) == ("", 1e9, True)
    kept.end()
    assert not kept.runs
    assert [one.name for one in known_workers(tmp_path)] == ["attic"]
    kept.path.write_text('{"bandwidth": 0.0}')
    with pytest.raises(InputError, match=r"attic\.json can't be read: a limit of bandwidth .*; delete it to begin anew"):
        kept.read()
    kept.path.write_text("{")
    with pytest.raises(InputError, match=r"attic\.json can't be read: .*; delete it to begin anew"):
        kept.read()


def test_a_cap_holds_the_mean() -> None:
    cap = Cap()
    cap.spend(1 << 30, 0.0)
    assert cap.pause(0.0) == 0.0, "no cap"
    cap.limit(1000.0)
    now = 0.0
    for _ in range(50):
        now += cap.pause(now)
        cap.spend(100, now)
    assert now == pytest.approx(4.9)
    cap.limit(None)
    assert cap.pause(now) == 0.0


def test_a_capped_worker_sends_no_faster(place: Path, tmp_path: Path) -> None:
    with Loopback(place, 2, folder=str(tmp_path)) as cluster:
        a, b = cluster.workers["a"], cluster.workers["b"]
        a.announce({"bandwidth": 2e6})
        a.endpoint.connect("b", b.endpoint.address)
        b.endpoint.connect("a", a.endpoint.address)  # it takes frames of those only whom it knows
        begin = time.monotonic()
        for _ in range(4):
            a.endpoint.send("b", Frame("probe", {}, (bytes(150_000),)))
        cap = a.endpoint.cap
        assert cap.free_at >= begin + 0.3, "600 kB at 2 MB/s"
        cap.free_at = begin + 1e6
        later = a.endpoint.post("b", Frame("probe"))
        link = a.endpoint.link_to("b", incoming=False)
        assert not any(link.waits(one) and not one.state_due for one in link.connections)
        assert not later.done()
        a.announce({"bandwidth": None})
        later.result()
