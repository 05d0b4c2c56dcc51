"""The broker asks for probes, round by round; its table and plans use what is found."""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

from farflung.broker.links import probes
from farflung.broker.links.probes import LinkProbes
from farflung.broker.links.table import LinkFigures, LinkTable
from farflung.cli.cluster import profile as profiling
from farflung.cli.main import app
from farflung.cluster import Device, Topology
from farflung.engines.base import DeviceReport
from farflung.engines.torch.engine import TorchEngine
from farflung.errors import ConnectionLost, FarflungError, InputError
from farflung.messages.commands import Probe as AskProbe
from farflung.messages.conversions.probes import Probe
from farflung.messages.wire_form import encode
from farflung.units import Bytes, FlopsPerSecond
from farflung.wire.frames import Frame
from farflung.worker.links import link_probe
from tests.support.runs.loopback import Loopback, text_folder, text_job


def _devices(*names: str) -> list[Device]:
    return [Device(name=name, memory=Bytes(1e9), speed=FlopsPerSecond(1e9)) for name in names]


class World:
    """Workers that answer probes from a table, at once; an up-link that links share."""

    def __init__(self, beta: dict[tuple[str, str], float], cap: float = 1e12, relays: Collection[set[str]] = ()) -> None:
        self.beta, self.cap, self.relays = beta, cap, relays
        self.asked: list[tuple[str, str]] = []
        self.together: dict[str, list[str]] = {}
        self.probing = LinkProbes(self.send, LinkTable())

    def send(self, name: str, command: AskProbe) -> None:
        peer = command.peer
        self.asked.append((name, peer))
        rate = self.beta.get((name, peer))
        if rate is None:
            self.probing.answer(name, command.question, ConnectionLost("cannot reach it"))
            return
        met = len(self.asked) > len(self.beta) + 0  # the stars come after the pairs
        relay = "hub" if {name, peer} in self.relays else ""
        self.probing.answer(
            name, command.question, Probe(alpha=0.01, beta=min(rate, self.cap / 2 if met else self.cap), relay=relay)
        )


def _full(names: str, rate: float) -> dict[tuple[str, str], float]:
    return {(a, b): rate for a in names for b in names if a != b}


def test_the_broker_asks_for_every_direction_and_for_stars() -> None:
    world = World(_full("abcd", 1e6))
    frames = list(map(encode, world.probing.run([(name, f"at-{name}") for name in "abcd"])))
    assert sorted(world.asked[:12]) == sorted(world.beta)
    assert [frame.header["number"] for frame in frames if frame.kind == "round"] == [1, 2, 3]
    topology = world.probing.table.topology(_devices(*"abcd"))
    assert topology is not None
    assert topology.link("a", "c").bandwidth == 1e6
    assert topology.link("a", "c").latency == 0.01
    assert world.probing.table.uplink("a") is None


def test_a_shared_uplink_shows_in_the_stars() -> None:
    world = World(_full("abc", 1e6), cap=1e6)
    frames = list(map(encode, world.probing.run([(name, name) for name in "abc"])))
    assert {frame.header["name"]: frame.header["rate"] for frame in frames if frame.kind == "uplink"} == dict.fromkeys("abc", 1e6)
    assert world.probing.table.uplink("b") == 1e6


def test_ways_that_meet_at_a_relay_show_no_uplink() -> None:
    """a reaches c through the hub: what it sends to both crosses one hop. The hub's own links do share its up-link."""
    names = ("a", "c", "hub")
    world = World({(x, y): 1e6 for x in names for y in names if x != y}, cap=1e6, relays=[{"a", "c"}])
    world.probing.table.put_uplink("a", 9e5)  # an earlier measurement's
    frames = list(map(encode, world.probing.run([(name, name) for name in names])))
    assert {frame.header["name"]: frame.header["rate"] for frame in frames if frame.kind == "uplink"} == {"hub": 1e6}
    assert [world.probing.table.uplink(name) for name in names] == [None, None, 1e6]


def test_what_was_disturbed_is_probed_again_and_the_best_stays() -> None:
    """The first probe from a to b is slow and unsteady, the second late, the third as it should be; then nobody asks again."""
    answers = [
        Probe(alpha=0.02, beta=4e5, spread=0.4),
        Probe(alpha=0.01, beta=9e5, spread=0.2),
        Probe(alpha=0.03, beta=1e6, spread=0.01),
    ]
    asked: list[tuple[str, str]] = []

    def send(name: str, command: AskProbe) -> None:
        asked.append((name, command.peer))
        found = answers.pop(0) if asked[-1] == ("a", "b") else Probe(alpha=0.01, beta=1e6)
        probing.answer(name, command.question, found)

    probing = LinkProbes(send, LinkTable())
    list(probing.run([("a", "1"), ("b", "2")]))
    assert asked == [("a", "b"), ("b", "a"), ("a", "b"), ("a", "b")]
    assert probing.table.get("a", "b") == LinkFigures(alpha=0.01, beta=1e6)


