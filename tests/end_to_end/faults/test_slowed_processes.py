"""Real processes are slowed, stopped and killed: who watches is told who, and whether it is slow or dead."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from farflung.units import Seconds
from farflung.wire.frames import Frame
from tests.support.runs.loopback import Loopback, text_folder, text_job
from tests.support.runs.slowed_processes import slowed
from tests.support.runs.watched_runs import watched

#: Longer than that of a broker, so that a busy machine has time to wake a process again.
LEASE = Seconds(12.0)


@contextmanager
def processes(cluster: Loopback, *names: str) -> Iterator[dict[str, subprocess.Popen[bytes]]]:
    made = {}
    environment = {**os.environ, "FARFLUNG_HOME": str(cluster.home / "home")}
    for name in names:
        words = ["join", str(cluster.ticket("join")), "--name", name, "--listen", "127.0.0.1:0", "--data", str(cluster.home)]
        with (cluster.home / f"{name}.log").open("wb") as log:
            made[name] = subprocess.Popen([sys.executable, "-m", "farflung", *words], stdout=log, stderr=log, env=environment)
    try:
        while {"a", "b"} - set(cluster.members()):
            assert all(process.poll() is None for process in made.values())
        yield made
    finally:
        for process in made.values():
            process.kill()
            process.wait()


def until(frames: Iterator[Frame], text: str) -> str:
    """The first note, or line on a recovery, that holds ``text``."""
    told = []
    for frame in frames:
        line = str(frame.header.get("text") or frame.header.get("line") or frame.header)
        if frame.kind == "note" or '"recovery"' in line:
            told.append(line)
            if text in line:
                return line
    raise AssertionError(f"nobody said {text!r}, but {told}")


@pytest.mark.slow  # on a machine that is busy itself everything is slow; test_watching.py says what is told at any speed
@pytest.mark.timeout(300)
def test_slow_stopped_and_dead_are_told_apart(tmp_path: Path) -> None:
    text_folder(tmp_path)
    job = text_job(
        steps=1_000_000,
        micro_batch_sizes=[16, 16],
        model={"args": {"vocab": 256, "sequence": 32, "layers": 4, "width": 96, "heads": 2}},
        data={"sequence": 32},
        checkpoint={"recover_every": 0.0},
        plan={"planner": "equal_number"},
        workers=2,
    )
    with Loopback(tmp_path, 0) as cluster:
        cluster.broker.sessions.leases.length = LEASE
        with processes(cluster, "a", "b") as made:
            bundle, _ = cluster.submit(job)
            frames = iter(watched(cluster.client, bundle.run))
            for count, frame in enumerate(frames):  # how fast it is when nothing is wrong
                if frame.kind == "record" and count > 40:
                    break
            with slowed(made["b"], share=0.15, period=0.04):
                until(frames, "worker b is slow but alive: it computes for ")
                (run,) = cluster.client.status()["runs"]  # type: ignore[misc]
                assert "b" in run["slow"]
            until(frames, "worker b is back at its usual speed")
            made["a"].send_signal(signal.SIGSTOP)
            assert "it is slow or dead; the broker removes it after" in until(frames, "worker a has been silent for ")
            made["a"].send_signal(signal.SIGCONT)
            assert "of silence" in until(frames, "worker a responds again after ")
            made["a"].kill()
            until(frames, "worker a is gone")
