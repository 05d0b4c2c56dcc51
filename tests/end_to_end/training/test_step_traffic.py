"""What a step moves is on record, link by link, and as much as the plan says."""

from __future__ import annotations

import json
from typing import Any

import pytest

from farflung.cluster import Topology
from farflung.graph.ir import Graph
from farflung.job import JobSpec
from farflung.plan import Estimate, Plan, estimate
from farflung.web.reports import load_run
from farflung.web.reports.tables import comparison, links
from tests.support.runs.loopback import Loopback, captured, text_job
from tests.support.runs.played_runs import End, play

SIZES = [2, 3, 2, 1]


def ran(cluster: Loopback, workers: int, **changes: Any) -> tuple[End, Estimate, list[dict[str, int]]]:
    """A run, what its plan is estimated to cost, and bytes by link of each step."""
    job = text_job(steps=4, micro_batch_sizes=SIZES, **changes)
    end = play(cluster, captured(job, cluster.home), workers=workers)
    assert (end.result.status, end.result.cause) == ("finished", "")
    graph, plan, known, job = (
        read((end.folder / name).read_text())
        for name, read in (
            ("graph.json", Graph.from_json),
            ("plan.json", Plan.from_json),
            ("topology.json", Topology.from_json),
            ("job.json", JobSpec.model_validate_json),
        )
    )
    lines = [json.loads(line) for line in (end.folder / "metrics.jsonl").read_text().splitlines()]
    return end, estimate(graph, plan, known, job), [line["link_bytes"] for line in lines if line["kind"] == "step"]


def test_gradients_of_tied_parameters_are_counted_on_their_link(two: Loopback) -> None:
    end, found, steps = ran(two, 2)
    (link,) = found.links
    values = [nbytes * sum(SIZES) / max(SIZES) for nbytes in (link.forward_dense_bytes, link.backward_dense_bytes)]
    embedding = 256 * 16 * 4
    assert found.exchange_bytes == 2 * embedding
    assert steps == [{"0->1": values[0] + embedding, "1->0": values[1] + embedding}] * 4
    table = links(load_run(end.folder))
    assert [row[2] for row in table.rows] == [
        "activations, gradients of tied parameters",
        "gradients, gradients of tied parameters",
    ]


@pytest.mark.parametrize(
    ("strategy", "settings", "said"),
    [
        ("ssgd", {}, "gradients of replicas"),
        ("wfbp", {"codec": "int8"}, "gradients of replicas"),
        ("ssgd", {"codec": "topk:ratio=10", "memory": "error_feedback"}, "gradients of replicas"),
        ("local_sgd", {"sync_every": 2}, "parameters of replicas"),
        ("diloco", {"sync_every": 2}, "pseudo-gradients of replicas"),
    ],
)
def test_replicas_send_what_their_plan_says(strategy: str, settings: dict[str, Any], said: str, two: Loopback) -> None:
    sync = {"strategy": strategy, "settings": settings}
    end, found, steps = ran(two, 2, plan={"replicas": 2}, sync=sync)
    whole = steps[: settings.get("sync_every", len(steps))]  # to the last step their agreement at the end may add
    mean = sum(count.get("0->0", 0) for count in whole) / len(whole)
    assert mean == pytest.approx(found.exchange_bytes, rel=0.05)
    assert found.exchange_bytes == found.replica_bytes
    run = load_run(end.folder)
    (row,) = links(run).rows
    assert row[2:4] == (said, settings.get("codec", "identity"))
    (compared,) = comparison([run]).rows
    assert compared[2] == ", ".join(str(part) for part in (strategy, settings.get("codec"), settings.get("memory")) if part)
