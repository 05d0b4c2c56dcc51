"""Benchmarks on a broker and workers that are processes of this machine."""

from __future__ import annotations

import subprocess
import tempfile
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from benchmarks.harness.base import override
from benchmarks.harness.catalog import BENCHMARKS
from farflung.broker.process import Broker
from farflung.chaos.local_cluster import LocalCluster
from farflung.errors import ConnectionLost


def run(name: str, *pairs: str) -> Any:
    chosen = BENCHMARKS.get(name)
    return chosen.run(override(chosen.settings(quick=True), pairs), lambda text: None)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_processes_over_tls_compute_what_a_plain_loop_computes() -> None:
    report = run("exactness", "models=gpt2", "workers=1", "steps=2", "processes=true")
    over_tls = [item for item in report.figures["runs"] if item["model"] == "gpt2 over TLS"]
    assert [item["stages"] for item in over_tls] == [2, 3]
    assert report.passed is True


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_memory_is_read_from_each_worker() -> None:
    report = run("memory")
    workers = report.figures["workers"]
    assert len(workers) == 2
    for worker in workers:
        assert worker["peak"] > worker["after_imports"] > 100e6
        assert worker["plan"] > 0


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_compression_sends_fewer_bytes_on_the_slow_link() -> None:
    report = run("compression")
    sent = report.figures["bytes_per_step"]
    assert sent["adatopk"] < sent["dense"] == sent["compute only"]
    assert report.passed is None


def test_a_cluster_may_have_one_client_after_the_other(tmp_path: Path) -> None:
    """Their name belongs to a key, so it is one key."""
    broker = Broker(tmp_path / "broker", listen="127.0.0.1:0")
    try:
        cluster = LocalCluster(tmp_path, [])
        cluster.ticket = str(broker.ticket("submit"))
        for _ in range(2):
            cluster.client().close()
    finally:
        broker.close()


def test_a_worker_that_ends_early_is_named_with_its_last_words(tmp_path: Path) -> None:
    cluster = LocalCluster(tmp_path, ["worker-0"])
    cluster.start_process("broker", ["-c", "print('no room here'); raise SystemExit(3)"])
    with pytest.raises(ConnectionLost, match=r"broker ended with 3; it said: 'no room here"):
        cluster.await_tickets()
    cluster.close()


#: Writes into the folder that it is given until it is asked to end, and for a while after.
WRITER = """
import pathlib, signal, sys, time
asked = []
signal.signal(signal.SIGTERM, lambda *_: asked.append(time.monotonic()))
place = pathlib.Path(sys.argv[1])
(place / "ready").write_text("")
while not asked or time.monotonic() < asked[0] + float(sys.argv[2]):
    for number in range(20):
        (place / str(number)).write_text("")
"""


def writing(folder: Path, seconds: float) -> LocalCluster:
    """A cluster whose one process writes into ``folder / "run"`` for so long after it was asked to end."""
    (folder / "run").mkdir()
    cluster = LocalCluster(folder, [])
    cluster.start_process("broker", ["-c", WRITER, str(folder / "run"), str(seconds)])
    for _ in cluster.patiently("broker"):
        if (folder / "run" / "ready").exists():
            return cluster
    raise AssertionError("it does not begin to write")


def test_a_cluster_has_ended_before_its_folder_goes(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory(dir=tmp_path) as folder, closing(writing(Path(folder), 0.3)):
        pass
    assert not Path(folder).exists()


def test_so_it_has_when_its_end_is_interrupted_more_than_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    interrupts, wait = [KeyboardInterrupt(), KeyboardInterrupt()], subprocess.Popen.wait

    def interrupted(process: subprocess.Popen[bytes], timeout: float | None = None) -> int:
        if interrupts:
            raise interrupts.pop()
        return wait(process, timeout)

    with (
        pytest.raises(KeyboardInterrupt),
        tempfile.TemporaryDirectory(dir=tmp_path) as folder,
        closing(writing(Path(folder), 1e6)),
    ):
        monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    assert interrupts == []
    assert not Path(folder).exists(), "nobody wrote into it while it was removed"


def test_nothing_is_started_again_in_a_cluster_that_has_ended(tmp_path: Path) -> None:
    cluster = writing(tmp_path, 0.0)
    cluster.close()
    cluster.restart("broker")
    assert cluster.processes == {}
