"""A worker joins a run that wants better plans: it is planned again, nothing is made again, and no bit changes."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace

import pytest
from loopback import Loopback, plainly, same, states_of, text_job, until

from farflung.protocol.broker import RunState
from farflung.runtime import replanning
from farflung.telemetry import RecoveryRecord, RunFolder, StepRecord


def test_a_pause_must_be_worth_it() -> None:
    assert replanning.worth_it(1.0, 0.5, 60)
    assert not replanning.worth_it(1.0, 0.5, 59), "too few steps are left"
    assert not replanning.worth_it(1.0, 0.95, 10_000), "the step is hardly shorter"


@pytest.mark.parametrize("settling", [True, False])
def test_closing_waits_for_nothing(monkeypatch: pytest.MonkeyPatch, settling: bool) -> None:
    monkeypatch.setattr(replanning, "_SETTLE", 1e6)
    monkeypatch.setattr(replanning, "_PERIOD", 1e6)
    looked: list[int] = []
    monkeypatch.setattr(replanning.Replanning, "look", lambda self: looked.append(1))
    made = replanning.Replanning(None, threading.Condition(), print, (None, None, None))  # type: ignore[arg-type]
    made.begins(SimpleNamespace(run="r", job=text_job(plan={"again": True}), result=None))  # type: ignore[arg-type]
    if settling:
        made.joined()
    made.close()
    assert made._thread is not None
    made._thread.join(60)
    assert not made._thread.is_alive()
    assert looked == []


@pytest.mark.parametrize("again", [True, False])
def test_who_joins_takes_part(home: Path, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    monkeypatch.setattr(replanning, "_SETTLE", 0.0)
    monkeypatch.setattr(replanning, "worth_it", lambda now, then, steps: True)
    job = text_job(steps=8, plan={"planner": "equal_compute", "again": again})
    with Loopback(home, 1) as cluster:
        done: list[threading.Thread] = []

        def act(run: str, record: StepRecord) -> None:
            if record.step == 1 and not done:
                cluster.add("b")
                done.append(threading.current_thread())
                if again:
                    machine = cluster.broker._runs.machine
                    until(lambda: machine.runs[run].state is not RunState.RUNNING or machine.runs[run].attempts > 1)

        found = cluster.run(job, anybody=True, on_record=act)
        planned = cluster.broker._runs.live(found.run).planned
    assert found.result.status == "finished", found.result.cause
    assert planned is not None
    assert set(planned.plan.devices) == ({"a", "b"} if again else {"a"})
    records = list(RunFolder(found.folder).records())
    recoveries = [record for record in records if isinstance(record, RecoveryRecord)]
    assert [(record.source, record.replayed) for record in recoveries] == ([("memory", 0)] if again else [])
    assert all("there is a better plan" in record.cause for record in recoveries)
    module, _ = plainly(job, home)
    held, tensors = states_of(found), module.state_dict()
    assert held
    assert same(held, {name: tensors[name].detach().numpy() for name in held}) == []
