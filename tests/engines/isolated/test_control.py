"""What the process that computes answers is bounded before it is read."""

from __future__ import annotations

import os
import socket

import msgspec
import numpy as np
import pytest

from farflung.engines.isolated import control
from farflung.engines.isolated.arena import Arena, make_file
from farflung.engines.isolated.control import Answer, Done, Straight, receive, send
from farflung.errors import WireError


def test_a_long_answer_lies_in_the_shared_memory_and_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    file = make_file(1 << 21)
    worker, other = Arena(file, 0), Arena(file, 1)
    os.close(file)
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        names = tuple(f"state {number}" for number in range(10_000))
        send(far, Done(names=names), other)
        assert receive(near, Answer, worker) == Done(names=names)
        monkeypatch.setattr(control, "_MOST_ANSWER", 1000)
        at = other.write(np.zeros(1001, np.uint8))
        far.send(msgspec.msgpack.encode(Straight(at=at)))
        with pytest.raises(WireError, match=r"^a message of the process that computes has 1001 bytes$"):
            receive(near, Answer, worker)
    worker.close()
    other.close()


@pytest.mark.parametrize(
    "packet", [b"\x83", b"\x81\xa4type\xa7Unknown", b"\x83\xa4type\xa7Refused\xa4kind\xa2\xff\xfe\xa4text\xa1x"]
)
def test_an_answer_that_is_none_is_an_error_of_farflung(packet: bytes) -> None:
    near, far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with near, far:
        far.send(packet)
        with pytest.raises(WireError, match=r"^a message of the process that computes is malformed: "):
            receive(near, Answer)
