"""Members that hang: the run continues without them, and they are named."""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.broker.attempts import attempt_deadlines
from farflung.broker.attempts.attempt_deadlines import AttemptDeadlines, DeadlineSettings
from farflung.broker.live_run import WaitingWorker, WorkerFacts
from farflung.clock import monotonic
from farflung.engines.base import Array
from farflung.messages.calls import ShardUpload
from farflung.protocol.broker import RunState
from farflung.protocol.events import Event, MemberLate
from farflung.schedules.base import Action
from farflung.step import ready_loop
from farflung.step.context import StepContext
from farflung.step.run_setup import Phase
from farflung.telemetry import injecting
from farflung.worker import control_session
from farflung.worker.broker_storage import BrokerStorage
from farflung.worker.data_feed import FileFeed
from farflung.worker.training_run import TrainingRun
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, text_job
from tests.support.runs.watched_runs import watched

#: Long enough for what an honest worker does on a busy machine, and soon over.
SHORT = DeadlineSettings(prepare=60.0, step=60.0, drop=60.0, exchange=60.0, times=2.0)


class _Time:
    """The time of a broker's deadlines. It passes quickly while the broker waits for the worker that hangs alone."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._ahead = 0.0
        monkeypatch.setattr(attempt_deadlines, "monotonic", lambda: monotonic() + self._ahead)

    def passes(self, waits: Callable[[], bool]) -> None:
        """Wait until the broker ``waits``, and then until it has waited for long enough."""
        until(waits)

        def over() -> bool:
            self._ahead += 1.0
            return not waits()

        until(over)


def _waits(cluster: Loopback, run: str, state: RunState, **facts: object) -> bool:
    """Whether the first attempt of ``run`` is in ``state`` and has these attributes."""
    found = cluster.broker.runs.machine.runs[run]
    return found.attempts == 1 and found.state is state and all(getattr(found, name) == value for name, value in facts.items())


def _texts(cluster: Loopback, run: str) -> list[str]:
    frames = list(watched(cluster.client, run))
    assert frames[-1].kind == "result"
    assert '"finished"' in frames[-1].header["result"], frames[-1].header
    return [str(frame.header["text"]) for frame in frames if frame.kind == "note"]


@pytest.mark.timeout(300)
def test_a_worker_that_never_prepares_is_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends heartbeats all the time."""
    monkeypatch.setattr(attempt_deadlines, "_SETTINGS", SHORT)
    over, main, time = threading.Event(), TrainingRun._main, _Time(monkeypatch)

    def hang(part: TrainingRun) -> None:
        assert part._command is not None
        if part._command.device == "b":
            over.wait()
        else:
            main(part)

    monkeypatch.setattr(TrainingRun, "_main", hang)
    with Loopback(home, 2) as cluster:
        try:
            bundle, _ = cluster.submit(text_job(steps=2))
            time.passes(lambda: _waits(cluster, bundle.run, RunState.PREPARING, prepared={"a"}))
            texts = _texts(cluster, bundle.run)
        finally:
            over.set()
    (judged,) = [text for text in texts if text.startswith("worker b is planned last")]
    assert "since it did not prepare within " in judged
    assert any(text.startswith("lost: worker b is left out: it did not prepare within ") for text in texts)


class _Followed:
    """One run of the workers a and b, and what its deadlines lead to. Times are seconds."""

    def __init__(self, state: RunState) -> None:
        latest, unwritten = SimpleNamespace(step=None), SimpleNamespace(waits=False)
        self.progress = SimpleNamespace(count=0, missing=lambda: frozenset(("a", "b")))
        self.live: Any = SimpleNamespace(
            run="r",
            workers=WorkerFacts(),
            attempt=SimpleNamespace(planned_at=0.0),
            planned=None,
            progress=self.progress,
            result=None,
            job=None,
            store=SimpleNamespace(arrived=0),
            submission=SimpleNamespace(bundle=None),
            serves=False,
            records=SimpleNamespace(latest=latest, unwritten=unwritten),
        )
        run = SimpleNamespace(run="r", state=state, attempts=1, prepared={"a"}, devices=("a", "b"), ended=set())
        machine, self.events = SimpleNamespace(runs={"r": run}), list[Event]()
        runs: Any = SimpleNamespace(changed=threading.Lock(), machine=machine, all=lambda: [self.live])
        self.check = AttemptDeadlines(runs=runs, handle=self.events.append, warn=lambda text: None).check


