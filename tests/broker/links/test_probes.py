"""Links are measured: probes over links of known rate, the broker's rounds, figures from training, and plans that use them."""

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
from farflung.transports.base import LinkStatistics, Urgency
from farflung.units import Bytes, FlopsPerSecond, Seconds
from farflung.wire.frames import Frame
from farflung.worker.links import link_probe
from farflung.worker.links.link_probe import _usual_rate, probe_link
from tests.support.loopback import Loopback, text_folder, text_job, until


def _devices(*names: str) -> list[Device]:
    return [Device(name=name, memory=Bytes(1e9), speed=FlopsPerSecond(1e9)) for name in names]


class Slow:
    """A link in virtual time: frames leave one after another at ``rate``, arrive ``latency`` later and are confirmed as late."""

    def __init__(self, latency: float, rate: float) -> None:
        self.latency, self.rate = latency, rate
        self.time = self.free = 0.0

    def now(self) -> float:
        return self.time

    def statistics(self) -> dict[str, LinkStatistics]:
        return {}

    def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Confirmed:
        self.free = max(self.free, self.time) + sum(len(section) for section in frame.sections) / self.rate
        return Confirmed(self, self.free + 2 * self.latency)


class Confirmed:
    """A future whose result takes virtual time."""

    def __init__(self, link: Slow, at: float) -> None:
        self._link, self._at = link, at

    def result(self, timeout: float = 1e9) -> None:
        if self._at > self._link.time + timeout:
            self._link.time += timeout
            raise TimeoutError
        self._link.time = max(self._link.time, self._at)


@pytest.mark.parametrize(("latency", "rate"), [(0.02, 1e6), (0.025, 12.5e6), (0.01, 125e6), (0.05, 62.5e6), (0.1, 1e5)])
def test_a_probe_finds_latency_and_rate(latency: float, rate: float) -> None:
    link = Slow(latency, rate)
    found = probe_link(link, "b", link.now)  # type: ignore[arg-type]
    assert found.alpha == pytest.approx(latency)
    assert found.beta == pytest.approx(rate, rel=0.05)
    assert link.time < 12.0


class HeldUp(Slow):
    """Programs answer 5 ms late; the system tells what it saw."""

    def statistics(self) -> dict[str, LinkStatistics]:
        return {"b": LinkStatistics(alpha=Seconds(self.latency - 0.005))}


def test_what_the_system_saw_counts_where_programs_answer_late() -> None:
    link = HeldUp(0.025, 12.5e6)
    assert probe_link(link, "b", link.now).alpha == pytest.approx(0.02)  # type: ignore[arg-type]


class Opening(Slow):
    """A link whose window opens for 6 s, and which tells what has arrived."""

    OPEN = 6.0

    def statistics(self) -> dict[str, LinkStatistics]:
        return {"b": LinkStatistics(confirmed=int(self._carried(self.time)))}

    def post(self, peer: str, frame: Frame, urgency: Urgency = Urgency.VALUES) -> Confirmed:
        self.sent = max(getattr(self, "sent", 0.0), self._carried(self.time)) + sum(len(section) for section in frame.sections)
        return Confirmed(self, self._when(self.sent) + 2 * self.latency)

    def _carried(self, time: float) -> float:
        """Bytes until ``time`` from rates that grow from nothing, if there is always something to send."""
        grown = min(time, self.OPEN)
        return self.rate * (grown * grown / 2 / self.OPEN + max(time - self.OPEN, 0.0))

    def _when(self, nbytes: float) -> float:
        half = self.rate * self.OPEN / 2
        return (2 * self.OPEN * nbytes / self.rate) ** 0.5 if nbytes < half else self.OPEN + (nbytes - half) / self.rate


