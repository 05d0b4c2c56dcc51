"""Hybrid plans on workers of this process: unreliable ones help, fail, are silent, come and go, and no bit changes."""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from farflung.errors import ConnectionLost
from farflung.ledger import ledger_of
from farflung.messages.data import RunMessage
from farflung.messages.hybrid import HelperStates, ServerFree, SliceAnswer, SliceTask
from farflung.messages.schema import UNSET, Message
from farflung.protocol.pool.task_pool import Patience, TaskPool
from farflung.step.executor import Executor
from farflung.step.hybrid import stage_server
from farflung.telemetry import RunFolder, injecting
from farflung.worker import helper as helping
from farflung.worker.run_part import Sender
from tests.support.runs.helped_runs import JOB, Scene, check, helped
from tests.support.runs.loopback import Finished, Loopback, same, states_of, text_job
from tests.support.runs.watched_runs import watched


@pytest.fixture
def patience(monkeypatch: pytest.MonkeyPatch) -> list[Patience]:
    """The one element is the patience of pools; at first without end, so that only what a test does makes tasks change hands."""
    chosen = [Patience(least=1e6, first=1e6)]
    real = stage_server.TaskPool
    monkeypatch.setattr(stage_server, "TaskPool", lambda *args, **kinds: real(*args, **{**kinds, "patience": chosen[0]}))
    return chosen


@pytest.fixture
def scene(monkeypatch: pytest.MonkeyPatch, patience: list[Patience]) -> Iterator[Scene]:
    made = Scene(monkeypatch)
    with injecting(made):
        yield made


def test_helpers_change_no_bit(home: Path, scene: Scene) -> None:
    found, said = helped(home)
    check(home, found)
    assert {device for _, device in scene.seen} == {"u", "v"}, "both have helped"
    assert sum("ready to help" in line for line in said) == 2
    entries = {entry.machine: entry for entry in ledger_of(RunFolder(found.folder)).entries}
    assert {"u", "v"} < set(entries)
    assert sum(entries[name].samples for name in "uv") > 0
    assert all(entries[name].busy_seconds > 0 for name in "uv")


@pytest.mark.parametrize("codec", [{"name": "fp16"}, {"name": "topk", "ratio": 4.0}, {"name": "int4", "rounding": "stochastic"}])
def test_helpers_change_no_bit_of_a_run_with_a_codec(
    home: Path, scene: Scene, monkeypatch: pytest.MonkeyPatch, codec: dict[str, object]
) -> None:
    answers: list[SliceAnswer] = []
    receive = Executor.receive

    def received(self: Executor, peer: str, message: Message, nbytes: int = 0) -> None:
        receive(self, peer, message, nbytes)
        if isinstance(message, SliceAnswer):
            answers.append(message)

    monkeypatch.setattr(Executor, "receive", received)
    job = text_job(steps=4, micro_batch_sizes=[2, 1, 2, 1], plan={"helpers": True}, codec=codec)
    for event in scene.here.values():
        event.set()
    with Loopback(home, 2, folder="calm") as calm:
        truth = calm.run(job.model_copy(update={"plan": job.plan.model_copy(update={"helpers": False})}))
    for event in scene.here.values():
        event.clear()
    found, _ = helped(home, job)
    assert found.result.status == "finished", found.result.cause
    assert any(item is not None and item.payload is not UNSET for answer in answers for item in answer.arrays)
    assert found.losses == truth.losses
    assert same(states_of(found), states_of(truth)) == []


def test_helpers_compute_with_the_loss_scale(home: Path, scene: Scene) -> None:
    scaled = {"steps": 10, "precision": "fp16", "loss_scale": {"initial": 2.0**24, "every": 2}}
    job = text_job(micro_batch_sizes=[2, 1, 2, 1], plan={"helpers": True}, **scaled)
    found, _ = helped(home, job)
    check(home, found, job)
    assert {device for _, device in scene.seen} == {"u", "v"}, "both have helped"
    assert 0 < sum(record.skipped for record in found.steps) < 10


@pytest.mark.parametrize("point", ["helper.before_forward", "helper.before_answer", "helper.before_backward"])
def test_a_helper_that_fails_costs_its_slices_only(home: Path, scene: Scene, point: str) -> None:
    failed: list[str] = []

    def act(name: str, device: str) -> None:
        if name == point and len(failed) < 2:
            failed.append(device)
            raise ConnectionLost("its machine is gone")

    scene.act = act  # type: ignore[method-assign]
    found, said = helped(home)
    check(home, found)
    assert failed, "a helper came so far"
    assert any("helps no more: its machine is gone" in line for line in said)


