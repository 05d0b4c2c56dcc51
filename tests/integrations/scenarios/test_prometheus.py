"""A real Prometheus scrapes a real broker and a real worker; promtool checks their pages."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("prometheus_client")

from farflung.broker.links.table import LinkFigures
from farflung.errors import InputError
from farflung.integrations.metrics.broker import BrokerCollector
from farflung.integrations.metrics.definitions import BROKER, MOST_LINKS, WORKER
from farflung.integrations.metrics.server import MetricsServer
from farflung.integrations.metrics.worker import StepTotals, WorkerCollector
from tests.support.documents.grafana import expressions
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, text_folder, text_job

PROMETHEUS, PROMTOOL = shutil.which("prometheus"), shutil.which("promtool")


@contextmanager
def prometheus(folder: Path, *targets: str) -> Iterator[str]:
    """A real Prometheus that scrapes ``targets`` each second; yields its address."""
    assert PROMETHEUS is not None
    config = {
        "global": {"scrape_interval": "1s"},
        "scrape_configs": [{"job_name": "farflung", "static_configs": [{"targets": list(targets)}]}],
    }
    (folder / "prometheus.yml").write_text(json.dumps(config))  # JSON is YAML
    with socket.create_server(("127.0.0.1", 0)) as free:
        address = f"127.0.0.1:{free.getsockname()[1]}"
    command = [PROMETHEUS, f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "prometheus.log").open("wb") as log:
        process = subprocess.Popen([*command, f"--web.listen-address={address}"], stdout=log, stderr=log)
    try:
        yield address
    finally:
        process.terminate()
        process.wait()


def ask(address: str, expression: str) -> list[dict[str, Any]]:
    """The answer of Prometheus; none while it starts."""
    query = urllib.parse.urlencode({"query": expression})
    with suppress(ConnectionError, urllib.error.URLError):
        with urllib.request.urlopen(f"http://{address}/api/v1/query?{query}") as answer:
            body = json.load(answer)
        assert body["status"] == "success", expression
        return list(body["data"]["result"])
    return []


def page(server: MetricsServer) -> str:
    with urllib.request.urlopen(f"http://{server.address}/metrics") as answer:
        return str(answer.read().decode())


def shown(text: str) -> dict[str, float]:
    """Name and labels -> value."""
    rows = (line.rpartition(" ") for line in text.splitlines() if not line.startswith("#"))
    return {name: float(value) for name, _, value in rows}


@contextmanager
def observed(tmp_path: Path) -> Iterator[tuple[Loopback, MetricsServer, MetricsServer]]:
    """A broker and a worker with their pages, after a run of six steps."""
    text_folder(tmp_path)
    totals = StepTotals()
    with Loopback(tmp_path, 1) as cluster:
        watched = cluster.add("watched", observer=totals)
        broker = BrokerCollector(runs=cluster.broker.runs, sessions=cluster.broker.sessions, links=cluster.broker.network.table)
        worker = WorkerCollector(name="watched", totals=totals, links=watched.endpoint.statistics)
        with MetricsServer("127.0.0.1:0", broker) as first, MetricsServer("127.0.0.1:0", worker) as second:
            yield cluster, first, second


@pytest.mark.skipif(PROMETHEUS is None or PROMTOOL is None, reason="needs prometheus and promtool")
@pytest.mark.timeout(300)
def test_prometheus_reads_broker_and_worker(tmp_path: Path) -> None:
    with observed(tmp_path) as (cluster, broker, worker), prometheus(tmp_path, broker.address, worker.address) as address:
        found = cluster.run(text_job(steps=6, plan={"planner": "equal_number"}))
        for server in (broker, worker):
            command = [str(PROMTOOL), "check", "metrics"]
            checked = subprocess.run(command, input=page(server), text=True, capture_output=True, check=False)
            assert (checked.returncode, checked.stdout, checked.stderr) == (0, "", "")
        until(lambda: [one["value"][1] for one in ask(address, "farflung_run_steps_total")] == ["6"])
        until(lambda: [one["value"][1] for one in ask(address, "farflung_steps_total")] == ["6"])
        (loss,) = ask(address, "farflung_run_loss")
        assert float(loss["value"][1]) == found.losses[-1]
        for expression in expressions():
            if not expression.startswith("label_values"):
                ask(address, expression.replace("$run", ".*"))


def test_the_pages_show_what_happened(tmp_path: Path) -> None:
    with observed(tmp_path) as (cluster, broker, worker):
        found = cluster.run(text_job(steps=6, plan={"planner": "equal_number"}))
        run = found.folder.name
        here, there = shown(page(broker)), shown(page(worker))
    assert here['farflung_workers{state="standby"}'] == 2
    assert here['farflung_runs{state="finished"}'] == 1
    assert here[f'farflung_run_step{{run="{run}"}}'] == here[f'farflung_run_target_steps{{run="{run}"}}'] == 6
    assert here[f'farflung_run_samples_total{{run="{run}"}}'] == 30
    assert here[f'farflung_run_sent_bytes_total{{run="{run}"}}'] > 0
    assert here[f'farflung_run_loss{{run="{run}"}}'] == found.losses[-1]
    assert here['farflung_left_out{what="links"}'] == 0
    assert there['farflung_joined{worker="watched"}'] == 1
    assert there["farflung_steps_total"] == 6
    assert there["farflung_compute_seconds_total"] > 0
    assert there['farflung_peer_sent_bytes_total{peer="a"}'] > 0
    known = {one.name for one in (*BROKER, *WORKER)}
    assert {name.partition("{")[0] for name in (*here, *there) if name.startswith("farflung_")} <= known


def test_labels_are_bounded(tmp_path: Path) -> None:
    with Loopback(tmp_path, 0) as cluster:
        for number in range(MOST_LINKS + 5):
            cluster.broker.network.table.put(f"m{number}", "hub", LinkFigures(alpha=0.1, beta=1e6, source="training"))
        broker = BrokerCollector(runs=cluster.broker.runs, sessions=cluster.broker.sessions, links=cluster.broker.network.table)
        with MetricsServer("127.0.0.1:0", broker) as server:
            found = shown(page(server))
    assert len([name for name in found if name.startswith("farflung_link_bytes_per_second")]) == MOST_LINKS
    assert found['farflung_left_out{what="links"}'] == 5


@pytest.mark.parametrize("address", ["9464", "127.0.0.1:x", "127.0.0.1:99999", ":1"])
def test_a_bad_address_is_refused(address: str) -> None:
    with pytest.raises(
        InputError, match=r"--metrics '.*' is not an address to listen at: write host:port, e\.g\. 127\.0\.0\.1:9464"
    ):
        MetricsServer(address, WorkerCollector(name="w", totals=StepTotals(), links=lambda: None))


def test_a_taken_address_is_refused() -> None:
    collector = WorkerCollector(name="w", totals=StepTotals(), links=lambda: None)
    with MetricsServer("127.0.0.1:0", collector) as server:
        with pytest.raises(InputError, match=r"--metrics 127\.0\.0\.1:\d+: can't listen there: Address already in use; choose"):
            MetricsServer(server.address, collector)
        assert 'farflung_joined{worker="w"} 0.0' in page(server)


def test_a_silent_caller_does_not_block_the_page() -> None:
    """It has five seconds; here another one waits behind it."""
    with MetricsServer("127.0.0.1:0", WorkerCollector(name="w", totals=StepTotals(), links=lambda: None)) as server:
        host, port = server.address.split(":")
        with socket.create_connection((host, int(port))):
            assert "farflung_build_info" in page(server)
