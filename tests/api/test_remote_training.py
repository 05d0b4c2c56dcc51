"""What ``train`` says of a run that waits for workers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farflung.api.callbacks import Callbacks, Listeners
from farflung.api.remote_training import say_waiting
from farflung.telemetry.activity import TrainingProgress


def test_a_run_that_waits_names_the_run_that_has_the_workers(caplog: pytest.LogCaptureFixture) -> None:
    client: Any = SimpleNamespace(status=lambda: {"members": [{"run": "run-a"}, {"run": "run-a"}, {"run": None}]})
    with TrainingProgress(2) as progress:
        say_waiting({"state": "waiting", "run": "run-b", "needs": "3", "idle": "1"}, client, Callbacks(Listeners(), progress))
    (text,) = caplog.messages
    assert text.startswith("run-b is waiting for 2 workers busy with run-a: it starts when they are free")
