"""CPU time of a transfer between two workers of one machine: what ``schedules.shared_host.transfer_work`` stands for."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Sequence
from contextlib import closing
from pathlib import Path

import numpy as np

from farflung.security import Credentials, make_request, new_key
from farflung.security.authority import CertificateAuthority
from farflung.transports import TransportConfig
from farflung.transports.tcp.endpoint import TcpEndpoint
from farflung.wire.frames import Frame

__all__ = ["measure_transfers"]

_GAP, _FRAMES = 0.02, 60


def measure_transfers(sizes: Sequence[int] = (200_000, 1_000_000)) -> dict[str, float]:
    """Return CPU seconds per frame and per byte of both ends together, over TLS on the loopback, a frame every 20 ms."""
    with tempfile.TemporaryDirectory(prefix="farflung-transfer-") as folder:
        authority = CertificateAuthority.open(Path(folder) / "authority", time.time())
        a, b = (_endpoint(authority, name) for name in "ab")
        with closing(a), closing(b):
            a.connect("b", b.address)
            small, large = (_cpu_seconds(a, size) for size in sizes)
    per_byte = (large - small) / (sizes[1] - sizes[0])
    return {"frame_seconds": small - per_byte * sizes[0], "byte_seconds": per_byte}


def _endpoint(authority: CertificateAuthority, name: str) -> TcpEndpoint:
    key = new_key()
    certificate = authority.sign(make_request(name, key), name=name, role="worker", now=time.time())
    credentials = Credentials(name=name, key=key, certificate=certificate, authority=authority.certificate)
    return TcpEndpoint(credentials, lambda peer, frame: None, listen="127.0.0.1:0", config=TransportConfig())


def _cpu_seconds(endpoint: TcpEndpoint, size: int) -> float:
    """CPU seconds of this process for a frame of ``size`` bytes that is sent and received."""
    body, pause = np.ones(size, np.uint8).data, threading.Event()
    endpoint.send("b", Frame("warm-up", {}, (body,)))
    before = time.process_time()
    for _ in range(_FRAMES):
        endpoint.send("b", Frame("value", {}, (body,)))
        pause.wait(_GAP)
    return (time.process_time() - before) / _FRAMES