def test_a_silent_helper_is_not_waited_for(home: Path, scene: Scene, patience: list[Patience]) -> None:
    patience[0] = Patience(least=0.1, factor=1.0, first=0.1)
    over, silent, came_so_far = threading.Event(), list[str](), threading.Event()
    scene.awaited = came_so_far  # else a slow helper may have got nowhere when the run is over

    def act(name: str, device: str) -> None:
        if name == "helper.before_answer":
            silent.append(device)
            came_so_far.set()
            over.wait()

    scene.act = act  # type: ignore[method-assign]
    found, _ = helped(home, over=over)
    check(home, found)
    assert silent, "a helper was asked and did not answer"


def test_with_duplicates_a_slow_helper_is_not_waited_for(
    home: Path, scene: Scene, patience: list[Patience], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first helper to answer has answers of both kinds by the end of step 2: its first backward can't be done twice."""
    patience[0] = Patience(least=1e6, first=1e6, hedge=1.0)
    monkeypatch.setattr(TaskPool, "power", lambda self, name: 1.0)  # each has slices in each step, however slow it is
    over, doing, slow = threading.Event(), dict[str, str](), list[str]()
    scene.awaited = threading.Event()
    answered: dict[str, set[str]] = {"u": set(), "v": set()}

    def act(name: str, device: str) -> None:
        if name != "helper.before_answer":
            doing[device] = name
        elif len(answered[device]) == 2:  # an answer of each kind has come, so what is usual is known
            slow.append(device)
            assert scene.awaited is not None
            scene.awaited.set()
            over.wait()
        else:
            answered[device].add(doing[device])

    scene.act = act  # type: ignore[method-assign]
    job = JOB.model_copy(update={"plan": JOB.plan.model_copy(update={"duplicates": True})})
    found, _ = helped(home, job, over=over)
    check(home, found)
    assert slow, "a helper was asked and did not answer"


REPLICATED = text_job(
    steps=4,
    micro_batch_sizes=[1] * 8,
    virtual_replicas=4,
    plan={"helpers": True, "planner": "equal_compute", "replicas": 2},
)


def alone(home: Path) -> Finished:
    """What ``REPLICATED`` comes to without replicas and helpers."""
    with Loopback(home, 2, folder="calm") as calm:
        return calm.run(
            REPLICATED.model_copy(update={"plan": REPLICATED.plan.model_copy(update={"helpers": False, "replicas": 1})})
        )


def test_servers_of_a_stage_share_helpers(home: Path, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TaskPool, "power", lambda self, name: 1.0)  # each has slices in each step, however slow it is
    given: set[tuple[type[RunMessage], str]] = set()
    real = helping.Helper.on_message

    def noted(self: helping.Helper, sender: Sender, message: RunMessage) -> None:
        given.add((type(message), sender.peer))
        real(self, sender, message)

    monkeypatch.setattr(helping.Helper, "on_message", noted)
    for event in scene.here.values():
        event.set()
    truth = alone(home)
    for event in scene.here.values():
        event.clear()
    found, _ = helped(home, REPLICATED, helpers="u")
    assert found.result.status == "finished", found.result.cause
    assert found.losses == truth.losses
    assert same(states_of(found), states_of(truth)) == []
    assert {(SliceTask, "a"), (SliceTask, "b")} <= given, "one helper helps both"
    assert sum(found is HelperStates for found, _ in given) == 1, "one server sends the states"


def test_a_server_that_is_done_helps_its_fellow(home: Path, patience: list[Patience], monkeypatch: pytest.MonkeyPatch) -> None:
    """``a`` begins step 1 when ``b`` has said that it is free."""
    free, computed = threading.Event(), list[str]()
    receive = Executor.receive

    def received(self: Executor, peer: str, message: Message, nbytes: int = 0) -> None:
        receive(self, peer, message, nbytes)
        if isinstance(message, ServerFree) and peer == "b" and message.step == 1:
            free.set()
        if isinstance(message, SliceAnswer):
            computed.append(peer)

    def wait(name: str, facts: Mapping[str, int | str]) -> None:
        if name == "worker.before_forward" and facts["step"] == 1 and facts["device"] == "a":
            free.wait()

    truth = alone(home)
    monkeypatch.setattr(Executor, "receive", received)
    with injecting(wait):
        found, _ = helped(home, REPLICATED, helpers="")
    assert found.result.status == "finished", found.result.cause
    assert found.losses == truth.losses
    assert same(states_of(found), states_of(truth)) == []
    assert computed.count("b") >= 1, "b has computed slices of a"


def test_without_a_reliable_worker_the_run_waits(home: Path) -> None:
    with Loopback(home, 0) as cluster:
        cluster.add("u", reliable=False)
        bundle, _ = cluster.submit(JOB)
        status = next(run for run in cluster.client.status()["runs"] if run["run"] == bundle.run)  # type: ignore[union-attr]
        assert status["state"] == "waiting"
        cluster.add("a")
        for frame in watched(cluster.client, bundle.run):
            last = frame
        assert last.kind == "result"
