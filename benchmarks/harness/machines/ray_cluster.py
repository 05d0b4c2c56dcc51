"""A Ray cluster on this machine, with one node. Its Python needs the package ray."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib.util import find_spec
from pathlib import Path

from benchmarks.harness.machines.waiting import until
from farflung.child_processes import end_all
from farflung.errors import FarflungError

__all__ = ["ray_cluster", "ray_python"]


def ray_python() -> str:
    """Return a Python with Ray and farflung: that of ``FARFLUNG_RAY_PYTHON``, or this one (empty: there is none)."""
    return os.environ.get("FARFLUNG_RAY_PYTHON") or (sys.executable if find_spec("ray") else "")


@contextmanager
def ray_cluster(place: Path, python: str, cpus: int) -> Iterator[tuple[str, Path]]:
    """Start a node with ``cpus``. Yields the address of the cluster, and the folder with its logs. ``place``: a folder."""
    with ExitStack() as stack:  # names of sockets must be short
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ray-", ignore_cleanup_errors=True)))
        yield stack.enter_context(_head(place, folder, python, cpus)), folder


@contextmanager
def _head(place: Path, folder: Path, python: str, cpus: int) -> Iterator[str]:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    options = ["--head", "--block", f"--num-cpus={cpus}", f"--port={port}", "--node-ip-address=127.0.0.1"]
    options += ["--include-dashboard=false", "--disable-usage-stats", f"--temp-dir={folder}"]
    program = "from ray.scripts.scripts import main; main()"
    log = place / "ray.log"
    environment = {**os.environ, "HOME": str(place)}  # Ray writes into the user's folder
    with log.open("wb") as output:
        command = [python, "-c", program, "start", *options]
        head = subprocess.Popen(command, env=environment, stdout=output, stderr=output)  # noqa: S603 - no shell
    try:
        until(lambda: head.poll() is not None or "Ray runtime started" in log.read_text())
        if head.poll() is not None:
            raise FarflungError(f"Ray does not start: {log.read_text()[-500:]}")
        yield f"127.0.0.1:{port}"
    finally:
        end_all([head], 30.0)
