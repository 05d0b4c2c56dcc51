"""Members that hang: the run continues without them, and they are named."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from farflung.broker.attempts import attempt_deadlines
from farflung.broker.attempts.attempt_deadlines import DeadlineSettings
from farflung.telemetry import injecting
from farflung.worker.training_run import TrainingRun
from tests.support.loopback import Loopback, text_job
from tests.support.watched_runs import watched

#: Long enough for what an honest worker does on a busy machine, and soon over.
SHORT = DeadlineSettings(prepare=8.0, step=8.0, drop=4.0, times=2.0)


def _texts(cluster: Loopback, run: str) -> list[str]:
    frames = list(watched(cluster.client, run))
    assert frames[-1].kind == "result"
    assert '"finished"' in frames[-1].header["result"], frames[-1].header
    return [str(frame.header["text"]) for frame in frames if frame.kind == "note"]


@pytest.mark.timeout(300)
def test_a_worker_that_never_prepares_is_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It sends heartbeats all the time."""
    monkeypatch.setattr(attempt_deadlines, "_SETTINGS", SHORT)
    over, main = threading.Event(), TrainingRun._main

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
            texts = _texts(cluster, bundle.run)
        finally:
            over.set()
    (judged,) = [text for text in texts if text.startswith("worker b is planned last")]
    assert "since it did not prepare within " in judged
    assert any(text.startswith("lost: worker b is left out: it did not prepare within ") for text in texts)


@pytest.mark.timeout(300)
def test_a_worker_whose_forward_hangs_is_left_out(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """All workers wait for it, and it does not leave the attempt."""
    monkeypatch.setattr(attempt_deadlines, "_SETTINGS", SHORT)
    over = threading.Event()

    def hang(name: str, facts: object) -> None:
        if name == "worker.before_forward" and threading.current_thread().name.startswith("compute-"):
            assert isinstance(facts, dict)
            if facts["device"] == "b" and facts["step"] == 1:
                over.wait()

    with Loopback(home, 2) as cluster, injecting(hang):
        try:
            bundle, _ = cluster.submit(text_job(steps=4))
            texts = _texts(cluster, bundle.run)
        finally:
            over.set()
    assert any(text.startswith("lost: no step was made for ") for text in texts)
    assert any("worker b is planned last, since it did not leave the attempt within " in text for text in texts)
