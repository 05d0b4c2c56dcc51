"""Plans by hand of a chain of equal layers."""

import numpy as np

from farflung.cluster import Device, Topology
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import StateRef
from farflung.job.spec import JobSpec
from farflung.plan import Plan, Stage, make_links
from farflung.units import Bytes, FlopsPerSecond

ROWS, WIDTH = 64, 256
VALUE = ROWS * WIDTH * 4
FORWARD = 2 * ROWS * WIDTH * WIDTH  # FLOPs of one layer


def chain(layers=3, tied=False):
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (ROWS, WIDTH))
    for i in range(layers):
        value = builder.add(f"fc{i}", "Linear", value, in_features=WIDTH, out_features=WIDTH, bias=False)
    if tied:
        value = builder.call("linear.default", value, StateRef("fc0.weight"))
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (ROWS, WIDTH)))
    return builder.build()


def topology(memory=1e9, beta=1e6, alpha=0.01, count=3):
    devices = [Device(name=f"d{i}", memory=Bytes(memory), speed=FlopsPerSecond(1e9)) for i in range(count)]
    return Topology.from_matrices(np.full((count, count), alpha), np.full((count, count), beta), devices)


def plan_of(graph, job, devices=("d0", "d1", "d2"), recompute=False):
    cuts = [0, graph.position["fc1"], graph.position["fc2"], len(graph.ops)]
    stages = tuple(
        Stage(index=i, start=cuts[i], stop=cuts[i + 1], device=device, recompute=recompute) for i, device in enumerate(devices)
    )
    return Plan(
        graph_hash=graph.hash,
        planner="hand",
        stages=stages,
        links=make_links(graph, stages),
        micro_batch_sizes=job.micro_batch_sizes,
    )


JOB = JobSpec(micro_batch_sizes=(4, 4))
