"""Fresh measurements before a plan: one after another on a machine, and nobody is waited for in vain."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from farflung.broker.planning.device_measurements import DeviceMeasurements
from farflung.cluster import Topology
from farflung.engines.base import DeviceReport
from farflung.engines.torch.engine import TorchEngine
from farflung.messages.commands import Measure
from farflung.protocol.events import HostMeasured, MemberMeasured, Offer
from farflung.protocol.members import Member
from farflung.transports.addresses import host_id
from tests.support.runs.loopback import Loopback, text_job

PATIENCE = 30.0


def members(**hosts: str) -> list[Member]:
    return [Member(name=name, address="x", offer=Offer(memory=1.0, speed=1.0, host=host)) for name, host in hosts.items()]


def measured(name: str) -> MemberMeasured:
    return MemberMeasured(name=name, speed=2.0, factor=0.5, overhead=0.0)


class Workers:
    """They answer when they are told to; who is asked is kept."""

    def __init__(self, absent: str = "") -> None:
        self.asked: list[str] = []
        self.threads: list[int] = []
        self.bell = threading.Semaphore(0)
        self.measuring = DeviceMeasurements(self.send, lambda name: name != absent, PATIENCE)

    def send(self, name: str, command: Measure) -> None:
        self.asked.append(name)
        self.threads.append(command.threads)
        self.bell.release()

    def start(self, group: list[Member]) -> threading.Thread:
        thread = threading.Thread(target=self.measuring.measure, args=(group, 3))
        thread.start()
        return thread


def test_workers_of_one_machine_measure_one_after_another() -> None:
    workers = Workers()
    first, second = workers.start(members(a="one", b="one")), None
    assert workers.bell.acquire(timeout=PATIENCE)
    assert workers.asked == ["a"]
    second = workers.start(members(c="one", d="two"))  # another run, planned at the same moment
    assert workers.bell.acquire(timeout=PATIENCE)
    assert sorted(workers.asked) == ["a", "d"], "another machine is not waited for"
    for answering, then in (("a", "b"), ("b", "c")):
        workers.measuring.answer(measured(answering))
        assert workers.bell.acquire(timeout=PATIENCE)
        assert workers.asked[-1] == then
    workers.measuring.answer(measured("c"))
    workers.measuring.answer(measured("d"))
    for thread in (first, second):
        thread.join(PATIENCE)
        assert not thread.is_alive()
    assert set(workers.threads) == {3}, "measured as the job will compute"


def test_nobody_waits_for_who_is_gone() -> None:
    workers = Workers(absent="a")
    thread = workers.start(members(a="one", b="one"))
    assert workers.bell.acquire(timeout=PATIENCE)
    assert workers.asked == ["b"]
    workers.measuring.lost("b")
    thread.join(PATIENCE)
    assert not thread.is_alive()
    DeviceMeasurements(lambda name, frame: None, lambda name: True, patience=0.0).measure(members(a="one"), 1)


def shared(*names: str, generation: int = 0) -> list[Member]:
    offer = Offer(memory=1.0, speed=1.0, host="one", processors=("0", "1"))
    return [Member(name=name, address="x", offer=offer, generation=generation) for name in names]


class Together:
    """Workers that answer at once; those of one question are kept together."""

    def __init__(self, share: float | None, disturbed: Sequence[float] = ()) -> None:
        """``disturbed``: the shares that are reached first, before ``share``."""
        self.disturbed = list(disturbed)
        self.asked: list[tuple[str, bool]] = []
        self.hosts: list[HostMeasured] = []
        self.share = share
        self.measuring = DeviceMeasurements(self.send, lambda name: True, PATIENCE, self.hosts.append)

    def send(self, name: str, command: Measure) -> None:
        together = command.together is True
        self.asked.append((name, together))
        share = (self.disturbed.pop(0) if self.disturbed else self.share) if together else None
        self.measuring.answer(MemberMeasured(name=name, speed=2.0, factor=0.5, overhead=0.0, share=share))


def test_workers_that_share_cores_are_measured_together() -> None:
    workers = Together(share=2 / 3)
    workers.measuring.measure(shared("a", "b", "c"), 1)
    alone = [(name, False) for name in "abc"]
    assert workers.asked == [*alone, ("a", True), ("b", True), ("c", True)]
    assert workers.hosts == [HostMeasured(names=("a", "b", "c"), capacity=2.0)]
    workers.measuring.measure(shared("a", "b", "c"), 1)
    assert workers.asked[6:] == alone, "what they reach together is known"
    workers.measuring.measure(shared("a", "b"), 2)
    assert workers.asked[9:] == [*alone[:2], ("a", True), ("b", True)], "other threads"
    workers.measuring.measure(shared("a", "b", generation=1), 2)
    assert workers.asked[-1] == ("b", True), "it was started again, maybe with other cores"


def test_a_disturbed_common_measurement_is_repeated() -> None:
    workers = Together(share=0.9, disturbed=[0.5, 0.6])
    workers.measuring.measure(shared("a", "b"), 1)
    assert workers.asked[2:] == [("a", True), ("b", True)] * 2
    assert workers.hosts == [HostMeasured(names=("a", "b"), capacity=1.8)]
    busy = Together(share=0.7, disturbed=[0.5, 0.5, 0.8, 0.8])
    busy.measuring.measure(shared("a", "b"), 1)
    assert busy.asked[2:] == [("a", True), ("b", True)] * 3, "a program that stays counts"
    assert busy.hosts == [HostMeasured(names=("a", "b"), capacity=1.6)], "the least disturbed measurement counts"


def test_who_can_not_measure_with_others_leaves_the_capacity_open() -> None:
    workers = Together(share=None)
    workers.measuring.measure(shared("a", "b"), 1)
    assert workers.asked[-1] == ("b", True)
    assert workers.hosts == []
    crowded = Together(share=0.1)
    crowded.measuring.measure(shared("a", "b"), 1)
    assert crowded.hosts[0].capacity == 1.0, "one alone reaches its own speed"


def test_a_worker_reports_what_it_reaches_beside_others(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The plan's topology says that the workers share a host, and status names with whom."""
    report = DeviceReport(
        name="test",
        flops_per_second=1e9,
        launch_seconds=0.0,
        total_bytes=8_000_000_000,
        free_bytes=8_000_000_000,
        processors=("0", "1"),
        reference_seconds=0.25,
    )
    asked: list[tuple[str, float]] = []

    def share(self: TorchEngine, device: str, reference_seconds: float) -> float:
        asked.append((device, reference_seconds))
        return 0.75

    monkeypatch.setattr(TorchEngine, "measure", lambda self, device, peak=None: report)
    monkeypatch.setattr(TorchEngine, "share", share)
    with Loopback(home, 2) as cluster:
        end = cluster.run(text_job(steps=1))
        assert end.result.status == "finished"
        found = cluster.client.status()["members"]
    assert isinstance(found, list)
    assert [one["shares_with"] for one in found] == [["b"], ["a"]]
    assert [(one["device"]["host"], one["device"]["host_capacity"]) for one in found] == [("host of a", 1.5)] * 2
    assert asked == [("cpu", 0.25), ("cpu", 0.25)] * 3, "twice 0.75 is well below two cores"
    topology = Topology.from_json((end.folder / "topology.json").read_text())
    assert topology.hosts == ((1.5, (0, 1)),)
    assert topology.speeds.tolist() == [0.75e9, 0.75e9]


