"""Small graphs and random topologies for tests of planners and of the simulator."""

from collections.abc import Sequence

import numpy as np

from farflung.cluster import Device, Topology
from farflung.graph.builder import GraphBuilder
from farflung.graph.ir import Graph
from farflung.units import Bytes, FlopsPerSecond


def chain(widths: Sequence[int], rows: int = 32) -> Graph:
    """Linear layers with the given widths, each followed by a GELU."""
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (rows, widths[0]))
    for i in range(len(widths) - 1):
        value = builder.add(f"fc{i}", "Linear", value, in_features=widths[i], out_features=widths[i + 1])
        value = builder.add(f"act{i}", "GELU", value)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (rows, widths[-1])))
    return builder.build()


def network(seed: int, count: int, memory: float = 1e9, latency: float = 1.0) -> Topology:
    """Unequal devices in two regions, with links of three rates and two latencies (times ``latency``)."""
    random = np.random.default_rng(seed)
    devices = [
        Device(name=f"d{i}", memory=Bytes(memory), speed=FlopsPerSecond(random.uniform(1e8, 2e9)), region=f"r{i % 2}")
        for i in range(count)
    ]
    beta, alpha = random.choice([1e5, 1e6, 1e8], (count, count)), random.choice([1e-4, 1e-2], (count, count))
    return Topology.from_matrices(latency * np.minimum(alpha, alpha.T), np.minimum(beta, beta.T), devices)
