"""The plan that ran until now reaches the planner: after a death, after a worker has joined, after the broker came back."""

from __future__ import annotations

import hashlib
import os
import threading
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from farflung.broker.attempts import planner
from farflung.broker.live_run import LiveRun
from farflung.broker.planning import Planned, plan_run
from farflung.broker.records.bundle_file import store_bundle
from farflung.broker.records.journal import Journal, JournaledRun
from farflung.broker.records.run_log import LogPosition
from farflung.broker.restored_runs import RestoredRuns
from farflung.broker.run_recorder import RunRecorder
from farflung.clock import monotonic
from farflung.messages.watching import Note
from farflung.messages.watching import Planned as PlannedMessage
from farflung.plan import Plan
from farflung.protocol.events import RunRestored
from farflung.telemetry import RunFolder, injecting
from tests.support.runs.loopback import Finished, Loopback, captured, cut_off, text_folder, text_job


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("running-plan")
    text_folder(folder)
    return folder


def seen(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Plan | None, Plan]]:
    """What the broker will tell the planner of the running plan, and the plan that it gets."""
    calls: list[tuple[Plan | None, Plan]] = []

    def spy(*args: Any, running: Plan | None = None, **kwargs: Any) -> Planned:
        made = plan_run(*args, running=running, **kwargs)
        calls.append((running, made.plan))
        return made

    monkeypatch.setattr(planner, "plan_run", spy)
    return calls


def lost(cluster: Loopback, joins: bool) -> Finished:
    """A run that loses its worker b in step 3; ``joins``: d comes meanwhile, and as many are wanted."""
    done: list[threading.Thread] = []

    def inject(name: str, facts: Mapping[str, int | str]) -> None:
        if (name, facts.get("step"), facts.get("device")) == ("worker.before_update", 3, "b") and not done:
            done.append(threading.Thread(target=cluster.add, args=("d",)))
            worker = cluster.workers.pop("b")
            cut_off(worker)
            if joins:
                done[0].start()

    with injecting(inject):
        found = cluster.run(text_job(steps=6, copies=0, **({"workers": 3} if joins else {})), anybody=not joins)
    assert done
    if joins:
        done[0].join()
    return found


@pytest.mark.parametrize("joins", [False, True])
def test_a_new_plan_is_made_from_the_one_that_ran(
    place: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, joins: bool
) -> None:
    calls = seen(monkeypatch)
    with Loopback(place, 3, folder=str(tmp_path)) as cluster:
        found = lost(cluster, joins)
    assert found.result.status == "finished", found.result.cause
    assert len(calls) > 1
    assert calls[0][0] is None, "nothing ran before"
    for (_, before), (told, _) in pairwise(calls):
        assert told == before
    assert "b" in calls[0][1].devices
    assert ("d" in calls[-1][1].devices) == joins


def test_a_broker_that_was_started_again_knows_the_plan_that_ran(place: Path, tmp_path: Path) -> None:
    with Loopback(place, 2, folder=str(tmp_path / "broker")) as cluster:
        found = cluster.run(text_job())
    folder = RunFolder(found.folder)
    plan = Plan.from_json(folder.plan.read_text(encoding="utf-8"))
    (found.folder / "result.json").unlink()  # as if it had been killed before the end
    store_bundle(found.folder, replace(captured(text_job(), place), run=found.run).to_bytes())
    lives: list[tuple[LiveRun, RunRestored]] = []

    def restored(attempts: int, sha256: str = "") -> tuple[LiveRun, RunRestored]:
        """What a broker adds that is started now."""
        lives.clear()
        runs = RestoredRuns(
            folder=found.folder.parent,
            add=lambda live, event: lives.append((live, event)),
            handle=print,
            recorder=cast(RunRecorder, SimpleNamespace(progress=lambda *args: SimpleNamespace(begin=lambda elapsed: None))),
            say=print,
        )
        runs.restore((JournaledRun(run=found.run, submitter="client", attempts=attempts, devices=2, plan=sha256),))
        runs.close()
        return lives[0]

    hour_ago = time.time() - 3600
    for attempts, known in ((0, None), (1, plan)):
        os.utime(folder.metrics, (hour_ago, hour_ago))
        live, event = restored(attempts)
        assert monotonic() - live.times.lost_at >= 3600, "the pause began with the last step, not with the restart"
        told, position = [], LogPosition()
        while live.records.log.has_more(position):
            fresh, position = live.records.log.read(position)
            told += fresh
        assert any(isinstance(one, PlannedMessage) for one in told), "watchers get what they would have got before"
        assert isinstance(told[-1], Note)
        assert told[-1].text.startswith("the broker was killed and was started again; waiting for ")
        assert live.planned is None, "it has made none of its own"
        assert live.running == known
        assert event.names == (plan.devices if known else ())
    digest = hashlib.sha256(folder.plan.read_bytes()).hexdigest()
    with closing(Journal(tmp_path / "broker" / "journal.sqlite")) as journal:
        assert [one.plan for one in journal.runs] == [digest]
    assert restored(1, digest)[0].running == plan
    folder.plan.write_text(replace(plan, planner="newer").to_json(), encoding="utf-8")
    live, event = restored(1, digest)
    assert live.running is None, "the broker died between the newer plan and its journal: workers retain states by the older one"
    assert (event.expected, event.names) == (2, ())
    folder.plan.write_text("{torn", encoding="utf-8")
    assert restored(1)[0].running is None


def test_a_run_that_lacks_its_first_checkpoint_does_not_begin_at_step_0(place: Path, tmp_path: Path) -> None:
    bundle = replace(captured(text_job(), place), run="continued")
    job = bundle.job.model_copy(update={"checkpoint": bundle.job.checkpoint.model_copy(update={"resume": "earlier"})})
    store_bundle(tmp_path / "continued", replace(bundle, job=job).to_bytes())
    said: list[str] = []
    runs = RestoredRuns(folder=tmp_path, add=print, handle=print, recorder=cast(RunRecorder, None), say=said.append)
    runs.restore((JournaledRun(run="continued", submitter="client"),))
    runs.close()
    assert said == [
        (
            f"run continued: its files cannot be used, so the run does not resume: {tmp_path}/continued/checkpoints lacks the "
            "checkpoint with which the run began"
        )
    ]
