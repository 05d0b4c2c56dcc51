"""A worker that watches its own memory: ``python -m benchmarks.harness.probe FILE join TICKET ...``.

Everything that a worker imports is imported first; what is resident then is the floor. The kernel's peak is reset there, and
read again when the worker is told to leave. In FILE, {node} and {command} stand for the node of an emulation and for ``join``.
Linux only.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import threading
import time
from functools import reduce
from pathlib import Path

from farflung.errors import InputError

__all__ = ["main", "peak_bytes", "reset_peak", "resident_bytes"]

_EVERY = 0.02


def resident_bytes() -> int:
    """What is resident now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most that was resident since the last reset."""
    return _status("VmHWM")


def reset_peak() -> None:
    """Let the peak begin from what is resident now.

    Raises:
        InputError: this system can't.
    """
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    except OSError as error:
        raise InputError(f"the memory benchmark needs Linux with /proc/self/clear_refs: {error.strerror}") from None


def _status(field: str) -> int:
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        raise InputError("the memory benchmark needs Linux: there is no /proc/self/status here") from None
    line = next(line for line in text.splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


class _Curve(threading.Thread):
    """Resident bytes over time, thinned: a point for each change by 8 MB."""

    def __init__(self) -> None:
        super().__init__(name="memory-curve", daemon=True)
        self.points: list[tuple[float, int]] = []
        self.over = threading.Event()

    def run(self) -> None:
        """Watch until ``over``."""
        begin, last = time.monotonic(), -(1 << 30)
        while not self.over.wait(_EVERY):
            now = resident_bytes()
            if abs(now - last) > 8 << 20:
                last = now
                self.points.append((round(time.monotonic() - begin, 2), now))


def _import_all() -> None:
    """What a worker imports in a run, with what PyTorch itself loads when operators first run without data (80 MB)."""
    for name in ("farflung.worker.process", "farflung.checkpoint", "farflung.data", "torch._dynamo"):
        importlib.import_module(name)
    import torch

    from farflung.engines import get_engine

    get_engine("torch")
    torch.nn.functional.embedding(torch.zeros(1, dtype=torch.int64, device="meta"), torch.zeros(1, 1, device="meta"))


def main(arguments: list[str]) -> None:
    """Run the rest of ``arguments`` as a command of farflung and write what memory it took to the first of them."""
    _import_all()
    named = {"{node}": os.environ.get("FARFLUNG_NODE", ""), "{command}": arguments[1]}
    file = Path(reduce(lambda text, pair: text.replace(*pair), named.items(), arguments[0]))
    floor = resident_bytes()
    reset_peak()
    curve = _Curve()
    curve.start()
    try:
        sys.argv = ["farflung", *arguments[1:]]
        runpy.run_module("farflung", run_name="__main__", alter_sys=True)
    finally:
        curve.over.set()
        figures = {"after_imports": floor, "peak": peak_bytes(), "curve": curve.points}
        file.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