def test_a_worker_that_fetches_data_makes_progress() -> None:
    """The deadline begins anew with every byte that the run's workers report."""
    followed = _Followed(RunState.PREPARING)
    followed.check(0.0)
    followed.live.workers.fetched["b"] = 1
    followed.check(601.0)
    followed.live.workers.fetched["other"] = 1
    followed.check(1201.0)
    assert not followed.events
    followed.check(1202.0)
    assert followed.events == [MemberLate(run="r", name="b", what="did not prepare within 10 min 0 s", attempt=1)]


def test_a_worker_that_claims_to_fetch_for_days_is_late() -> None:
    """It reports one byte more with each heartbeat, and held up the run for ever."""
    followed = _Followed(RunState.PREPARING)
    for second in range(0, 86400, 300):
        followed.live.workers.fetched["b"] = second
        followed.check(float(second))
    assert not followed.events
    for second in (86400, 86700, 87001):
        followed.live.workers.fetched["b"] = second
        followed.check(float(second))
    assert followed.events == [MemberLate(run="r", name="b", what="did not prepare within 10 min 0 s", attempt=1)]


def test_nobody_is_late_while_the_run_makes_steps() -> None:
    """Worker b claims from the first second on that it has waited for worker a for days."""
    followed = _Followed(RunState.RUNNING)

    def claim(now: float) -> None:
        since = now - 1e6
        followed.live.workers.waits["b"] = WaitingWorker(attempt=1, peers=("a",), since=since)
        followed.check(now)

    for second in range(0, 1000, 100):
        followed.progress.count += 1
        claim(float(second))
    assert not followed.events
    claim(1099.0)
    assert not followed.events
    claim(1101.0)
    what = "did not send within 3 min 20 s what worker b waits for"
    assert followed.events == [MemberLate(run="r", name="a", what=what, attempt=1)]