def test_the_engine_measures_its_share() -> None:
    engine = TorchEngine()
    assert 0.0 < engine.share("cpu", 1e-3) <= 1.0
    assert engine.share("cpu", 1e9) == 1.0, "nobody is faster than alone"


def test_a_plan_stands_on_fresh_figures(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Both workers look slow when they join; when the run is planned one of them is found to be fast."""
    figures = iter([1e9, 1e9, 8e9, 1e9])

    def measure(self: TorchEngine, device: str, peak: float | None = None) -> DeviceReport:
        speed = next(figures)
        return DeviceReport(
            name="test",
            flops_per_second=speed,
            launch_seconds=3e-5,
            total_bytes=1,
            free_bytes=1,
            peak_flops_per_second=2 * speed,
        )

    monkeypatch.setattr(TorchEngine, "measure", measure)
    with Loopback(home, 2) as cluster:
        end = cluster.run(text_job(steps=1))
        assert end.result.status == "finished"
        found = cluster.client.status()["members"]
        assert isinstance(found, list)
        assert [(m["speed"], m["speed_factor"], m["overhead"]) for m in found] == [(8e9, 0.5, 3e-5), (1e9, 0.5, 3e-5)]
        topology = Topology.from_json((end.folder / "topology.json").read_text())
        assert [(float(d.achieved), d.speed_factor, float(d.overhead)) for d in topology.devices] == [
            (8e9, 0.5, 3e-5),
            (1e9, 0.5, 3e-5),
        ]


def test_a_machine_has_one_name(tmp_path: Path) -> None:
    assert host_id() == host_id()
    machine, boot = tmp_path / "machine", tmp_path / "boot"
    machine.write_text("m")
    boot.write_text("b")
    first = host_id((machine, boot))
    boot.write_text("c")
    assert host_id((boot, machine)) != first, "clones of one image differ in their last start"
    machine.write_text("another")
    assert host_id((boot, machine)) == host_id((boot,)), "containers of a machine differ in what else they have"
    assert host_id((tmp_path / "nothing", machine)) == host_id((machine,)) != host_id((boot,))
    assert host_id((tmp_path / "nothing",)) == host_id(())
    assert len(first) == 32
