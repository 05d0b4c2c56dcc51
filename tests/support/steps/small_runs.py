"""A graph made by hand (no capture, so it costs nothing), its jobs and its setups."""

from __future__ import annotations

from functools import cache
from typing import Any

from farflung.graph import Graph
from farflung.graph.builder import GraphBuilder
from farflung.job import JobSpec
from farflung.job.load import make_job
from farflung.messages.submission import Bundle
from farflung.plan.model import CodecChoice, LinkPlan, Plan, Stage
from farflung.step.run_setup import RunSetup

ROWS = 4


@cache
def small_graph(rows: int = ROWS) -> Graph:
    """Three linear layers and a loss: x float32[rows, 8], label int64[rows]."""
    graph = GraphBuilder("small")
    graph.input("x", "float32", (rows, 8))
    graph.add("first", "Linear", "x", in_features=8, out_features=16)
    graph.add("bend", "ReLU", "first")
    graph.add("second", "Linear", "bend", in_features=16, out_features=16)
    graph.add("third", "Linear", "second", in_features=16, out_features=5)
    graph.label("label", "int64", (rows,))
    graph.add("loss", "CrossEntropyLoss", "third", "label")
    return graph.build()


def small_job(**changes: Any) -> JobSpec:
    return make_job({"name": "small", "steps": 3, "micro_batch_sizes": [ROWS, ROWS], "data": {"kind": "caller"}} | changes)


def small_bundle(run: str = "run-small", **changes: Any) -> Bundle:
    return Bundle(run=run, job=small_job(**changes), graphs={ROWS: small_graph()})


def small_plan(devices: tuple[str, ...] = ("a", "b"), codec: CodecChoice | None = None) -> Plan:
    """Stages cut before ``second`` (and before ``third`` for three devices)."""
    graph = small_graph()
    cuts = [graph.position["second"], graph.position["third"]][: len(devices) - 1]
    bounds = zip([0, *cuts], [*cuts, len(graph.ops)], devices, strict=True)
    stages = tuple(Stage(index=i, start=start, stop=stop, device=device) for i, (start, stop, device) in enumerate(bounds))
    choice = codec or CodecChoice()
    links = tuple(LinkPlan(source=i, target=i + 1, activations=choice, gradients=choice) for i in range(len(stages) - 1))
    return Plan(graph_hash=graph.hash, planner="hand", stages=stages, links=links, micro_batch_sizes=(ROWS, ROWS))


def small_setup(device: str, plan: Plan | None = None, **changes: Any) -> RunSetup:
    return RunSetup(
        run="run-small", device=device, job=small_job(**changes), plan=plan or small_plan(), graphs={ROWS: small_graph()}
    )
