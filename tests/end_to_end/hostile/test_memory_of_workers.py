"""Members that send large frames: a worker stays within the memory that it offers, plus what the program itself takes."""

from __future__ import annotations

import re
import time
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from farflung.client.connection import Client
from farflung.messages.data import ProbeBytes
from farflung.messages.wire_form import encode
from farflung.security import Ticket, kept_key
from farflung.transports.tcp.connection import NotAdmitted
from farflung.wire.frames import Frame
from farflung.worker.membership import join
from tests.support.commands.command_processes import Program
from tests.support.commands.own_models import broker_and_workers, submit, write_model
from tests.support.runs.loopback import until

#: Bytes that a worker's process takes with its libraries and the measurement of its device, before any job.
BASE = 600 << 20
OFFER = 256 << 20


def peak(pid: int) -> int:
    """The most bytes that the process has had."""
    status = Path(f"/proc/{pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def test_large_frames_of_a_stranger_take_no_memory(tmp_path: Path) -> None:
    with broker_and_workers(tmp_path, "w", f"{OFFER} B") as (ticket, (worker,)):
        address = worker.until(r"peers reach it at (\S+)")[1]
        before = peak(worker.process.pid)
        member = join(Ticket.parse(ticket), name="z", role="worker", key=kept_key(tmp_path / "z.pem"))
        stranger = Client(member)
        endpoint = stranger.endpoint()
        endpoint.connect("w", address)
        body = bytes(63 << 20)
        sent = [endpoint.post("w", Frame(encode(ProbeBytes()).kind, {}, (body,))) for _ in range(4)]  # as the window lets
        until(lambda: isinstance(endpoint.link_to("w", incoming=False).dialer.failure, NotAdmitted))
        assert not any(one.done() for one in sent)
        after = peak(worker.process.pid)
        endpoint.close()
        stranger.close()
    assert before < BASE, "the stated base"
    assert after < before + (32 << 20)


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
"""


class Largest:
    """The most bytes that one of a worker's processes has had."""

    def __init__(self, worker: Program) -> None:
        self._worker = psutil.Process(worker.process.pid)
        self.nbytes = 0

    def ended(self, submitted: Program, code: int) -> str:
        """The output of a job, which ends with ``code``."""
        while submitted.process.poll() is None:
            for process in (self._worker, *self._worker.children(recursive=True)):
                with suppress(OSError, AssertionError):  # it has ended since
                    self.nbytes = max(self.nbytes, peak(process.pid))
            time.sleep(0.05)
        return submitted.ends_cleanly(code)


@pytest.mark.timeout(400)
def test_initializers_with_large_intermediates_stay_within_the_offer(tmp_path: Path) -> None:
    write_model(tmp_path, MODEL)
    with broker_and_workers(tmp_path, "w", "200 MB") as (_, (worker,)):
        largest = Largest(worker)
        many = largest.ended(submit(tmp_path, "many", "parts = 9"), 4)
        assert re.search(r"the initializer of 'weight' needs \d+ bytes at step \d+: at most 268435456 are allowed", many)
        few = largest.ended(submit(tmp_path, "few", "parts = 3"), 17)
        needs = "the initializer of 'weight' needs 201 MB, and 0 B of the 200 MB that this process may use are in use"
        assert f"worker w: {needs}: offer more memory (--memory)" in few
        one = largest.ended(submit(tmp_path, "one", "parts = 1"), 0)
        assert "finished after 5 steps" in one, "the worker is well"
    assert largest.nbytes < BASE + OFFER
