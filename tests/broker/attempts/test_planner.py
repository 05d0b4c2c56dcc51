"""Whatever ends the planning of an attempt ends the run with that cause: no run waits forever for a plan.

After a loss, training waits for the plan: nobody is measured whose speed is known.
"""

from __future__ import annotations

import errno
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farflung.broker.attempts import planner
from farflung.broker.planning import run_planner
from farflung.broker.planning.device_measurements import DeviceMeasurements
from farflung.cluster import Topology
from farflung.engines.base import DeviceReport
from farflung.engines.torch.engine import TorchEngine
from farflung.errors import FarflungError, Stopped
from farflung.graph.ir import Graph
from farflung.job import JobSpec
from farflung.plan import Plan
from farflung.planners import Evaluate, get_planner
from farflung.protocol.members import Member
from farflung.telemetry import StepRecord
from farflung.thread_group import ThreadGroup
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, text_job
from tests.support.runs.worker_deaths import vanish


def fail(*_: Any, **__: Any) -> Any:
    raise KeyError("gone")


@pytest.mark.parametrize("part", ["preparation_of", "routes_of"])
def test_a_failure_inside_ends_the_run(home: Path, monkeypatch: pytest.MonkeyPatch, part: str) -> None:
    """``routes_of`` runs after the plan has taken effect on disk, ``preparation_of`` before."""
    monkeypatch.setattr(planner, part, fail)
    with Loopback(home, 1) as cluster:
        found = cluster.run(text_job(steps=2))
    assert found.result.status == "failed"
    assert found.result.cause == "planning failed inside: KeyError: 'gone'"


def test_a_machine_without_threads_ends_the_run_and_not_the_session(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = ThreadGroup.spawn

    def spawn(self: ThreadGroup, name: str, *given: Any, **more: Any) -> Any:
        if name.startswith("plan-"):
            raise RuntimeError("can't start new thread")
        return real(self, name, *given, **more)

    monkeypatch.setattr(ThreadGroup, "spawn", spawn)
    with Loopback(home, 1) as cluster:
        found = cluster.run(text_job(steps=2))
        assert found.result.cause == "planning failed inside: RuntimeError: can't start new thread"
        assert cluster.members() == ["a"]


def test_a_run_waits_while_no_descriptor_is_free_to_read_its_documents(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tries: list[Path] = []
    real = Path.read_bytes

    def read_bytes(self: Path) -> bytes:
        if self.name == "bundle.frame":
            tries.append(self)
            if len(tries) <= 2:
                raise OSError(errno.EMFILE, "Too many open files")
        return real(self)

    monkeypatch.setattr(planner, "_FULL_AGAIN", 0.01)
    with Loopback(home, 0) as cluster:
        bundle, _ = cluster.submit(text_job(steps=2))
        live = cluster.broker.runs.live(bundle.run)
        monkeypatch.setattr(Path, "read_bytes", read_bytes)
        cluster.add("a")
        until(lambda: live.result is not None)
    assert live.result is not None
    assert (live.result.status, live.result.cause) == ("finished", "")
    assert len(tries) == 3


def test_a_planner_that_fails_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Broken:
        name = "broken"

        def plan(self, graph: object, topology: object, *, job: object) -> object:
            raise ValueError("no route")

    monkeypatch.setattr(run_planner, "get_planner", lambda name: Broken())
    with Loopback(home, 1) as cluster:
        found = cluster.run(text_job(steps=2))
    assert found.result.cause == "the planner equal_compute failed: ValueError: no route"


def test_the_planner_of_a_stopped_run_ends(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A planner can't be interrupted, but its next prediction ends it."""
    begun, ended = threading.Event(), list[BaseException]()
    real = get_planner("equal_compute")

    class Endless:
        name = "endless"
        evaluate: Evaluate

        def judged_by(self, evaluate: Evaluate) -> Endless:
            self.evaluate = evaluate
            return self

        def plan(self, graph: Graph, topology: Topology, *, job: JobSpec) -> Plan:
            plan, end = real.plan(graph, topology, job=job), time.monotonic() + 20
            try:
                while time.monotonic() < end:
                    self.evaluate(plan)
                    begun.set()
            except FarflungError as error:
                ended.append(error)
                raise
            return plan

    monkeypatch.setattr(run_planner, "get_planner", lambda name: Endless())
    with Loopback(home, 1) as cluster:
        bundle, _ = cluster.submit(text_job(steps=2))
        assert begun.wait(20)
        cluster.client.stop(bundle.run, now=True)
        until(lambda: ended)
    assert isinstance(ended[0], Stopped)


def test_after_a_loss_a_newcomer_counts_as_fast_as_its_neighbor(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[list[str]] = []
    speeds: dict[str, float] = {}
    real = DeviceMeasurements.measure

    def measure(self: DeviceMeasurements, members: Sequence[Member], threads: int) -> None:
        asked.append([member.name for member in members])
        real(self, members, threads)

    monkeypatch.setattr(DeviceMeasurements, "measure", measure)
    memory = 8_000_000_000
    report = DeviceReport(name="test", flops_per_second=1e9, launch_seconds=0.0, total_bytes=memory, free_bytes=memory)
    shared = replace(report, processors=("0", "1"))
    monkeypatch.setattr(TorchEngine, "share", lambda self, device, seconds: 1.0)
    monkeypatch.setattr(TorchEngine, "measure", lambda self, device, peak=None: shared)
    with Loopback(home, 2) as cluster:
        slow = replace(shared, flops_per_second=1e8)  # measured while the others compute
        monkeypatch.setattr(TorchEngine, "measure", lambda self, device, peak=None: slow if "c" in cluster.said else shared)

        def lose(run: str, record: StepRecord) -> None:
            if record.step == 1 and "c" not in cluster.workers:  # step 1 is repeated
                cluster.add("c")
                vanish(cluster, "b")
            members = cluster.client.status()["members"]
            assert isinstance(members, list)
            speeds.update({str(member["name"]): float(member["speed"]) for member in members})

        found = cluster.run(text_job(steps=8, workers=2), on_record=lose)
    assert found.result.status == "finished", found.result.cause
    assert [names for names in asked if names] == [["a", "b"]]
    assert speeds["c"] == speeds["a"] == 1e9
