"""A worker joins a run that wants better plans: it is planned again, nothing is made again, and no bit changes."""

from __future__ import annotations

import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.broker.attempts import replanner
from farflung.broker.links.reachability import Reachability
from farflung.broker.links.table import LinkTable
from farflung.broker.live_run import TrainingTimes, WorkerFacts
from farflung.broker.planning import LimitedJudges
from farflung.broker.straggler_monitor import StragglerMonitor
from farflung.engines.base import DeviceReport
from farflung.engines.torch.engine import TorchEngine
from farflung.protocol.broker import BrokerMachine, RunState
from farflung.protocol.events import (
    BetterPlan,
    MemberJoined,
    MemberSlowed,
    Offer,
    PlanMade,
    RunPrepared,
    RunSubmitted,
    StopRequested,
)
from farflung.telemetry import RecoveryRecord, RunFolder, StepRecord
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, plainly, same, states_of, text_job

INPUTS = replanner.PlanInputs(
    links=LinkTable(),
    reachability=Reachability(lambda name, frame: None, None),
    judges=LimitedJudges(),
    measure=lambda members, threads: None,
)


def test_a_pause_must_be_worth_it() -> None:
    assert replanner.worth_it(1.0, 0.5, 60)
    assert not replanner.worth_it(1.0, 0.5, 59), "too few steps are left"
    assert not replanner.worth_it(1.0, 0.95, 10_000), "the step is hardly shorter"
    assert replanner.worth_it(1.0, 0.5, 120, transfer=10.0)
    assert not replanner.worth_it(1.0, 0.5, 119, transfer=10.0), "the states have to move"


@pytest.mark.parametrize(
    ("host", "measured", "then", "moves"),
    [
        ("h", 0.028, 0.0134, False),
        ("h", 0.028, 0.0095, True),
        ("h", 0.0176, 0.0134, True),
        ("h", 0.010, 0.0134, True),
        ("", 0.028, 0.0134, True),
    ],
    ids=["within the error", "better than the error", "predicted well", "faster than predicted", "cores of their own"],
)
def test_workers_that_share_cores_move_only_for_more_than_predictions_err(
    monkeypatch: pytest.MonkeyPatch, host: str, measured: float, then: float, moves: bool
) -> None:
    """The plan that runs is predicted to take 17.6 ms per step."""
    machine, told, notes = BrokerMachine(), list[BetterPlan | MemberSlowed](), list[str]()
    offer = Offer(memory=1e9, speed=1e9, host=host, processors=("0", "1"))
    machine.handle(RunSubmitted(run="r", workers=None))
    machine.handle(MemberJoined(name="a", address="a:1", offer=offer))
    machine.handle(PlanMade(run="r", attempt=1, devices=("a",)))
    machine.handle(RunPrepared(run="r", name="a", attempt=1))
    machine.handle(MemberJoined(name="b", address="b:1", offer=offer))
    old = SimpleNamespace(plan=SimpleNamespace(stages=("a",), devices=("a",)), unused={})
    new = SimpleNamespace(
        plan=SimpleNamespace(stages=("a", "b"), devices=("a", "b")), estimate=SimpleNamespace(step_seconds=then)
    )
    monkeypatch.setattr(replanner, "cluster_of", lambda *args: None)
    monkeypatch.setattr(replanner, "plan_run", lambda *args, **kwargs: new)
    monkeypatch.setattr(replanner, "transfer_seconds", lambda *args: 0.0)
    monkeypatch.setattr(replanner, "predict_plan", lambda *args: SimpleNamespace(step_seconds=0.0176))
    monkeypatch.setattr(replanner, "strangers_of", lambda *args: [])
    made = replanner.Replanner(machine, threading.Condition(), told.append, INPUTS, lambda run, text: notes.append(text))
    job = text_job(steps=100_000, plan={"again": True})
    live: Any = SimpleNamespace(
        run="r",
        job=job,
        planned=old,
        submission=SimpleNamespace(bundle=SimpleNamespace(graph=None, job=job)),
        progress=SimpleNamespace(last=SimpleNamespace(seconds=measured)),
        times=TrainingTimes(furthest=10),
        workers=WorkerFacts(),
        result=None,
    )
    monkeypatch.setattr(made, "_main", lambda: None)
    made.begins(live)
    made.search("a link is slow")
    assert [type(event) for event in told] == ([BetterPlan] if moves else [])
    assert [" (steps take 1.6 times as long as predicted, and it shares cores, too), " in text for text in notes] == (
        [] if moves else [True]
    )


@pytest.mark.parametrize("settling", [True, False])
def test_closing_waits_for_nothing(monkeypatch: pytest.MonkeyPatch, settling: bool) -> None:
    monkeypatch.setattr(replanner, "_SETTLE", 1e6)
    monkeypatch.setattr(replanner, "_PERIOD", 1e6)
    looked: list[int] = []
    monkeypatch.setattr(replanner.Replanner, "search", lambda self, why="": looked.append(1))
    made = replanner.Replanner(BrokerMachine(), threading.Condition(), print, INPUTS, print)
    run: Any = SimpleNamespace(run="r", job=text_job(plan={"again": True}), planned=None, result=None, workers=WorkerFacts())
    made.begins(run)
    if settling:
        made.joined("b")
    made.close()
    assert "replanning" not in [thread.name for thread in threading.enumerate()]
    assert looked == []