def test_a_probe_waits_until_the_window_is_open() -> None:
    link = Opening(0.045, 6e6)
    assert probe_link(link, "b", link.now).beta == pytest.approx(6e6, rel=0.05)  # type: ignore[arg-type]
    assert link.time < 14.0


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
            self.probing.answer(name, peer, ConnectionLost("cannot reach it"))
            return
        met = len(self.asked) > len(self.beta) + 0  # the stars come after the pairs
        relay = "hub" if {name, peer} in self.relays else ""
        self.probing.answer(name, peer, Probe(alpha=0.01, beta=min(rate, self.cap / 2 if met else self.cap), relay=relay))


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
        probing.answer(name, command.peer, found)

    probing = LinkProbes(send, LinkTable())
    list(probing.run([("a", "1"), ("b", "2")]))
    assert asked == [("a", "b"), ("b", "a"), ("a", "b"), ("a", "b")]
    assert probing.table.get("a", "b") == LinkFigures(alpha=0.01, beta=1e6)


def test_the_usual_rate_is_that_of_undisturbed_time() -> None:
    """A link of 1 MB/s that carries half of it in every other second of ten."""
    marks, sent = [(0.0, 0)], 0.0
    for tick in range(1, 1001):
        sent += 1e4 if tick // 100 % 2 else 0.5e4
        marks.append((tick / 100, int(sent)))
    rate, spread = _usual_rate(marks, 0.5)
    assert rate == pytest.approx(1e6, rel=0.02)
    assert spread > 0.3
    steady = [(tick / 100, tick * 10_000) for tick in range(1000)]
    assert _usual_rate(steady, 0.5) == (pytest.approx(1e6, rel=1e-3), pytest.approx(0.0, abs=1e-3))


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
    silent.answer("a", "b", Probe(alpha=0.01, beta=1e6))
    assert silent.table.get("a", "b") is None


def test_the_table_keeps_its_figures_and_survives_damage(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    table = LinkTable(path)
    table.put("a", "b", LinkFigures(alpha=0.02, beta=5e6))
    table.put_uplink("a", 6e6)
    again = LinkTable(path)
    assert again.get("a", "b") == LinkFigures(alpha=0.02, beta=5e6)
    assert again.uplink("a") == 6e6
    topology = again.topology(_devices("a", "b"))
    assert topology is not None
    assert topology.link("b", "a").latency == 1e-3  # nobody measured it
    assert [device.uplink for device in topology.devices] == [6e6, None]
    saved = tmp_path / "measured.toml"
    saved.write_text(topology.to_toml())
    assert Topology.from_toml(saved) == topology
    assert again.topology(_devices("c", "d")) is None
    path.write_text("{damaged")
    assert LinkTable(path).get("a", "b") is None


def test_what_training_says_is_written_a_moment_later_and_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    figures = LinkFigures(alpha=0.02, beta=5e6, source="training")
    monkeypatch.setattr(LinkTable, "LATER", 1e6)
    late = LinkTable(tmp_path / "late.json")
    late.put("a", "b", figures)
    late.put("b", "a", figures)
    assert not (tmp_path / "late.json").exists()
    late.close()
    assert LinkTable(tmp_path / "late.json").get("b", "a") == figures
    late.put("a", "c", figures)  # of a session that ends after the table
    assert LinkTable(tmp_path / "late.json").get("a", "c") is None
    monkeypatch.setattr(LinkTable, "LATER", 0.0)
    soon = LinkTable(tmp_path / "soon.json")
    soon.put("a", "b", figures)
    until((tmp_path / "soon.json").exists)
    soon.close()


def test_a_table_that_cannot_be_written_is_told_once_and_goes_on(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    said: list[str] = []
    table = LinkTable(tmp_path / "file" / "links.json", said.append)
    for name in "bcd":
        table.put("a", name, LinkFigures(alpha=0.02, beta=5e6))
    assert table.get("a", "d") is not None
    (line,) = said
    assert line.startswith(f"warning: {tmp_path / 'file' / 'links.json'} can't be written: ")
    assert line.endswith("; what is measured of links is kept in memory only")


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
