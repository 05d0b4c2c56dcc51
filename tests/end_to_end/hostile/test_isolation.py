"""A job whose operator crashes or never ends: two processes die, the run fails with the operator's name, the workers live on."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from tests.support.commands.command_processes import Program
from tests.support.commands.own_models import broker_and_workers, submit, write_model
from tests.support.engines.unguarded import with_changes, without_guards

MODEL = """
import torch


class Model(torch.nn.Module):
    def __init__(self, crashes):
        super().__init__()
        self.layer, self.least = torch.nn.Linear(4, 4), -(1 << 63) if crashes else 0

    def forward(self, x, labels):
        least, minus = torch.full((), self.least), torch.full((), -1)
        return (self.layer(x) - labels).square().mean() + torch.div(least, minus, rounding_mode="trunc")


def make(crashes):
    return Model(crashes)
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    paths = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([without_guards(tmp_path / "start"), paths]))
    return tmp_path


@pytest.mark.timeout(300)
def test_a_job_that_crashes_two_processes_fails_and_the_workers_live(place: Path) -> None:
    write_model(place, MODEL)
    with broker_and_workers(place, "abc", "500 MB") as (_, workers):
        assert all("isolation: off" not in worker.text for worker in workers)
        text = submit(place, "bad", "crashes = true").ends_cleanly(16)
        assert "died of SIGFPE in the forward, operator 'div' (aten.div.Tensor_mode)" in text
        assert re.search(r"the job has ended the processes of 2 attempts \(on [abc], [abc]\) and is not tried again", text)
        assert "finished after 5 steps" in submit(place, "good", "crashes = false").ends_cleanly(0)
        status = Program(place, "status", "status", "--home", "h", "--json")
        members = json.loads(re.sub(r"^[^{]*", "", status.ends_cleanly(0)))["members"]
        assert {member["name"]: member["isolation"] != "off" for member in members} == {"a": True, "b": True, "c": True}


#: Deadlines of seconds instead of minutes, and a division that never ends where it divides by the least integer.
HANGING = {
    "farflung.broker.attempts.attempt_deadlines": "_SETTINGS = DeadlineSettings(compute=4.0)",
    "farflung.engines.torch.guards": """
def _hang(x, *rest, **settings):
    import threading
    threading.Event().wait() if x.device.type == "cpu" and x.lt(0).all() else None
_CHECKS["aten.div.Tensor_mode"] = _hang
""",
}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_forward_that_hangs_and_a_pipe_among_the_data_end_an_attempt_and_the_worker_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([with_changes(tmp_path / "start", HANGING), paths]))
    write_model(tmp_path, MODEL)
    inputs = tmp_path / "data" / "inputs.npy"
    with broker_and_workers(tmp_path, "w", "500 MB"):
        text = submit(tmp_path, "hanging", "crashes = true").ends_cleanly(16)
        assert re.search(
            r"the forward, operator 'div' \(aten\.div\.Tensor_mode\): no answer within .* s; its process was ended", text
        )
        inputs.rename(tmp_path / "inputs.npy")
        os.mkfifo(inputs)
        assert "worker w: data 'data/inputs.npy': " in (text := submit(tmp_path, "piped", "crashes = false").ends_cleanly(12))
        assert "inputs.npy is a pipe, a socket or a device, not a file: remove it" in text
        (tmp_path / "inputs.npy").rename(inputs)
        assert "finished after 5 steps" in submit(tmp_path, "good", "crashes = false").ends_cleanly(0)
