"""``silent-connections``: training and joining while strangers hold thousands of connections and say nothing.

Broker and worker are processes with a limit of 1,024 descriptors. A run trains; then one thread opens the connections, in turn to
the broker's two ports and to the worker's, and opens each again that the other side has closed. Compared are the median step
times before the flood and while all connections are open. Then another worker joins, under the flood.
"""

from __future__ import annotations

import itertools
import resource
import socket
import statistics
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, suppress
from dataclasses import dataclass
from pathlib import Path

from benchmarks.harness.base import Check, Report, Say, Settings
from farflung.api.submission import bundle_job
from farflung.chaos.local_cluster import LocalCluster
from farflung.client.connection import Client
from farflung.errors import TrainingError
from farflung.job import make_job
from farflung.messages.submission import Bundle
from farflung.messages.watching import RecordLine, Result
from farflung.telemetry import RunResult, StepRecord, read_record
from farflung.transports.descriptors import raise_descriptor_limit

__all__ = ["SilentConnections", "SilentSettings"]

_SHARE, _LATE = 0.95, "late"
#: Connections that are opened again in a second.
_AGAIN = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class SilentSettings(Settings):
    """``connections`` against processes with ``descriptors``; ``steps`` are measured before and during the flood."""

    connections: int = 10_000
    descriptors: int = 1024
    steps: int = 60
    warm_up: int = 10
    width: int = 192
    layers: int = 4


class SilentConnections:
    """Strangers that connect and say nothing."""

    name = "silent-connections"
    summary = "10,000 silent connections at a limit of 1,024 descriptors: step times, and whether a worker can join"

    def settings(self, quick: bool) -> SilentSettings:
        """Quick: few connections, and a tiny model."""
        return SilentSettings(quick=True, connections=500, steps=10, warm_up=2, width=16) if quick else SilentSettings()

    def run(self, settings: Settings, say: Say) -> Report:
        """Measure."""
        assert isinstance(settings, SilentSettings)
        raise_descriptor_limit()
        with tempfile.TemporaryDirectory(prefix="farflung-silent-") as place, ExitStack() as ending:
            folder = Path(place)
            (folder / "corpus").mkdir()
            (folder / "corpus" / "text.txt").write_text("".join(f"def f{i}(x):\n    return x + {i * i}\n" for i in range(400)))
            cluster = ending.enter_context(LocalCluster(folder / "cluster", ["first"], data=folder))
            for process in cluster.processes.values():
                resource.prlimit(process.pid, resource.RLIMIT_NOFILE, (settings.descriptors, settings.descriptors))
            client = cluster.client()
            ending.callback(client.close)
            bundle = _bundle(settings, folder)
            client.submit(bundle)
            steps = _steps(client, bundle.run)
            before = _median(steps, settings.steps, first=settings.warm_up)
            say(f"before: {before:.4f} s a step")
            flood = _Flood(_addresses(cluster, client), settings.connections)
            ending.callback(flood.close)
            flood.start()
            say(f"{flood.count} connections are open")
            during = _median(steps, settings.steps, first=_step(client, bundle.run))  # records from before still wait to be read
            begin = time.monotonic()
            cluster.add(_LATE)
            joined = _joined(cluster, begin)
            client.stop(bundle.run, now=True)
            return _report(before, during, joined, flood.opened)