def test_a_stop_in_mid_plan_keeps_the_steps_that_no_checkpoint_had(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replanner, "_SETTLE", 0.0)
    monkeypatch.setattr(replanner, "worth_it", lambda now, then, steps, transfer: True)
    job = text_job(steps=1000, plan={"planner": "equal_compute", "again": True})
    with Loopback(home, 1) as cluster:
        done: list[str] = []

        def act(run: str, record: StepRecord) -> None:
            if record.step >= 3 and not done:
                done.append(run)
                cluster.add("b")
                machine = cluster.broker.runs.machine
                until(lambda: machine.runs[run].state is not RunState.RUNNING or machine.runs[run].attempts > 1)
                cluster.broker.manager.handle(StopRequested(run=run))

        found = cluster.run(job, anybody=True, on_record=act)
        (told,) = cluster.client.status()["runs"]  # type: ignore[misc]
    assert found.result.status == "stopped", found.result.cause
    assert found.result.steps > 3
    assert Path(found.result.checkpoint).name == f"step-{found.result.steps:010d}", "its end has a checkpoint"
    assert (told["state"], told["cause"]) == ("stopped", ""), "an earlier change of plans is not why it ended"


@pytest.mark.parametrize("again", [True, False])
def test_who_joins_takes_part(home: Path, monkeypatch: pytest.MonkeyPatch, again: bool) -> None:
    monkeypatch.setattr(replanner, "_SETTLE", 0.0)
    monkeypatch.setattr(replanner, "worth_it", lambda now, then, steps, transfer: True)
    job = text_job(steps=8, plan={"planner": "equal_compute", "again": again})
    with Loopback(home, 1) as cluster:
        done: list[threading.Thread] = []

        def act(run: str, record: StepRecord) -> None:
            if record.step == 1 and not done:
                cluster.add("b")
                done.append(threading.current_thread())
                if again:
                    machine = cluster.broker.runs.machine
                    until(lambda: machine.runs[run].state is not RunState.RUNNING or machine.runs[run].attempts > 1)

        found = cluster.run(job, anybody=True, on_record=act)
        planned = cluster.broker.runs.live(found.run).planned
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


def test_a_run_moves_off_a_worker_that_becomes_slow(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """b computes ten times as long from its 25th step on, as it reports. Nothing is made again, and no bit changes."""
    heard, steps = StragglerMonitor.step, {"a": 0, "b": 0}

    def step(self: StragglerMonitor, run: str, attempt: int, name: str, busy: float) -> None:
        steps[name] += attempt == 1
        heard(self, run, attempt, name, 1.0 if name == "b" and steps[name] >= 25 and attempt == 1 else 0.1)

    monkeypatch.setattr(StragglerMonitor, "step", step)
    size = 8_000_000_000  # so weak that steps are expected to take seconds:
    weak = DeviceReport(name="weak", flops_per_second=2e5, launch_seconds=0.0, total_bytes=size, free_bytes=size)
    monkeypatch.setattr(TorchEngine, "measure", lambda self, device, peak=None: weak)
    job = text_job(steps=34, plan={"planner": "op_fence", "again": True})
    with Loopback(home, 2) as cluster:
        machine = cluster.broker.runs.machine

        def act(run: str, record: StepRecord) -> None:
            if record.step == 30:  # workers that hang on this call can't let go of the attempt
                until(lambda: machine.runs[run].state is not RunState.RUNNING or machine.runs[run].attempts > 1)

        found = cluster.run(job, anybody=True, on_record=act)
        speed, drift = machine.members["b"].offer.speed, machine.members["b"].drift
        (told,) = [one for one in cluster.client.status()["members"] if one["name"] == "b"]  # type: ignore[attr-defined]
    assert found.result.status == "finished", found.result.cause
    assert drift == 10.0
    assert told["speed"] == speed / drift, "people see how fast it is now"
    records = list(RunFolder(found.folder).records())
    first, *_ = [record for record in records if isinstance(record, RecoveryRecord)]
    assert first.cause.startswith("worker b is slow but alive: it computes for 1.00 s per step, 10.0 times its usual 100 ms; ")
    assert "there is a better plan: " in first.cause
    assert (first.source, first.replayed) == ("memory", 0)
    assert first.pause > 0
    notes = [frame.header["text"] for frame in found.frames if frame.kind == "note"]
    assert any(text.startswith("worker b is slow") and "continues with the new plan" in text for text in notes)
    assert [record.step for record in found.steps] == list(range(34))
    module, _ = plainly(job, home)
    held, tensors = states_of(found), module.state_dict()
    assert held
    assert same(held, {name: tensors[name].detach().numpy() for name in held}) == []


def test_status_tells_who_joined_why_it_is_idle(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replanner, "_SETTLE", 0.0)
    seen: list[str] = []

    def idle(cluster: Loopback) -> str:
        members = cluster.client.status()["members"]
        assert isinstance(members, list)
        return str({member["name"]: member["idle"] for member in members}.get("b"))

    with Loopback(home, 1) as cluster:

        def act(run: str, record: StepRecord) -> None:
            if record.step == 1 and not seen:
                cluster.add("b")
                until(lambda: "the run ends in about" in idle(cluster))
                seen.append(idle(cluster))

        found = cluster.run(text_job(steps=8, plan={"planner": "equal_compute"}), anybody=True, on_record=act)
        assert seen[0].startswith(f"{found.run}: the run ends in about ")
        assert seen[0].endswith(", too soon for a move to another plan")
        assert idle(cluster) == "waiting for a job"
