"""Members that send large frames: a worker stays within the memory that it offers, plus what the program itself takes."""

from __future__ import annotations

import re
from pathlib import Path

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