def test_a_measurement_that_nobody_follows_any_more_leaves_no_worker_profiling() -> None:
    def send(name: str, command: AskProbe) -> None:
        if name == "a":
            probing.answer(name, command.question, Probe(alpha=0.01, beta=1e6))

    probing = LinkProbes(send, LinkTable())
    running = probing.run([(name, name) for name in "abcd"])
    kinds = [encode(next(running)).kind for _ in range(2)]
    assert kinds == ["round", "link"]
    assert any(probing.asks(name) for name in "bcd")
    running.close()  # type: ignore[attr-defined]
    assert not any(probing.asks(name) for name in "abcd")


def test_a_late_answer_of_an_abandoned_measurement_is_none_of_the_next_one() -> None:
    asked: list[int] = []

    def send(name: str, command: AskProbe) -> None:
        asked.append(command.question)
        if len(asked) == 2:  # the second measurement asks the same worker, and the answer to the first question arrives
            probing.answer(name, asked[0], Probe(alpha=9.0, beta=1.0))
        if len(asked) > 1:
            probing.answer(name, command.question, Probe(alpha=0.01, beta=1e6))

    probing = LinkProbes(send, LinkTable())
    members = [("a", "1"), ("b", "2")]
    abandoned = probing.run(members)
    assert encode(next(abandoned)).kind == "round"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(probes, "_PATIENCE", 0.0)
        assert encode(next(abandoned)).kind == "unreachable"
    abandoned.close()  # type: ignore[attr-defined]
    list(probing.run(members))
    assert probing.table.get("a", "b") == LinkFigures(alpha=0.01, beta=1e6)


def test_only_the_worker_that_was_asked_answers() -> None:
    def send(name: str, command: AskProbe) -> None:
        probing.answer(command.peer, command.question, Probe(alpha=9.0, beta=1.0))
        probing.answer(name, command.question, Probe(alpha=0.01, beta=1e6))

    probing = LinkProbes(send, LinkTable())
    list(probing.run([("a", "1"), ("b", "2")]))
    assert probing.table.get("a", "b") == LinkFigures(alpha=0.01, beta=1e6)


def test_who_cannot_be_reached_is_told_and_the_rest_is_measured() -> None:
    beta = _full("abc", 1e6)
    del beta["a", "b"]
    world = World(beta)
    frames = list(map(encode, world.probing.run([(name, name) for name in "abc"])))
    [lost] = [frame for frame in frames if frame.kind == "unreachable"]
    assert (lost.header["from"], lost.header["to"]) == ("a", "b")
    assert len([frame for frame in frames if frame.kind == "link"]) == 5


def test_one_measurement_at_a_time_and_the_gone_are_not_waited_for() -> None:
    silent = LinkProbes(lambda name, frame: None, LinkTable())
    running = map(encode, silent.run([("a", "1"), ("b", "2")]))
    assert next(running).kind == "round"
    with pytest.raises(FarflungError, match="being measured already"):
        next(silent.run([("a", "1"), ("b", "2")]))
    got: list[Frame] = []
    waiting = threading.Thread(target=lambda: got.extend(running))
    waiting.start()
    while waiting.is_alive():
        silent.lost("b")
    assert [frame.kind for frame in got] == ["unreachable", "unreachable"]
    assert "worker b is gone" in got[0].header["cause"]


def test_a_worker_that_did_not_answer_in_time_takes_part_in_no_probe_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probes, "_PATIENCE", 0.0)
    silent = LinkProbes(lambda name, frame: None, LinkTable())
    found = [encode(message).kind for message in silent.run([("a", "1"), ("b", "2")])]
    assert found == ["round", "unreachable", "unreachable"]
    assert not silent.asks("a")
    silent.answer("a", 1, Probe(alpha=0.01, beta=1e6))
    assert silent.table.get("a", "b") is None


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Loopback]:
    patch = pytest.MonkeyPatch()
    patch.setattr(link_probe, "_SECONDS", 0.05)
    report = DeviceReport(name="test", flops_per_second=1e9, launch_seconds=0.0, total_bytes=8 * 10**9, free_bytes=8 * 10**9)
    patch.setattr(TorchEngine, "measure", lambda self, device, peak=None: report)
    place = tmp_path_factory.mktemp("probed")
    text_folder(place)
    with Loopback(place, 2) as own:
        yield own
    patch.undo()


def test_the_command_measures_saves_and_the_broker_plans_with_it(
    cluster: Loopback, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(profiling, "open_client", lambda ticket, home: cluster.client)
    monkeypatch.setattr(cluster.client, "close", lambda: None)
    target = tmp_path / "measured.toml"
    told = CliRunner().invoke(app, ["profile", "--save", str(target)])
    assert told.exit_code == 0, told.output
    assert "measuring, 1 of 1: a and b" in told.output
    assert "Mbit/s" in told.output
    topology = Topology.from_toml(target)
    assert topology.names == ("a", "b")
    assert 0 < topology.link("a", "b").latency < 0.5
    finished = cluster.run(text_job(steps=2))
    used = Topology.from_json((finished.folder / "topology.json").read_text())
    assert used.name == "measured"


def test_one_worker_has_no_link(tmp_path: Path) -> None:
    with Loopback(tmp_path, 0) as alone, pytest.raises(InputError, match="two workers or more, 0 joined"):
        list(alone.client.profile())
