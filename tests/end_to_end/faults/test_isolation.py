"""A job whose operator crashes or never ends: two processes die, the run fails with the operator's name, the workers live on."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import numpy as np
import pytest

from tests.support.command_processes import Program
from tests.support.unguarded import with_changes, without_guards

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


def example_inputs(batch):
    return torch.zeros(batch, 4), torch.zeros(batch, 4)
"""
JOB = """
name = "{name}"
steps = 5
micro_batch_sizes = [4]
recoveries = 1000
[model]
recipe = "model.py:make"
args = {{ crashes = {crashes} }}
[data]
kind = "array"
path = "data"
fields = {{ x = "inputs" }}
[checkpoint]
at_end = false
"""


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    paths = os.environ.get("PYTHONPATH", "")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([without_guards(tmp_path / "start"), paths]))
    return tmp_path


def job(place: Path, name: str, *, crashes: bool) -> str:
    path = place / f"{name}.toml"
    path.write_text(JOB.format(name=name, crashes=str(crashes).lower()))
    return str(path)


def test_a_job_that_crashes_two_processes_fails_and_the_workers_live(place: Path) -> None:
    (place / "model.py").write_text(MODEL)
    (place / "data").mkdir()
    for name in ("inputs", "labels"):
        np.save(place / "data" / f"{name}.npy", np.ones((40, 4), np.float32))
    broker = Program(place, "broker", "broker", "--listen", "127.0.0.1:0", "--home", "h")
    ticket = broker.until(r"farflung join (\S+)")[1]
    workers = [Program(place, n, "join", ticket, "--name", n, "--listen", "127.0.0.1:0", "--memory", "500 MB") for n in "abc"]
    for worker in workers:
        worker.until("joined the broker")
        assert "isolation: off" not in worker.text
    bad = Program(place, "bad", "submit", job(place, "bad", crashes=True), "--home", "h")
    text = bad.ends_cleanly(16)
    assert "died of SIGFPE in the forward, operator 'div' (aten.div.Tensor_mode)" in text
    assert re.search(r"the job has ended the processes of 2 attempts \(on [abc], [abc]\) and is not tried again", text)
    good = Program(place, "good", "submit", job(place, "good", crashes=False), "--home", "h")
    assert "finished after 5 steps" in good.ends_cleanly(0)
    status = Program(place, "status", "status", "--home", "h", "--json")
    members = json.loads(re.sub(r"^[^{]*", "", status.ends_cleanly(0)))["members"]
    assert {member["name"]: member["isolation"] != "off" for member in members} == {"a": True, "b": True, "c": True}
    assert all(worker.process.poll() is None for worker in workers)
    for program in (*workers, broker):
        program.process.terminate()
        program.ends()


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
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "data").mkdir()
    for name in ("inputs", "labels"):
        np.save(tmp_path / "data" / f"{name}.npy", np.ones((40, 4), np.float32))
    broker = Program(tmp_path, "broker", "broker", "--listen", "127.0.0.1:0", "--home", "h")
    ticket = broker.until(r"farflung join (\S+)")[1]
    worker = Program(tmp_path, "w", "join", ticket, "--name", "w", "--listen", "127.0.0.1:0", "--memory", "500 MB")
    worker.until("joined the broker")
    hanging = Program(tmp_path, "hanging", "submit", job(tmp_path, "hanging", crashes=True), "--home", "h")
    text = hanging.ends_cleanly(16)
    assert re.search(
        r"the forward, operator 'div' \(aten\.div\.Tensor_mode\): no answer within .* s; its process was ended", text
    )
    (tmp_path / "data" / "inputs.npy").rename(tmp_path / "inputs.npy")
    os.mkfifo(tmp_path / "data" / "inputs.npy")
    piped = Program(tmp_path, "piped", "submit", job(tmp_path, "piped", crashes=False), "--home", "h")
    assert "worker w: data 'data/inputs.npy': " in (text := piped.ends_cleanly(12))
    assert "inputs.npy is a pipe, a socket or a device, not a file: remove it" in text
    (tmp_path / "inputs.npy").rename(tmp_path / "data" / "inputs.npy")
    good = Program(tmp_path, "good", "submit", job(tmp_path, "good", crashes=False), "--home", "h")
    assert "finished after 5 steps" in good.ends_cleanly(0)
    assert worker.process.poll() is None
    for program in (worker, broker):
        program.process.terminate()
        program.ends()
