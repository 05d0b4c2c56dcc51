"""A run of a chain of stages, one on each of many machines, whose steps never happened."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np

from benchmarks.commands.idle_members import member_name
from farflung.cluster import Device, Topology
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import Graph
from farflung.job.load import make_job
from farflung.plan import LinkPlan, Plan, Stage
from farflung.telemetry import RunFolder, StepRecord
from farflung.units import Bytes, FlopsPerSecond

__all__ = ["step_record", "write_run"]


def write_run(folder: Path, machines: int, steps: int) -> Path:
    """Write the run into ``folder``; return it."""
    folder.mkdir(parents=True)
    names = [member_name(number) for number in range(machines)]
    graph = _chain(machines)
    starts = [0, *(graph.position[f"layer{number}"] for number in range(1, machines))]
    ends = [*starts[1:], len(graph.ops)]
    stages = tuple(Stage(index=i, start=starts[i], stop=ends[i], device=name) for i, name in enumerate(names))
    links = tuple(LinkPlan(source=i, target=i + 1) for i in range(machines - 1))
    plan = Plan(graph_hash=graph.hash, planner="hand", stages=stages, links=links, micro_batch_sizes=(4, 4))
    devices = tuple(
        Device(name=name, memory=Bytes(16e9), speed=FlopsPerSecond(1e11), region=f"region {number % 4}")
        for number, name in enumerate(names)
    )
    shape = (machines, machines)
    topology = Topology(devices=devices, alpha=np.full(shape, 0.02), beta=np.full(shape, 12.5e6), name="synthetic")
    job = make_job({"name": "chain", "steps": 1_000_000, "micro_batch_sizes": [4, 4], "data": {"kind": "caller"}})
    files = RunFolder(folder)
    documents = ((files.job, job.model_dump_json()), (files.plan, plan.to_json()), (files.graph, graph.to_json()))
    for path, text in (*documents, (files.topology, topology.to_json())):
        path.write_text(text, encoding="utf-8")
    with files.metrics.open("w", encoding="utf-8") as file:
        file.writelines(step_record(number, machines).to_line() for number in range(steps))
    return folder


def _chain(layers: int) -> Graph:
    graph = GraphBuilder("chain")
    graph.input("x", "float32", (4, 8))
    before = "x"
    for number in range(layers):
        graph.add(f"layer{number}", "Linear", before, in_features=8, out_features=8)
        before = f"layer{number}"
    graph.label("label", "int64", (4,))
    graph.add("loss", "CrossEntropyLoss", before, "label")
    return graph.build()


def step_record(number: int, machines: int) -> StepRecord:
    """Return step ``number``."""
    chance = random.Random(number)
    pairs = [(i, i + 1) for i in range(machines - 1)] + [(i + 1, i) for i in range(machines - 1)]
    return StepRecord(
        step=number,
        loss=2.0 + 4.0 / (1 + number / 300) + chance.gauss(0, 0.05),
        seconds=0.5 + 0.05 * chance.random(),
        elapsed=0.52 * (number + 1),
        samples=8,
        learning_rate=1e-3,
        predicted_seconds=0.5,
        link_bytes=dict.fromkeys(pairs, 1_000_000),
        dense_bytes=dict.fromkeys(pairs, 4_000_000),
        busy_seconds=dict.fromkeys(range(machines), 0.2),
    )
