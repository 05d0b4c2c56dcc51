"""Members that send large frames: a worker stays within the memory that it offers, plus what the program itself takes."""

from __future__ import annotations

import re
from contextlib import suppress
from pathlib import Path

import numpy as np
import psutil
import pytest

from farflung.client.connection import Client
from farflung.messages.data import ProbeBytes
from farflung.messages.wire_form import encode
from farflung.security import Ticket, kept_key
from farflung.transports.tcp.connection import NotAdmitted
from farflung.wire.frames import Frame
from farflung.worker.membership import join
from tests.support.command_processes import Program
from tests.support.loopback import until

#: Bytes that a worker's process takes with its libraries and the measurement of its device, before any job.
BASE = 600 << 20
OFFER = 256 << 20


def peak(worker: Program) -> int:
    """The most bytes that the worker's process has had."""
    status = Path(f"/proc/{worker.process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def test_large_frames_of_a_stranger_take_no_memory(tmp_path: Path) -> None:
    broker = Program(tmp_path, "broker", "broker", "--listen", "127.0.0.1:0", "--home", "h")
    ticket = broker.until(r"farflung join (\S+)")[1]
    worker = Program(tmp_path, "w", "join", ticket, "--name", "w", "--listen", "127.0.0.1:0", "--memory", f"{OFFER} B")
    address = worker.until(r"peers reach it at (\S+)")[1]
    before = peak(worker)
    member = join(Ticket.parse(ticket), name="z", role="worker", key=kept_key(tmp_path / "z.pem"))
    stranger = Client(member)
    endpoint = stranger.endpoint()
    endpoint.connect("w", address)
    body = bytes(63 << 20)
    sent = [endpoint.post("w", Frame(encode(ProbeBytes()).kind, {}, (body,))) for _ in range(4)]  # as many as the window lets
    until(lambda: isinstance(endpoint.link_to("w", incoming=False).dialer.failure, NotAdmitted))
    assert not any(one.done() for one in sent)
    after = peak(worker)
    endpoint.close()
    stranger.close()
    assert before < BASE, "the stated base"
    assert after < before + (32 << 20)
    for program in (worker, broker):
        program.process.terminate()
        program.ends()


MODEL = """
import torch


class Model(torch.nn.Module):
    def __init__(self, parts):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.stack([torch.randn(2048, 4096) for _ in range(parts)]).sum(0))

    def forward(self, x, labels):
        return ((x @ self.weight[:4, :4] - labels) * 1e-3).square().mean()


def make(parts):
    return Model(parts)


def example_inputs(batch):
    return torch.zeros(batch, 4), torch.zeros(batch, 4)
"""
TRAINING = """
name = "{name}"
steps = 2
micro_batch_sizes = [4]
[model]
recipe = "model.py:make"
args = {{ parts = {parts} }}
[data]
kind = "array"
path = "data"
fields = {{ x = "inputs" }}
[checkpoint]
at_end = false
"""


class Watched(Program):
    """A worker and its processes, whose memory is read again and again."""

    largest = 0

    def look(self) -> None:
        """Note the largest process."""
        own = psutil.Process(self.process.pid)
        for process in (own, *own.children(recursive=True)):
            with suppress(psutil.Error):  # it has ended since
                self.largest = max(self.largest, process.memory_info().rss)


def ended(place: Path, name: str, parts: int, worker: Watched, code: int) -> str:
    (place / f"{name}.toml").write_text(TRAINING.format(name=name, parts=parts))
    submitted = Program(place, name, "submit", f"{name}.toml", "--home", "h")
    while submitted.process.poll() is None:
        worker.look()
    return submitted.ends_cleanly(code)


@pytest.mark.timeout(400)
def test_initializers_with_large_intermediates_stay_within_the_offer(tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(MODEL)
    (tmp_path / "data").mkdir()
    for name in ("inputs", "labels"):
        np.save(tmp_path / "data" / f"{name}.npy", np.ones((8, 4), np.float32))
    broker = Program(tmp_path, "broker", "broker", "--listen", "127.0.0.1:0", "--home", "h")
    ticket = broker.until(r"farflung join (\S+)")[1]
    worker = Watched(tmp_path, "w", "join", ticket, "--name", "w", "--listen", "127.0.0.1:0", "--memory", "200 MB")
    worker.until("joined the broker")
    many = ended(tmp_path, "many", 35, worker, 4)
    assert re.search(r"the initializer of 'weight' needs \d+ bytes at step \d+: at most 268435456 are allowed", many)
    few = ended(tmp_path, "few", 3, worker, 17)
    needs = "the initializer of 'weight' needs 201 MB, and 0 B of the 200 MB that this process may use are in use"
    assert f"worker w: {needs}: offer more memory (--memory)" in few
    assert "finished after 2 steps" in ended(tmp_path, "one", 1, worker, 0), "the worker is well"
    assert worker.largest < BASE + OFFER
    for program in (worker, broker):
        program.process.terminate()
        program.ends()
