"""Measuring an emulated network from its nodes: round trips as the kernel stamps them, and what a TCP stream carries."""

from __future__ import annotations

import contextlib
import socket
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from farflung.emulation import Node
from farflung.errors import EmulationError

__all__ = ["busy_processors", "round_trips", "stream"]

_SO_TIMESTAMPNS = 35
_TIMEOUT = 10.0
#: IP bytes and payload bytes of a full TCP segment with timestamps at an MTU of 1500.
_IP, _PAYLOAD = 1500, 1448
#: Socket buffers of the stream: with the usual 4 MB a sender that waits for a processor leaves a fast link idle.
_BUFFER = 64 << 20


def round_trips(source: Node, target: Node, count: int, interval: float = 0.05) -> list[float]:
    """Seconds of ``count`` ICMP echo round trips. The kernel answers them and stamps their arrival, so that only the network
    counts and not when this process runs."""
    with source.inside():
        probe = socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP)
    seconds = []
    with probe:
        probe.settimeout(_TIMEOUT)
        probe.setsockopt(socket.SOL_SOCKET, _SO_TIMESTAMPNS, 1)
        for number in range(count):
            request = struct.pack("!BBHHH", 8, 0, _checksum(number), 0, number)
            begin = time.clock_gettime_ns(time.CLOCK_REALTIME)
            probe.sendto(request, (target.address, 0))
            seconds.append((_arrival(probe, number) - begin) / 1e9)
            time.sleep(interval)
    return seconds


def _checksum(number: int) -> int:
    total = 0x0800 + number
    return ~((total & 0xFFFF) + (total >> 16)) & 0xFFFF


def _arrival(probe: socket.socket, number: int) -> int:
    """The kernel's stamp of the answer, in nanoseconds of the real-time clock."""
    while True:
        try:
            data, ancillary, _, _ = probe.recvmsg(256, 256)
        except TimeoutError:
            raise EmulationError(f"an echo request was not answered in {_TIMEOUT:g} s; is the network partitioned?") from None
        kind, _, _, _, seen = struct.unpack_from("!BBHHH", data, (data[0] & 15) * 4)
        if (kind, seen) == (0, number):
            stamps = [body for level, kind, body in ancillary if (level, kind) == (socket.SOL_SOCKET, _SO_TIMESTAMPNS)]
            whole, part = struct.unpack("qq", stamps[0][:16])
            return int(whole * 1_000_000_000 + part)


def stream(source: Node, target: Node, *, congestion: str, warm_up: float, seconds: float) -> float:
    """IP bytes per second of one TCP stream, measured at the receiver for ``seconds`` after ``warm_up`` seconds.

    ``congestion``: TCP congestion control. One that fills the queue (cubic, reno) never leaves the link idle; BBR pauses for
    200 ms in every ten seconds (PROBE_RTT), which is 2 to 3 % of what it carries.

    Raises:
        EmulationError: this kernel does not offer that congestion control.
    """
    with target.inside():
        _allow_buffers()
        listener = socket.create_server(("0.0.0.0", 0))  # noqa: S104 - a namespace of our own
    with listener:
        with source.inside():
            _allow_buffers()
            sender = socket.create_connection((target.address, listener.getsockname()[1]), timeout=_TIMEOUT)
        receiver, _ = listener.accept()
    over = threading.Event()
    thread = threading.Thread(target=_push, args=(sender, over), name="bench-stream", daemon=True)
    with sender, receiver:
        _set_congestion(sender, congestion)
        receiver.settimeout(_TIMEOUT)
        thread.start()
        buffer = bytearray(1 << 20)
        begin = time.monotonic()
        while (first := time.monotonic()) - begin < warm_up:
            receiver.recv_into(buffer)
        received = 0
        while (last := time.monotonic()) - first < seconds:
            received += receiver.recv_into(buffer)
        over.set()
        sender.settimeout(0.1)
        thread.join(_TIMEOUT)
    return received * _IP / _PAYLOAD / (last - first)


def _allow_buffers() -> None:
    """In the namespace of this thread: TCP may use as much for a socket."""
    for name in ("tcp_rmem", "tcp_wmem"):
        path = Path("/proc/sys/net/ipv4") / name
        least, usual, _ = path.read_text(encoding="ascii").split()
        path.write_text(f"{least} {usual} {_BUFFER}", encoding="ascii")


def _set_congestion(sender: socket.socket, name: str) -> None:
    try:
        sender.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
    except OSError:
        known = Path("/proc/sys/net/ipv4/tcp_available_congestion_control").read_text(encoding="ascii").split()
        raise EmulationError(f"no TCP congestion control {name!r}; known are {', '.join(known)}") from None


def _push(sender: socket.socket, over: threading.Event) -> None:
    block = bytes(1 << 18)
    with contextlib.suppress(OSError):  # the receiver has had enough
        while not over.is_set():
            sender.sendall(block)


@contextlib.contextmanager
def busy_processors(count: int) -> Iterator[None]:
    """``count`` processes that compute all the time, at normal priority."""
    command = [sys.executable, "-c", "while True: pass"]
    running = [subprocess.Popen(command, stdin=subprocess.DEVNULL) for _ in range(count)]  # noqa: S603 - as above
    try:
        yield
    finally:
        for process in running:
            process.kill()
            process.wait()