@pytest.mark.timeout(300)
def test_a_worker_whose_forward_hangs_is_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers wait for it, and it does not leave the attempt."""
    monkeypatch.setattr(attempt_deadlines, "_SETTINGS", SHORT)
    over, hangs, time = threading.Event(), threading.Event(), _Time(monkeypatch)

    def hang(name: str, facts: object) -> None:
        if name == "worker.before_forward" and threading.current_thread().name.startswith("compute-"):
            assert isinstance(facts, dict)
            if facts["device"] == "b" and facts["step"] == 1:
                hangs.set()
                over.wait()

    with Loopback(home, 2) as cluster, injecting(hang):
        try:
            bundle, _ = cluster.submit(text_job(steps=4))
            time.passes(lambda: hangs.is_set() and _waits(cluster, bundle.run, RunState.RUNNING))
            time.passes(lambda: _waits(cluster, bundle.run, RunState.WAITING, awaited={"b"}))
            texts = _texts(cluster, bundle.run)
        finally:
            over.set()
    assert any(text.startswith("lost: no step was made for ") for text in texts)
    assert any("worker b is planned last, since it did not leave the attempt within " in text for text in texts)


class _Hanging:
    """The data of ``step`` hang on the thread ``data-*`` of the worker ``device``, until ``over``."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, device: str, step: int) -> None:
        self.over, self.hangs, self._device, self._step = threading.Event(), threading.Event(), device, step
        provide = FileFeed.provide

        def read(feed: FileFeed, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
            self.look(feed._setup.device, step)
            return provide(feed, phase, step, micro_batch, names)

        monkeypatch.setattr(FileFeed, "provide", read)

    def look(self, device: str, step: int) -> None:
        """``device`` reads the data of ``step``."""
        if (device, step) == (self._device, self._step):
            self.hangs.set()
            self.over.wait()


@pytest.mark.timeout(300)
def test_a_worker_whose_data_hang_is_replaced(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_deadlines, "_SETTINGS", replace(SHORT, step=100.0, data=6.0, times=0.0))
    hanging = _Hanging(monkeypatch, "a", 1)
    with Loopback(home, 2) as cluster:
        try:
            bundle, _ = cluster.submit(text_job(steps=4))
            texts = _texts(cluster, bundle.run)
        finally:
            hanging.over.set()
    cause = f"micro-batch 0 of step 1 has not come within 6.00 s from the data folder {home}: "
    assert any(text.startswith(f"worker a is replaced, because it reports: {cause}") for text in texts), texts
    judged = [text for text in texts if f"since it failed: {cause}" in text]
    assert [text.split(" since ")[0] for text in judged] == ["worker a is planned last,"], texts


@pytest.mark.timeout(300)
def test_a_worker_whose_data_hang_is_free_after_a_stop(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hanging = _Hanging(monkeypatch, "a", 1)
    with Loopback(home, 1) as cluster:
        try:
            bundle, _ = cluster.submit(text_job(steps=4))
            assert hanging.hangs.wait(60.0)
            cluster.client.stop(bundle.run, now=True)
            hanging.hangs.clear()
            assert cluster.run(text_job(steps=1)).result.status == "finished", "the read still hangs"
        finally:
            hanging.over.set()


@pytest.mark.timeout(300)
def test_a_worker_that_sends_nothing_is_named_though_it_leaves_attempts_in_time(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It claims to compute, and drops each attempt as an honest worker does."""
    monkeypatch.setattr(attempt_deadlines, "_SETTINGS", replace(SHORT, step=2000.0, times=0.0))
    gone, time = set[str](), _Time(monkeypatch)
    computed = ready_loop._compute

    def withhold(source: ready_loop.ActionSource, action: Action, context: StepContext) -> None:
        if context.setup.device == "b" and source.step == 1 and not gone:
            gone.add("b")
            context.inbox.wait_until(lambda: False)  # until the attempt is dropped
        computed(source, action, context)

    monkeypatch.setattr(ready_loop, "_compute", withhold)
    monkeypatch.setattr(control_session, "BEATS", 120)  # every second
    with Loopback(home, 2) as cluster:
        bundle, _ = cluster.submit(text_job(steps=4))
        (live,) = cluster.broker.runs.all()
        time.passes(lambda: "a" in live.workers.waits)
        texts = _texts(cluster, bundle.run)
    said = "worker b is planned last, since it did not send within 1 min 0 s what worker a waits for"
    assert any(text.startswith(said) for text in texts), texts


@pytest.mark.timeout(300)
def test_a_worker_that_never_sends_its_share_of_a_checkpoint_is_named(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(attempt_deadlines, "_SETTINGS", replace(SHORT, step=200.0, checkpoint=3.0, times=0.0))
    upload, over, once = BrokerStorage.upload, threading.Event(), list[str]()

    def hang(storage: BrokerStorage, head: ShardUpload, *of: Any) -> None:
        if not once:
            once.append("the first of two")
            over.wait()
        upload(storage, head, *of)

    monkeypatch.setattr(BrokerStorage, "upload", hang)
    with Loopback(home, 2) as cluster:
        try:
            bundle, _ = cluster.submit(text_job(steps=4, checkpoint={"every": 2}))
            texts = _texts(cluster, bundle.run)
        finally:
            over.set()
    said = r"worker [ab] is planned last, since it did not send its share of the checkpoint of step 2 within 3\.00 s"
    assert any(re.match(said, text) for text in texts), texts
