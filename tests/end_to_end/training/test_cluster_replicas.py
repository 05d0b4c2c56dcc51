"""Replicas over TLS: the same broker, workers, checkpoints and data as any run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from farflung.checkpoint import CheckpointReader
from farflung.cluster import Topology
from farflung.engines.base import Array
from farflung.graph.ir import Graph
from farflung.job import JobSpec
from farflung.plan import estimate
from farflung.plan.model import Plan
from tests.support.runs.loopback import Loopback, captured, text_job
from tests.support.runs.played_runs import End, play


def ran(cluster: Loopback, **changes: Any) -> End:
    job = text_job(steps=3, micro_batch_sizes=[2, 3, 2, 1], evaluate={"batches": 1}, **changes)
    end = play(cluster, captured(job, cluster.home), workers=job.workers or len(cluster.workers))
    assert (end.result.status, end.result.cause) == ("finished", "")
    return end


def weights(end: End) -> dict[str, Array]:
    reader = CheckpointReader.from_folder(end.folder / "checkpoints")
    return reader.read(list(reader.manifest.states))


def test_replicas_over_tls_equal_one_worker(three: Loopback) -> None:
    one = ran(three, workers=1)
    several = ran(three, plan={"replicas": 3})
    plan = Plan.from_json((several.folder / "plan.json").read_text())
    assert plan.stages[0].devices == ("a", "b", "c")
    found = weights(several)
    for name, value in weights(one).items():
        assert value.tobytes() == found[name].tobytes(), name


def test_fine_tuning_by_a_number_of_each_replica_over_tls(two: Loopback) -> None:
    settings = {"bits": 8, "scale": 0.01}
    end = ran(two, plan={"replicas": 2}, sync={"strategy": "seed_and_scalar", "settings": settings}, optimizer={"lr": 1e-4})
    assert all(np.isfinite(value).all() for value in weights(end).values())
    lines = [json.loads(line) for line in (end.folder / "metrics.jsonl").read_text().splitlines()]
    assert [line["link_bytes"] for line in lines if line["kind"] == "step"] == [{"0->0": 2}] * 3, "one byte each way"


def test_rounds_of_local_steps_send_their_numbers_at_the_end_over_tls(two: Loopback) -> None:
    settings = {"bits": 16, "scale": 0.01, "sync_every": 3}
    end = ran(
        two, plan={"replicas": 2}, sync={"strategy": "fedkseed", "settings": settings}, optimizer={"name": "sgd", "lr": 1e-4}
    )
    assert all(np.isfinite(value).all() for value in weights(end).values())
    lines = [json.loads(line) for line in (end.folder / "metrics.jsonl").read_text().splitlines()]
    sent = [line.get("link_bytes", {}).get("0->0", 0) for line in lines if line["kind"] == "step"]
    assert sent == [0, 0, 12], "three numbers of two bytes each way"


FAST, SLOW = 1e9, 1e6
#: Links of three machines in bytes per second: what they ask for.
LINKS = {
    "server": np.full((3, 3), FAST),
    "ring": np.where(np.eye(3, k=1) + np.eye(3, k=-2), FAST, SLOW),
    "tree": np.where(np.eye(3)[2][:, None] + np.eye(3)[2], FAST, SLOW),
}


@pytest.mark.parametrize("kind", LINKS)
def test_sums_in_any_order_over_tls_are_those_of_one_worker_to_rounding(kind: str, three: Loopback) -> None:
    job = text_job(
        steps=3, micro_batch_sizes=[2, 3, 2, 1], plan={"replicas": 3}, sync={"order": "any"}, optimizer={"name": "sgd"}
    )
    names = {f"device-{index}": name for index, name in enumerate("abc")}
    topology = Topology.from_matrices(np.full((3, 3), 1e-4), LINKS[kind])
    bundle = replace(captured(job, three.home), topology=topology.rename({old: names[old] for old in topology.names}))
    end = play(three, bundle, workers=3)
    assert (end.result.status, end.result.cause) == ("finished", "")
    adds = Plan.from_json((end.folder / "plan.json").read_text()).stages[0].adds
    assert adds is not None
    assert adds.by == kind
    found = weights(end)
    one = ran(three, workers=1, optimizer={"name": "sgd"})
    for name, value in weights(one).items():
        np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-6, err_msg=name)


@pytest.mark.parametrize(
    ("strategy", "settings"),
    [
        ("diloco", {"sync_every": 2}),
        ("lgreco", {"codec": "int8", "every": 2}),
        ("fedbuff", {"sync_every": 2}),
        ("modest", {"sync_every": 2, "sample": 1}),
        ("robust", {"rule": "flag", "directions": 2}),
    ],
)
def test_a_strategy_over_tls(strategy: str, settings: dict[str, Any], three: Loopback) -> None:
    rounds = ran(three, plan={"replicas": 3}, sync={"strategy": strategy, "settings": settings})
    assert all(np.isfinite(value).all() for value in weights(rounds).values())
    plan = Plan.from_json((rounds.folder / "plan.json").read_text())
    assert plan.sync is not None
    assert plan.sync.strategy == strategy


@pytest.mark.parametrize("virtual", [None, 2])
def test_the_estimate_counts_the_bytes_that_replicas_exchange(virtual: int | None, two: Loopback) -> None:
    end = ran(two, plan={"replicas": 2}, virtual_replicas=virtual)
    plan = Plan.from_json((end.folder / "plan.json").read_text())
    graph = Graph.from_json((end.folder / "graph.json").read_text())
    job = JobSpec.model_validate_json((end.folder / "job.json").read_text())
    found = estimate(graph, plan, Topology.from_json((end.folder / "topology.json").read_text()), job)
    lines = [json.loads(line) for line in (end.folder / "metrics.jsonl").read_text().splitlines()]
    assert {line["link_bytes"]["0->0"] for line in lines if line["kind"] == "step"} == {found.exchange_bytes}
