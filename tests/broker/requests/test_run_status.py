"""The status of runs is the same after a restart of the broker, and after SIGKILL."""

from __future__ import annotations

import json
import shutil
import sqlite3
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from farflung.broker.records.latest_records import LatestRecords
from farflung.protocol.broker import BrokerMachine, RunState
from farflung.protocol.events import FinishRun, RunRestored
from farflung.telemetry import EvaluationRecord, RecoveryRecord, StepRecord
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, text_folder, text_job

KINDS = ("finished", "failed", "stopped", "resumed", "queued")


def status(cluster: Loopback) -> dict[str, dict[str, Any]]:
    """By run, without the folder's own path."""
    runs = json.loads(json.dumps(cluster.client.status()["runs"]).replace(str(cluster.broker.home), "HOME"))
    return {run["run"]: run for run in runs}


@pytest.fixture(scope="module")
def before_and_after(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The status of five runs, and that which a broker gives that begins with what a SIGKILL of the first one leaves."""
    place = tmp_path_factory.mktemp("status")
    text_folder(place)
    with Loopback(place, 2) as cluster:
        done = cluster.run(text_job(checkpoint={"every": 2}, evaluate={"every": 2, "batches": 1}))
        failed = cluster.run(text_job(optimizer={"name": "sgd", "lr": 1e30}, on_nan="stop", checkpoint={"every": 1}))
        assert failed.result.status == "failed"
        stopped = cluster.run(
            text_job(steps=100, checkpoint={"recover_every": 0.0}),
            on_record=lambda run, record: cluster.client.stop(run) if record.step == 2 else None,
        )
        resumed = cluster.run(text_job(steps=6, checkpoint={"resume": done.run}))
        queued, _ = cluster.submit(text_job(steps=8, workers=5, checkpoint={"resume": done.run}))
        names = dict(zip((done.run, failed.run, stopped.run, resumed.run, queued.run), KINDS, strict=True))
        before = {names[run]: found for run, found in status(cluster).items()}
        shutil.copytree(cluster.broker.home, place / "copy", ignore=shutil.ignore_patterns("lock"))
    with Loopback(place, 0, folder="copy") as again:
        yield before, {names[run]: found for run, found in status(again).items()}


@pytest.mark.parametrize("kind", KINDS)
def test_a_restart_changes_no_status(kind: str, before_and_after: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, after = before_and_after
    assert after[kind] == before[kind]


def test_what_the_status_says(before_and_after: tuple[dict[str, Any], dict[str, Any]]) -> None:
    before, after = before_and_after
    assert {kind: run["state"] for kind, run in after.items()} == {
        "finished": "finished",
        "failed": "failed",
        "stopped": "stopped",
        "resumed": "finished",
        "queued": "waiting",
    }
    done = after["finished"]
    assert (done["step"], done["steps"], done["devices"]) == (4, 4, ["a", "b"])
    assert done["loss"] > 0
    assert done["evaluation"]["step"] == 4
    assert done["seconds"] > 0
    assert done["checkpoint"].startswith("HOME/runs/")
    assert after["failed"]["cause"]
    assert 3 <= after["stopped"]["step"] < 100
    assert (after["resumed"]["step"], after["queued"]["step"]) == (6, 4), "it begins at the checkpoint's step"
    assert list(before) == list(after), "in the same order"


def test_a_run_that_is_stopping_is_still_stopping(home: Path) -> None:
    with Loopback(home, 1) as cluster:

        def stop(run: str, step: int) -> None:
            if step == 1:
                cluster.client.stop(run)
                journal = sqlite3.connect(cluster.broker.home / "journal.sqlite")
                until(lambda: journal.execute("SELECT 1 FROM events WHERE kind='stopping'").fetchall())
                journal.close()
                shutil.copytree(cluster.broker.home, home / "copy", ignore=shutil.ignore_patterns("lock", "result.json"))

        found = cluster.run(text_job(steps=100, workers=1), on_record=lambda run, record: stop(run, record.step))
    with Loopback(home, 0, folder="copy") as again:
        assert status(again)[found.run]["state"] == "stopping"
        again.add("a")
        until(lambda: status(again)[found.run]["state"] == "stopped")


def test_a_stopping_run_without_a_plan_is_over_after_a_restart() -> None:
    machine = BrokerMachine()
    commands = machine.handle(RunRestored(run="r", workers=1, stopping=True))
    assert [type(command) for command in commands] == [FinishRun]
    assert machine.runs["r"].state is RunState.STOPPED


def test_records_before_a_recovery_do_not_count() -> None:
    latest = LatestRecords()
    step = StepRecord(step=3, loss=2.0, seconds=1.0, elapsed=1.0, samples=4)
    evaluation = EvaluationRecord(step=4, elapsed=1.0, loss=2.5)
    latest.take(step)
    latest.take(evaluation)
    recovery = RecoveryRecord(
        step=4, attempt=2, replayed=0, pause=0.0, elapsed=1.0, cause="", devices=("a",), source="memory", moved=0
    )
    latest.take(recovery)
    assert (latest.step, latest.evaluation) == (step, None)
    latest.take(replace(recovery, step=3))
    assert latest.step is None


def test_a_run_that_waits_is_stopped_at_once(home: Path) -> None:
    with Loopback(home, 0) as cluster:
        bundle, _ = cluster.submit(text_job(workers=1))
        assert cluster.client.stop(bundle.run), "there is no step that it could end with"
        assert status(cluster)[bundle.run]["state"] == "stopped"
