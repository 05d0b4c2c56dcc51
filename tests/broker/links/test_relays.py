"""Runs whose workers can't all dial each other: one behind NAT and one that is open, two behind NAT and a relay, and no relay."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import cast

import pytest

from farflung.broker.links.reachability import Reachability
from farflung.broker.links.relays import Relays
from farflung.broker.links.table import LinkFigures, LinkTable
from farflung.cluster import Topology
from farflung.engines.base import DeviceReport
from farflung.engines.torch.engine import TorchEngine
from farflung.errors import ConnectionLost
from farflung.messages.commands import Reach, Relay
from farflung.messages.reports import Relayed
from farflung.messages.schema import Message
from farflung.messages.wire_form import encode
from farflung.protocol.events import Offer
from farflung.protocol.members import Member
from farflung.telemetry import RunFolder
from farflung.telemetry.records import RelayedRecord
from farflung.units import BytesPerSecond, Seconds
from farflung.web.reports.run import load_run
from farflung.web.reports.tables import links, relays
from farflung.worker.links import link_probe
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, plainly, same, states_of, text_folder, text_job

PATIENCE = 60.0


@pytest.fixture(autouse=True)
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    report = DeviceReport(name="test", flops_per_second=1e9, launch_seconds=0.0, total_bytes=8 * 10**9, free_bytes=8 * 10**9)
    monkeypatch.setattr(TorchEngine, "measure", lambda self, device, peak=None: report)
    monkeypatch.setattr(link_probe, "_SECONDS", 0.05)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    text_folder(tmp_path)
    return tmp_path


def cluster(place: Path, closed: str, opened: str) -> Loopback:
    """Workers ``closed`` (they don't listen), then ``opened``."""
    own = Loopback(place, 0)
    for name in closed:
        own.add(name, listen="")
    for name in opened:
        own.add(name)
    return own


def bit_equal(own: Loopback, **changes: object) -> tuple[object, ...]:
    """Train a tiny job on three stages; nothing may differ from a plain loop. The run, and its plan's text."""
    job = text_job(steps=2, plan={"planner": "equal_number"}, **changes)
    finished = own.run(job)
    assert finished.result.status == "finished", finished.result.cause
    module, plain = plainly(job, own.home)
    assert tuple(finished.losses) == tuple(plain.losses)
    kept, trained = states_of(finished), module.state_dict()
    assert same(kept, {name: trained[name].numpy() for name in kept}) == []
    [planned] = [frame for frame in finished.frames if frame.kind == "planned"]
    return finished, str(planned.header["explanation"])


def test_two_that_cannot_be_dialled_train_through_a_third(place: Path) -> None:
    with cluster(place, "ab", "r") as own:
        finished, told = bit_equal(own)
        assert "a and b cannot connect directly: their traffic goes through r (1 Gbit/s, 2 ms there; 1 Gbit/s, 2 ms back)" in told
        assert "a -> b through r" in told
        topology = Topology.from_json(RunFolder(finished.folder).topology.read_text())
        assert topology.via == {("a", "b"): ("r",)}
        assert [device.nat for device in topology.devices] == ["nat of a", "nat of b", ""]
        while len(RunFolder(finished.folder).read_relayed()) < 2:
            threading.Event().wait(0.01)  # the relay tells what it carried when the run is over
        carried = {(one.source, one.target): one.nbytes for one in RunFolder(finished.folder).read_relayed()}
        assert min(carried["a", "b"], carried["b", "a"]) > 1000
        run = load_run(finished.folder)
        table = relays(run)
        assert table is not None
        assert [row[:5] for row in table.rows] == [("r", "a", "b", "2 ms", "1 Gbit/s"), ("r", "b", "a", "2 ms", "1 Gbit/s")]
        assert any("through r" in row[1] for row in links(run).rows)
        assert any("link to b through r: " in line for line in own.said["a"]), own.said
        assert any(line.startswith(f"run {finished.run}: relays between a and b") for line in own.said["r"])
        assert any(line.startswith(f"run {finished.run}: relayed ") for line in own.said["r"])
        own.workers["r"].stop()
        own.threads[2].join(PATIENCE)
        until(lambda: "r" not in own.members())
        end = own.run(text_job(steps=1, workers=2, plan={"planner": "equal_number"}))
        assert end.result.status == "failed"
        assert "devices 'a' and 'b' can't reach each other: neither can dial the other" in end.result.cause


def test_an_idle_worker_relays_and_one_that_is_open_is_dialled(place: Path) -> None:
    with cluster(place, "ab", "rs") as own:
        _, told = bit_equal(own)
        assert "goes through r (" in told
        assert "; backup: s)" in told


def test_what_a_relay_carries_is_measured(place: Path) -> None:
    with cluster(place, "ab", "r") as own:
        frames = list(map(encode, own.client.profile()))
        through = {(frame.header["from"], frame.header["to"]) for frame in frames if frame.header.get("relay") == "r"}
        assert through == {("a", "b"), ("b", "a")}
        topology = Topology.from_json(str(frames[-1].header["topology"]))
        assert topology.via == {("a", "b"): ("r",)}
        table = own.broker.network.table
        found = table.get("a", "b")
        assert found is not None
        assert topology.link("a", "b").bandwidth == min(found.beta, table.uplink("a") or found.beta)
        saved = Topology.from_text(topology.to_toml())
        assert [device.nat for device in saved.devices] == ["nat of a", "nat of b", ""]


def test_a_submitter_with_data_feeds_a_worker_that_it_cannot_dial(place: Path) -> None:
    import numpy as np
    import torch

    from farflung import train

    with cluster(place, "a", "r") as own:
        torch.manual_seed(0)
        module = torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

        class Loss(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.inner = module

            def forward(self, x: torch.Tensor) -> torch.Tensor:
                return self.inner(x).square().mean()

        def batch(step: int, index: int) -> tuple[torch.Tensor]:
            return (torch.from_numpy(np.random.default_rng(step).normal(size=(3, 4)).astype(np.float32)),)

        found = train(Loss(), batch, steps=2, micro_batches=2, lr=0.1, workers=2, ticket=str(own.ticket("submit")))
        assert len(found.losses) == 2


# -- parts ----------------------------------------------------------------------------------------------------------------


def members(**addresses: str) -> list[Member]:
    return [Member(name=name, address=address, offer=Offer(memory=1.0, speed=1.0)) for name, address in addresses.items()]


class Wires:
    """Workers that answer at once whom they can dial, by a table."""

    def __init__(self, can: set[tuple[str, str]], broker: str = "") -> None:
        self.can, self.asked = can, []
        self.reaching = Reachability(self.send, lambda name, address: self.dial(name), patience=PATIENCE)
        self.broker = broker

    def dial(self, name: str) -> None:
        if name not in self.broker:
            raise ConnectionLost("no answer in time")

    def send(self, name: str, command: Message) -> None:
        assert isinstance(command, Reach)
        self.asked.append((name, *command.peers))
        self.reaching.answer(name, command.question, {peer: (name, peer) in self.can for peer in command.peers})

    def join(self, everybody: list[Member]) -> None:
        for member in everybody:
            self.reaching.joined(member.name, member.address)


def test_only_doubtful_pairs_are_asked_about_and_once() -> None:
    everybody = members(a="1", b="2", c="3", r="4", s="5")
    wires = Wires({("a", "r"), ("b", "r"), ("c", "r"), ("a", "s"), ("b", "s"), ("c", "s"), ("c", "b")}, broker="rs")
    wires.join(everybody)
    assert wires.reaching.apart(everybody) == {("a", "b"), ("a", "c")}
    assert wires.reaching.can_dial("c", "b")
    assert not wires.reaching.can_dial("b", "c")
    assert wires.reaching.can_dial("r", "s")  # nobody asked
    assert wires.reaching.nats(everybody) == {"a": "nat of a", "b": "nat of b", "c": "nat of b", "r": "", "s": ""}
    assert not any("r" in asked[0] or "s" in asked[0] for asked in wires.asked)
    wires.asked.clear()
    assert wires.reaching.apart(everybody) == {("a", "b"), ("a", "c")}
    assert wires.asked == []
    wires.reaching.joined("b", "9")
    wires.reaching.apart(everybody)
    assert wires.asked


def test_who_has_no_address_is_not_dialled_and_the_silent_are_not_waited_for() -> None:
    everybody = members(a="", b="2")
    wires = Wires(set(), broker="")
    wires.join(everybody)
    assert wires.reaching.apart(everybody) == {("a", "b")}
    assert wires.asked == [("a", "b")]
    silent = Reachability(lambda name, frame: gone(), None, patience=PATIENCE)
    pair = members(a="", b="2")
    for member in pair:
        silent.joined(member.name, member.address)

    def gone() -> None:
        threading.Thread(target=silent.lost, args=("a",)).start()

    assert silent.apart(pair) == {("a", "b")}


def test_relays_are_told_what_is_new_and_what_is_over() -> None:
    sent: list[tuple[str, object]] = []
    book = Relays(lambda name, frame: sent.append((name, cast(Relay, frame).pairs)))
    topology = Topology.preset("homogeneous-4")
    a, b, r, s = topology.names
    book.assign("run", _via(topology, {(a, b): (r, s)}), [a, b])
    assert sent == [(r, ((a, b),)), (s, ((a, b),))]
    sent.clear()
    book.assign("run", _via(topology, {(a, b): (s,)}), [a, b])
    assert sent == [(r, ()), (s, ((a, b),))]
    assert book.report(r, Relayed(run="run", carried=((a, b, 7),))) == [RelayedRecord(relay=r, source=a, target=b, nbytes=7)]
    assert book.report(s, Relayed(run="run", carried=((a, b, 9),))) == [], "nobody asked it yet"
    book.assign("run", None, ())
    book.lost(s)
    book.assign("x", _via(topology, {(a, b): (s,)}), [a, b])
    book.assign("x", None, ())
    assert len(book.report(s, Relayed(run="x", carried=((a, b, 5),)))) == 1


def _via(topology: Topology, via: dict[tuple[str, str], tuple[str, ...]]) -> Topology:
    from dataclasses import replace

    return replace(topology, via=via)


def test_figures_through_a_relay_count_for_pairs_that_need_it_only() -> None:
    devices = Topology.preset("homogeneous-2").devices
    a, b = (device.name for device in devices)
    table = LinkTable()
    for way in ((a, b), (b, a)):
        table.put(*way, LinkFigures(alpha=0.1, beta=1e6, relay="r"))
    assert table.topology(devices) is None
    found = table.topology(devices, apart={(a, b)})
    assert found is not None
    assert found.link(a, b).bandwidth == BytesPerSecond(1e6)
    assert found.link(b, a).latency == Seconds(0.1)
    assert table.relays([(a, b), (a, "c")]) == {(a, b): "r"}


def test_answers_belong_to_their_question() -> None:
    """Late answers, those of others and those that say nothing of a member are not taken for what was asked."""
    asked: list[int] = []

    def send(name: str, command: Message) -> None:
        assert isinstance(command, Reach)
        question = command.question
        asked.append(question)
        reaching.answer(name, question - 1, {"b": False, "c": False})  # to an older question
        reaching.answer("z", question, {"b": False, "c": False})
        reaching.answer(name, question, {"b": True} if len(asked) == 1 else {"c": True})

    reaching = Reachability(send, None, patience=PATIENCE)
    for name in "abc":
        reaching.joined(name, "" if name == "a" else "1")
    places = {"b": "1", "c": "1"}
    reaching.ask([("a", "b"), ("a", "c")], places)
    assert reaching.known == {("a", "b"): True}
    reaching.ask([("a", "b"), ("a", "c")], places)
    assert reaching.known == {("a", "b"): True, ("a", "c"): True}
    assert len(set(asked)) == 2
