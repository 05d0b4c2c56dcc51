"""Ctrl-C while ``train`` runs: one line that says where it was, no traceback of threads, nothing left running."""

from __future__ import annotations

import logging
import signal
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from farflung import CheckpointSpec, train
from farflung.broker.process import Broker
from farflung.client.connection import Client
from farflung.client.in_process import LocalRun
from farflung.security import Ticket
from farflung.telemetry.records import StepRecord
from farflung.worker.membership import join
from tests.support.runs.loopback import Loopback
from tests.support.runs.small_training import same, trained
from tests.support.runs.worker_deaths import vanish


class Model(torch.nn.Sequential):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return (super().forward(x) - y).pow(2).mean()


def batch(step: int, micro_batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.ones(4, 8), torch.zeros(4, 1)


def workers_computing() -> list[str]:
    """Threads of workers that still run Python code (a thread's own word is not taken for it)."""
    running = {thread.ident: thread.name for thread in threading.enumerate()}
    return [running[ident] for ident in sys._current_frames() if running.get(ident, "").startswith(("compute-", "lane-"))]


@pytest.fixture
def ctrl_c() -> Iterator[Any]:
    """A function that does what Ctrl-C does."""
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield lambda: signal.pthread_kill(main, signal.SIGINT)
    signal.signal(signal.SIGINT, before)


def test_the_interrupt_says_how_far_it_came_and_ends_the_workers() -> None:
    seen: list[int] = []
    main = threading.main_thread().ident
    assert main is not None
    before = signal.signal(signal.SIGINT, signal.default_int_handler)

    def on_step(record: StepRecord) -> None:
        seen.append(record.step)
        if record.step == 2:
            signal.pthread_kill(main, signal.SIGINT)

    def model():
        return Model(torch.nn.Linear(8, 4), torch.nn.Tanh(), torch.nn.Linear(4, 1))

    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            train(model, batch, steps=1_000_000, workers=2, on_step=on_step)
    finally:
        signal.signal(signal.SIGINT, before)
    assert str(caught.value) == f"training was interrupted after {len(seen)} of 1000000 steps; its workers have ended"
    frames = [entry.path.name for entry in caught.traceback]
    assert "threading.py" not in frames
    assert caught.value.__suppress_context__
    for thread in threading.enumerate():  # they have nothing left to do, so this ends
        if thread.name.startswith(("compute-", "lane-")):
            thread.join()
    assert not workers_computing()


def test_an_interrupt_that_ends_all_at_once_names_the_newest_checkpoint(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def twice(self: LocalRun, on_interrupt: Any) -> None:
        run(self, on_interrupt)
        raise KeyboardInterrupt  # the second one, after a checkpoint was written

    run = LocalRun.run
    monkeypatch.setattr(LocalRun, "run", twice)
    with pytest.raises(
        KeyboardInterrupt, match=r"^training was interrupted after 2 of 2 steps; its workers have ended"
    ) as caught:
        train(Model(torch.nn.Linear(8, 1)), batch, steps=2, workers=1, folder=tmp_path / "run")
    newest = str(tmp_path / "run" / "checkpoints" / "step-0000000002")
    assert caught.value.__notes__ == [f"the newest checkpoint is {newest}; train(..., resume={newest!r}) continues from it"]


def test_the_first_interrupt_names_the_newest_checkpoint(ctrl_c: Any, tmp_path: Path) -> None:
    def on_step(record: StepRecord) -> None:
        if record.step == 1:
            ctrl_c()

    with pytest.raises(KeyboardInterrupt) as caught:
        train(Model(torch.nn.Linear(8, 1)), batch, steps=10**6, workers=1, on_step=on_step, folder=tmp_path / "run")
    newest = caught.value.result.checkpoint  # type: ignore[attr-defined]
    assert newest
    assert f"train(..., resume={newest!r}) continues from the newest checkpoint" in caught.value.__notes__


def test_ctrl_c_while_no_machine_is_there_cancels_the_run(ctrl_c: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    broker = Broker(tmp_path / "broker", listen="127.0.0.1:0")
    said: list[str] = []

    class Interrupting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            ctrl_c()

    handler = Interrupting()
    log = logging.getLogger("farflung")
    log.addHandler(handler)
    try:
        with pytest.raises(KeyboardInterrupt) as caught:
            train(Model(torch.nn.Linear(8, 1)), batch, steps=3, workers=2, ticket=str(broker.ticket("submit")))
        (folder,) = (tmp_path / "broker" / "runs").iterdir()
        assert said == [
            f"{folder.name} is waiting for 2 more workers: add workers with farflung join, or end the run with Ctrl-C"
        ]
        assert str(caught.value) == f"training was interrupted after 0 of 3 steps; {folder.name} was cancelled"
        client = Client(join(Ticket.parse(str(broker.ticket("submit"))), name="other", role="client"))
        runs: Any = client.status()["runs"]
        client.close()
        assert [run["state"] for run in runs] == ["stopped"]
    finally:
        log.removeHandler(handler)
        broker.close()


@pytest.mark.timeout(300)
@pytest.mark.parametrize("every", [2, 0])
def test_ctrl_c_while_a_run_waits_after_a_loss_ends_it_at_once(ctrl_c: Any, tmp_path: Path, every: int) -> None:
    """Without a step under way, there is none to wait for; the result is that of the newest checkpoint, if there is one."""
    said: list[str] = []

    class Interrupting(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            said.append(record.getMessage())
            if "waiting for 1 more worker" in said[-1]:
                ctrl_c()

    log, handler = logging.getLogger("farflung"), Interrupting()
    log.addHandler(handler)
    with Loopback(tmp_path, 1) as cluster:

        def on_step(record: StepRecord) -> None:
            if record.step == 4:
                vanish(cluster, "a")

        checkpoint = CheckpointSpec(every=every, recover_every=0)
        try:
            ticket = str(cluster.ticket("submit"))
            with pytest.raises(KeyboardInterrupt) as caught:
                trained(ticket, steps=10**6, workers=1, checkpoint=checkpoint, on_step=on_step)
        finally:
            log.removeHandler(handler)
    assert said[-1] == "no step is under way, so the run ends now"
    result = getattr(caught.value, "result", None)
    if every:
        assert result is not None
        assert result.steps == len(result.losses)
        assert result.steps >= 4
        assert result.steps % 2 == 0
        assert same(result, trained(steps=result.steps))
    else:
        assert result is None
        assert str(caught.value).endswith(" was cancelled")
