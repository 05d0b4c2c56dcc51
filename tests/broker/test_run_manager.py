"""A broker that lives long, plans that come late, and uploads that nobody wants any more."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from farflung.broker.attempts import finisher, planner
from farflung.broker.records.journal import Journal
from farflung.broker.records.run_store import RunStore
from farflung.errors import DataError, InputError
from farflung.telemetry import RunResult, StepRecord
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, plainly, same, states_of, text_job
from tests.support.runs.watched_runs import watched


def test_a_plan_that_comes_late_changes_nothing(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    late, real = threading.Event(), planner.preparation_of
    job = text_job(steps=6)
    with Loopback(home, 2) as cluster:

        def held(bundle: Any, planned: Any, start: Any, **more: Any) -> Any:
            if start.attempt == 1:
                cluster.workers["b"].stop()  # so the run is planned again, without it
                late.wait()
            return real(bundle, planned, start, **more)

        def act(run: str, record: StepRecord) -> None:
            if record.step == 1:
                late.set()
                until(lambda: f"plan-{run}" not in [thread.name for thread in threading.enumerate()])

        monkeypatch.setattr(planner, "preparation_of", held)
        found = cluster.run(job, anybody=True, on_record=act)
        live = cluster.broker.runs.live(found.run)
        log = cluster.broker.home / "runs" / found.run / "run.log"
    plans = [line for line in log.read_text().splitlines() if " plan: " in line]
    assert [line.partition("plan: ")[2].partition(";")[0] for line in plans] == ["1 stage on a"], "the late plan is not announced"
    assert found.result.status == "finished", found.result.cause
    assert [record.step for record in found.steps] == list(range(6)), "reports were heard to the end"
    assert live.attempt.number == live.store.attempt == 2
    module, _ = plainly(job, home)
    held_states, tensors = states_of(found), module.state_dict()
    assert same(held_states, {name: tensors[name].detach().numpy() for name in held_states}) == []


def test_an_upload_ends_with_its_run(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    arrived, gate = threading.Event(), threading.Event()

    def hold(self: RunStore, *args: object) -> None:
        arrived.set()
        gate.wait()

    monkeypatch.setattr(RunStore, "add_shard", hold)
    with Loopback(home, 1) as cluster:
        bundle, _ = cluster.submit(text_job(steps=4, checkpoint={"every": 1}))
        assert arrived.wait(60)
        cluster.client.stop(bundle.run, now=True)
        until(lambda: cluster.workers["a"].part is None)
        gate.set()


def test_runs_that_were_over_long_ago_are_let_go(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(finisher, "MOST_OVER", 2)
    with Loopback(home, 0) as cluster:
        bundles = [cluster.submit(text_job(name=f"job-{number}"))[0] for number in range(4)]
        waiting = bundles.pop(1)
        for bundle in bundles:
            cluster.client.stop(bundle.run)
        known = [run["run"] for run in cluster.client.status()["runs"]]  # type: ignore[union-attr, index]
        assert known == [waiting.run, *(bundle.run for bundle in bundles[1:])]
        with pytest.raises(InputError, match="there is no run"):
            list(watched(cluster.client, bundles[0].run))
        cluster.client.stop(waiting.run)


def test_a_run_whose_end_cannot_be_stored_holds_up_no_other(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The end of the first run frees its worker for the second: one event, two actions."""
    real, failed = finisher.RunFinisher.finish, []

    def finish(self: finisher.RunFinisher, live: Any, command: Any) -> None:
        if not failed:
            failed.append(live.run)
            raise DataError("the journal is damaged")
        real(self, live, command)

    with Loopback(home, 1) as cluster:
        first, _ = cluster.submit(text_job(name="first", steps=100_000, workers=1))
        until(lambda: cluster.workers["a"].part is not None)
        second, _ = cluster.submit(text_job(name="second", steps=2, workers=1))
        monkeypatch.setattr(finisher.RunFinisher, "finish", finish)
        with pytest.raises(DataError, match="the journal is damaged"):
            cluster.client.stop(first.run, now=True)
        frames = list(watched(cluster.client, second.run))
    assert failed == [first.run]
    assert RunResult.from_json(str(frames[-1].header["result"])).status == "finished"


def test_watchers_see_the_end_of_a_run_that_the_journal_cannot_store(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = Journal.write

    def write(self: Journal, run: str, what: str, /, **fields: Any) -> None:
        if what == "over":
            raise DataError("the journal is damaged")
        real(self, run, what, **fields)

    monkeypatch.setattr(Journal, "write", write)
    said: list[str] = []
    with Loopback(home, 1, say=said.append) as cluster:
        found = cluster.run(text_job(steps=2))
    assert found.result.status == "finished"
    assert f"run {found.run}: warning: its end is not in the journal: the journal is damaged" in said


def test_a_run_that_waits_keeps_its_documents_on_the_disk_only(home: Path) -> None:
    with Loopback(home, 0) as cluster:
        bundle, _ = cluster.submit(text_job(steps=2))
        waiting, _ = cluster.submit(text_job(name="later", steps=2, workers=2))
        lost, _ = cluster.submit(text_job(name="lost", steps=2))
        lives = [cluster.broker.runs.live(run) for run in (bundle.run, waiting.run, lost.run)]
        assert [live.submission.bundle for live in lives] == [None, None, None]
        (lives[2].store.root / "bundle.frame").unlink()
        cluster.add("a")
        until(lambda: all(live.result is not None for live in (lives[0], lives[2])))
        assert lives[0].result is not None
        assert (lives[0].result.status, lives[0].result.steps) == ("finished", 2)
        assert lives[2].result is not None
        assert lives[2].result.cause.startswith("cannot read ")
        assert [live.submission.bundle for live in lives] == [None, None, None]
        cluster.client.stop(waiting.run)
