"""The part of ``benchmarks profile`` that trains: what the broker's table of links says during training, against the truth.

A real broker and workers in the nodes of the emulated network. If wanted, ``farflung profile`` measures the idle links first;
then a small GPT is trained with a block in each node, and the table is compared; then it is trained once more, and in the midst
of that links between neighbours change their rates: the first pair's to twice, the second pair's to a quarter of what they were.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from benchmarks.harness.emulated import EmulatedCluster
from benchmarks.harness.gpt_stages import GptSize, place_blocks, small_gpt, variant
from farflung.broker.links.table import LinkTable
from farflung.cluster import Network, Topology
from farflung.errors import TrainingError

__all__ = ["Compare", "TrainingPart", "changed", "counts", "train"]

#: Rows of a comparison, as ``profile.compare`` makes them.
Compare = Callable[[Network, LinkTable], list[dict[str, Any]]]
Rows = list[dict[str, Any]]
#: Changes of the rates between neighbours in the pipeline: the first pair's, the second pair's.
_FACTORS = (2.0, 0.25)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingPart:
    """``steps`` of each run of ``micro_batches``; ``probed``: whether the idle links are measured before."""

    steps: int
    micro_batches: int = 8
    probed: bool = True


def train(network: Network, part: TrainingPart, compare: Compare, say: Callable[[str], None]) -> dict[str, Any]:
    """Train twice: ``during`` and ``changed``, each with its rows, their counts and the seconds of its steps.

    Raises:
        TrainingError: a run, or the measuring before it, failed.
    """
    topology = network.topology
    size = GptSize(blocks=len(topology), width=128, sequence=64, rows=4)
    base = small_gpt(size, topology)
    placed = place_blocks(base.graph, [1] * len(topology), topology.names)
    found: dict[str, Any] = {}
    with EmulatedCluster(topology) as cluster:
        if part.probed:
            _probe(cluster)
            say(f"idle: {counts(_rows(cluster, network, compare))}")
        for name in ("during", "changed"):
            bundle = replace(variant(base, topology, part.micro_batches, part.steps, {}), topology=None)
            begin = time.monotonic()
            if name == "changed":
                network = replace(network, topology=changed(topology))
                timer = threading.Timer(sum(found["during"]["step_seconds"]) / 3, cluster.set_links, [network.topology])
                timer.start()
            run = cluster.run(bundle, placed)
            rows = _rows(cluster, network, compare)
            found[name] = {"links": rows, **counts(rows), "step_seconds": [float(step.seconds) for step in run.steps]}
            say(f"{name}: {counts(rows)} in {time.monotonic() - begin:.0f} s")
    return found


def changed(topology: Topology) -> Topology:
    """The rates between the first three devices of the pipeline after the change, both directions."""
    beta = topology.beta.copy()
    for first, factor in enumerate(_FACTORS[: len(topology) - 1]):
        beta[first, first + 1] *= factor
        beta[first + 1, first] *= factor
    return replace(topology, beta=beta)


def counts(rows: Sequence[Mapping[str, Any]]) -> dict[str, int]:
    """How many directions are known, told by training, and right: beta within 5 %, alpha within 2 ms or 5 %; and of those that
    training told."""
    told = [row for row in rows if row["source"] == "training"]
    return {
        "known": len(rows),
        "beta_right": sum(abs(row["beta_error"]) <= 0.05 for row in rows),
        "alpha_right": sum(row["alpha_excess"] <= 1 for row in rows),
        "told": len(told),
        "told_beta_right": sum(abs(row["beta_error"]) <= 0.05 for row in told),
        "told_alpha_right": sum(row["alpha_excess"] <= 1 for row in told),
    }


def _probe(cluster: EmulatedCluster) -> None:
    first = next(iter(cluster.emulation.nodes.values()))
    pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
    command = [sys.executable, "-m", "farflung", "profile"]
    process = first.start(command, env={"FARFLUNG_HOME": str(cluster.folder)}, **pipes)
    told = process.communicate()[0]
    if process.returncode:
        raise TrainingError(f"the links could not be measured: {told.strip()[-400:]}")


def _rows(cluster: EmulatedCluster, network: Network, compare: Compare) -> Rows:
    """The broker's table against the truth."""
    time.sleep(2 * LinkTable.LATER)  # figures from training are written a moment later
    paths = list(cluster.folder.rglob("links.json"))
    table = LinkTable(paths[0]) if paths else LinkTable()
    return compare(network, table)