class _Flood:
    """Keeps ``count`` connections open that send nothing, spread over ``addresses``."""

    def __init__(self, addresses: list[tuple[str, int]], count: int) -> None:
        self._addresses, self.count, self.opened = addresses, count, 0
        self._socks: list[socket.socket | None] = [None] * count
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._keep, name="flood", daemon=True)

    def start(self) -> None:
        """Open all connections, and keep them open from now on."""
        for place in range(self.count):
            self._open(place)
        self._thread.start()

    def close(self) -> None:
        """Close all."""
        self._over.set()
        if self._thread.is_alive():
            self._thread.join()
        for sock in self._socks:
            if sock is not None:
                sock.close()

    def _open(self, place: int) -> None:
        sock = socket.socket()
        sock.settimeout(5.0)
        self._socks[place] = sock
        with suppress(OSError):
            sock.connect(self._addresses[place % len(self._addresses)])
            self.opened += 1
        sock.setblocking(False)

    def _keep(self) -> None:
        place = 0
        while not self._over.wait(0.1):
            for _ in range(_AGAIN // 10):
                place = (place + 1) % self.count
                sock = self._socks[place]
                if sock is not None and _closed(sock):
                    sock.close()
                    self._open(place)


def _closed(sock: socket.socket) -> bool:
    try:
        return sock.recv(1) == b""
    except BlockingIOError:
        return False
    except OSError:
        return True


def _bundle(settings: SilentSettings, folder: Path) -> Bundle:
    args = {"vocab": 256, "sequence": 32, "layers": settings.layers, "width": settings.width, "heads": 2}
    document = {
        "name": "silent",
        "seed": settings.seed,
        "steps": 1_000_000,
        "workers": 1,
        "micro_batch_sizes": [2, 2, 2, 2],
        "model": {"recipe": "gpt", "args": args},
        "data": {"kind": "text", "path": "corpus", "tokenizer": "bytes", "sequence": 32},
        "optimizer": {"name": "adamw", "lr": 1e-3},
        "checkpoint": {"at_end": False, "recover_every": 5.0},
        "plan": {"planner": "equal_compute", "again": False},
    }
    return bundle_job(make_job(document), base=folder)


def _addresses(cluster: LocalCluster, client: Client) -> list[tuple[str, int]]:
    broker = cluster.folder / "broker"
    ports = [int(word) for word in (broker / "ports").read_text(encoding="utf-8").split()]
    members = client.status()["members"]
    assert isinstance(members, list)
    host, _, port = str(members[0]["address"]).rpartition(":")
    return [*((host, one) for one in ports), (host, int(port))]


def _steps(client: Client, run: str) -> Iterator[StepRecord]:
    """The records of ``run`` from its first step on.

    Raises:
        TrainingError: the run ends.
    """
    for message in client.watch(run):
        if isinstance(message, RecordLine):
            record = read_record(message.line)
            if isinstance(record, StepRecord):
                yield record
        elif isinstance(message, Result):
            raise TrainingError(f"the run ended before it was measured: {RunResult.from_json(message.result).cause}")


def _step(client: Client, run: str) -> int:
    """The step that ``run`` makes now."""
    runs = client.status()["runs"]
    assert isinstance(runs, list)
    return next(int(one["step"]) for one in runs if one["run"] == run)


def _median(steps: Iterator[StepRecord], count: int, *, first: int) -> float:
    """The median time of ``count`` steps, of which none is before the step ``first``."""
    later = (float(record.seconds) for record in steps if record.step >= first)
    return statistics.median(itertools.islice(later, count))


def _joined(cluster: LocalCluster, begin: float) -> float:
    """Seconds until the late worker had joined (infinite: it has not)."""
    for _ in cluster.patiently(_LATE):
        if f"worker {_LATE} joined" in cluster.log("broker"):
            return time.monotonic() - begin
    return float("inf")


def _report(before: float, during: float, joined: float, opened: int) -> Report:
    share = before / during
    checks = [
        Check(name="speed of training", target=f"at least {_SHARE}", measured=f"{share:.3f}", passed=share >= _SHARE),
        Check(name="a worker joins", target="it does", measured=f"after {joined:.1f} s", passed=joined < float("inf")),
    ]
    figures = {
        "before_seconds": before,
        "during_seconds": during,
        "speed_ratio": share,
        "joined_seconds": joined,
        "opened": opened,
    }
    rows = [(f"{before:.4f}", f"{during:.4f}", f"{share:.3f}", f"{joined:.1f}", opened)]
    return Report(figures=figures, columns=("before s", "during s", "ratio", "joined s", "opened"), rows=rows, checks=checks)
