"""Callers that say nothing, or begin a handshake and stop, delay neither a run nor members who join."""

from __future__ import annotations

import resource
from contextlib import ExitStack
from pathlib import Path

import pytest

from farflung.chaos.local_cluster import LocalCluster
from farflung.telemetry.records import RunResult
from tests.support.network.silent_callers import client_hello, silent_callers
from tests.support.runs.loopback import captured, text_folder, text_job
from tests.support.runs.watched_runs import watched

DESCRIPTORS, CALLERS = 256, 400
STEPS = 30


def _addresses(cluster: LocalCluster) -> list[str]:
    """Where the broker's two ports and the worker listen."""
    broker = cluster.folder / "broker"
    host = (broker / "address").read_text().rpartition(":")[0]
    client = cluster.client()
    try:
        worker = client.status()["members"][0]["address"]
    finally:
        client.close()
    return [*(f"{host}:{port}" for port in (broker / "ports").read_text().split()), worker]


@pytest.mark.timeout(300)
def test_silent_callers_end_no_run_and_keep_nobody_out(tmp_path: Path) -> None:
    """Each process may have 256 descriptors; 400 callers say nothing and 400 begin TLS, at each of three ports."""
    text_folder(tmp_path)
    with LocalCluster(tmp_path / "cluster", ["a"], data=tmp_path) as cluster, ExitStack() as callers:
        addresses = _addresses(cluster)
        for process in cluster.processes.values():
            resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (DESCRIPTORS, DESCRIPTORS))
        bundle = captured(text_job(steps=STEPS, workers=1, checkpoint={"every": 5}), tmp_path)
        client = cluster.client()
        callers.callback(client.close)
        client.submit(bundle)
        seen = 0
        for frame in watched(client, bundle.run):
            seen += frame.kind == "record"
            if seen == 2 and frame.kind == "record":
                for address in addresses:
                    callers.enter_context(silent_callers(address, CALLERS, client_hello()))
                    callers.enter_context(silent_callers(address, CALLERS))
                cluster.add("b")
        cluster.names = ("a", "b")
        cluster.client().close()  # returns when b has joined
        result = RunResult.from_json((tmp_path / "cluster/broker/runs" / bundle.run / "result.json").read_text())
        assert result.status == "finished", result.cause
        assert seen == STEPS
