"""Data of the submitting process: sent once where two stages of one machine read them; a worker that it cannot reach is named."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest

from farflung.broker.planning import run_planner
from farflung.client import batch_feeder as feeding
from farflung.client.batch_feeder import Feeder
from farflung.client.connection import Client
from farflung.client.planned_run import PlannedRun
from farflung.cluster import Topology
from farflung.engines.base import Array
from farflung.errors import TrainingError
from farflung.graph import Graph
from farflung.graph.builder import GraphBuilder
from farflung.ids import new_id
from farflung.job import JobSpec
from farflung.messages.schema import Channel
from farflung.messages.submission import Bundle
from farflung.messages.watching import Planned
from farflung.messages.wire_form import decode_as
from farflung.plan.model import LinkPlan, Plan, Stage
from farflung.telemetry.records import RunResult
from farflung.wire.frames import Frame
from farflung.worker import training_run
from farflung.worker.data_feed import CallerFeed
from tests.support.runs.loopback import Loopback
from tests.support.runs.watched_runs import watched
from tests.support.steps.small_runs import ROWS, small_job


def looping_graph() -> Graph:
    """x is read by the first and by the last of three linear layers."""
    graph = GraphBuilder("looping")
    graph.input("x", "float32", (ROWS, 8))
    graph.add("first", "Linear", "x", in_features=8, out_features=8)
    graph.add("second", "Linear", "first", in_features=8, out_features=8)
    graph.add("sum", "Add", "second", "x")
    graph.add("third", "Linear", "sum", in_features=8, out_features=5)
    graph.label("label", "int64", (ROWS,))
    graph.add("loss", "CrossEntropyLoss", "third", "label")
    return graph.build()


class ThereAndBack:
    """The last stage on the device of the first, as ``op_fence`` may put it."""

    name = "there-and-back"

    def plan(self, graph: Graph, topology: Topology, *, job: JobSpec | None = None) -> Plan:
        cuts = [0, graph.position["second"], graph.position["sum"], len(graph.ops)]
        stages = tuple(Stage(index=i, start=cuts[i], stop=cuts[i + 1], device=device) for i, device in enumerate("aba"))
        links = tuple(LinkPlan(source=i, target=i + 1) for i in range(2))
        return Plan(graph_hash=graph.hash, planner=self.name, stages=stages, links=links, micro_batch_sizes=(ROWS, ROWS))


def batch(step: int, micro_batch: int) -> dict[str, Array]:
    random = np.random.default_rng((step, micro_batch))
    return {"x": random.standard_normal((ROWS, 8)).astype(np.float32), "label": random.integers(0, 5, ROWS)}


@contextmanager
def closed_port() -> Iterator[str]:
    """An address that refuses every call."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{taken.getsockname()[1]}"


def test_what_is_sent_once_serves_every_stage_that_reads_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    graph = looping_graph()
    monkeypatch.setattr(run_planner, "get_planner", lambda name: ThereAndBack())
    bundle = Bundle(run=new_id("run"), job=small_job(workers=2), graphs={ROWS: graph})
    with Loopback(tmp_path, 2) as cluster:
        cluster.client.submit(bundle)
        planned: PlannedRun | None = None
        feeder: Feeder | None = None
        feeds: list[CallerFeed] = []

        class Recorded(CallerFeed):
            def __init__(self, *args: Any) -> None:
                super().__init__(*args)
                feeds.append(self)

        monkeypatch.setattr(training_run, "CallerFeed", Recorded)
        # a deadlock ends the run instead of the patience of whoever waits for this test
        guard = threading.Timer(60, lambda: cluster.client.stop(bundle.run, now=True))
        guard.start()
        for frame in watched(cluster.client, bundle.run):
            if frame.kind == "planned":
                planned = PlannedRun.of(decode_as(frame, Channel.WATCH, Planned))
            elif frame.kind == "started":
                assert planned is not None
                feeder = Feeder(bundle, planned, cluster.client, batch)
                feeder.start()
        guard.cancel()
        assert feeder is not None, frame
        feeder.end()
    result = RunResult.from_json(frame.header["result"])
    assert (result.status, result.cause, result.steps) == ("finished", "", 3)
    assert [feed.stored for feed in feeds] == [0, 0], "nothing is stored after its last reader"


def test_a_worker_that_only_the_caller_cannot_reach_ends_the_run_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_planner, "get_planner", lambda name: ThereAndBack())
    monkeypatch.setattr(feeding, "_PATIENCE", 2)
    bundle = Bundle(run=new_id("run"), job=small_job(workers=2), graphs={ROWS: looping_graph()})
    with Loopback(tmp_path, 2) as cluster, closed_port() as nowhere:
        cluster.client.submit(bundle)
        guard = threading.Timer(90, lambda: cluster.client.stop(bundle.run, now=True))
        guard.start()
        planned: PlannedRun | None = None
        for frame in watched(cluster.client, bundle.run):
            if frame.kind == "planned":
                planned = PlannedRun.of(decode_as(frame, Channel.WATCH, Planned))
            elif frame.kind == "started":
                assert planned is not None
                feeder = Feeder(bundle, replace(planned, addresses={**planned.addresses, "a": nowhere}), cluster.client, batch)
                feeder.start()
        guard.cancel()
        feeder.end()
    assert RunResult.from_json(frame.header["result"]).status == "stopped"
    assert isinstance(feeder.error, TrainingError)
    text = str(feeder.error)
    assert text.startswith(f"this process cannot send its data to a at {nowhere}, where the run still waits for it: ")
    assert text.endswith("open that address to this machine, or submit a job whose workers read the data themselves (data.kind)")


class Deaf:
    """A client, and its connections: the worker has dropped the attempt, and the broker makes the next one."""

    def __init__(self, run: str) -> None:
        self.run, self.asked, self.stopped = run, threading.Event(), False

    def endpoint(self) -> Deaf:
        return self

    def status(self) -> dict[str, Any]:
        self.asked.set()
        return {"runs": [{"run": self.run, "state": "running", "recoveries": 1}]}

    def stop(self, run: str, *, now: bool) -> None:
        self.stopped = True

    def connect(self, name: str, address: str) -> None: ...

    def relay_through(self, name: str, relays: Sequence[str]) -> None: ...

    def post(self, name: str, frame: Frame) -> None:
        raise TrainingError("worker b is replaced: step 1: the loss of micro-batches [0] is not a finite number")

    def close(self) -> None: ...


def test_a_worker_that_has_dropped_the_attempt_is_no_network_that_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(feeding, "_PATIENCE", 2)
    monkeypatch.setattr(feeding, "_AGAIN", 0.05)
    graph, job = looping_graph(), small_job(workers=2)
    plan = ThereAndBack().plan(graph, Topology.preset("homogeneous-2"), job=job)
    planned = PlannedRun(
        plan=plan, addresses=dict.fromkeys("ab", "127.0.0.1:1"), first_step=0, predicted_seconds=1.0, summary="", explanation=""
    )
    bundle = Bundle(run=new_id("run"), job=job, graphs={ROWS: graph})
    client = Deaf(bundle.run)
    feeder = Feeder(bundle, planned, cast(Client, client), batch)
    feeder.start()
    assert client.asked.wait(30)
    time.sleep(0.5)  # long enough for the whole patience
    feeder.end()
    assert (feeder.error, client.stopped) == (None, False)
