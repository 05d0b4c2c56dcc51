"""One end of a measured link: ``python -m benchmarks.network.transport_node receive|send|stream FOLDER TRANSPORT ...`` in a node.

Both ends run on one machine and share its monotonic clock, so a transfer's time is from the call of ``post`` to the moment at
which the receiver's handler has the whole frame. What is measured is printed as one JSON object per line.
"""

from __future__ import annotations

import json
import os
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.priority import go_first
from farflung.errors import FarflungError
from farflung.security import Credentials, make_request, new_key
from farflung.security.authority import CertificateAuthority
from farflung.transports import Endpoint, FrameHandler, LinkStatistics, TransportConfig, Urgency, get_transport
from farflung.transports.base import EndpointEvents
from farflung.wire.frames import Frame

__all__ = ["main", "make_members"]

_PIECE = 1 << 20
_SAMPLE = 0.25


def make_members(folder: Path, names: tuple[str, ...]) -> None:
    """Credentials for ``names`` in a fresh authority, each in a folder of its own."""
    now = time.time()
    authority = CertificateAuthority.open(folder / "authority", now)
    for name in names:
        key = new_key()
        certificate = authority.sign(make_request(name, key), name=name, role="worker", now=now)
        Credentials(name=name, key=key, certificate=certificate, authority=authority.certificate).save(folder / name)


def _endpoint(folder: Path, name: str, transport: str, handler: FrameHandler, listen: str) -> Endpoint:
    most = 16 if transport == "tcp" else 1
    config = TransportConfig(max_stripes=most)
    credentials = Credentials.load(folder / name)
    events = EndpointEvents(log=lambda text: print(text, file=sys.stderr, flush=True))  # noqa: T201
    given = {"events": events} if transport == "tcp" else {}
    return get_transport(transport)(credentials, handler, listen=listen, config=config, **given)


def _tell(**facts: Any) -> None:
    print(json.dumps(facts), flush=True)  # noqa: T201 - what the parent reads


def receive(folder: Path, transport: str, listen: str) -> None:
    """Take frames until the standard input ends."""

    def take(peer: str, frame: Frame) -> None:
        del peer
        now = time.monotonic()
        _tell(number=frame.header["number"], seconds=now - float(frame.header["begin"]))

    endpoint = _endpoint(folder, "b", transport, take, listen)
    _tell(address=endpoint.address)
    sys.stdin.read()
    _tell(cpu=sum(os.times()[:2]))
    endpoint.close()


def send(folder: Path, transport: str, listen: str, address: str, sizes: str) -> None:
    """Send frames of the given sizes (bytes), one after the other."""
    endpoint = _endpoint(folder, "a", transport, lambda peer, frame: None, listen)
    endpoint.connect("b", address)
    random = np.random.default_rng(0)
    for number, size in enumerate(int(size) for size in sizes.split(",")):
        body = random.integers(0, 256, size, dtype=np.uint8).data
        endpoint.post("b", Frame("probe", {"number": number, "begin": time.monotonic()}, (body,))).result()
        seen = endpoint.statistics()["b"]
        facts = {"connections": seen.connections, "rate": seen.rate, "round_trip": float(seen.round_trip)}
        _tell(number=number, congestion=seen.congestion, repeated=seen.repeated, **facts)
    _tell(cpu=sum(os.times()[:2]), threads=threading.active_count())
    endpoint.close()


def stream(folder: Path, transport: str, listen: str, address: str, seconds: str) -> None:
    """Keep the link busy for so long; four times a second: how many bytes have arrived, and with what connections."""
    endpoint = _endpoint(folder, "a", transport, lambda peer, frame: None, listen)
    endpoint.connect("b", address)
    body = np.random.default_rng(0).integers(0, 256, _PIECE, dtype=np.uint8).data
    over = threading.Event()

    def push() -> None:
        with suppress(FarflungError):  # the end
            while not over.is_set():
                endpoint.post("b", Frame("probe", {"number": 0, "begin": time.monotonic()}, (body,)), Urgency.BULK)

    thread = threading.Thread(target=push, name="push", daemon=True)
    thread.start()
    end = time.monotonic() + float(seconds)
    while (now := time.monotonic()) < end:
        seen = endpoint.statistics().get("b", LinkStatistics())
        _tell(at=now, arrived=seen.confirmed, connections=seen.connections, resumed=seen.resumed, repeated=seen.repeated)
        time.sleep(_SAMPLE)
    over.set()
    endpoint.close()
    thread.join()


def main() -> None:
    """The command line of this module."""
    go_first()
    role, folder, *rest = sys.argv[1:]
    if role == "receive":
        receive(Path(folder), *rest)
    elif role == "stream":
        stream(Path(folder), *rest)
    else:
        send(Path(folder), *rest)


if __name__ == "__main__":
    main()
