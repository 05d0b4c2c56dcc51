"""A worker that watches its own memory: ``python -m benchmarks.harness.probe FILE join TICKET ...``.

Everything that a worker imports is imported first; what it takes then is the floor. The process that forks the processes that
compute adds its own memory to the floor, as it is while nothing computes. The peak is that of the worker with all these
processes: anonymous and shared memory, where a page that several of them have counts once. In FILE, {node} and {command} stand
for the node of an emulation and for ``join``. Linux only.
"""

from __future__ import annotations

import importlib
import json
import os
import runpy
import sys
import threading
import time
from contextlib import suppress
from functools import reduce
from importlib.util import find_spec
from pathlib import Path

from farflung.errors import InputError

__all__ = ["main", "peak_bytes", "resident_bytes", "tree_bytes"]

#: Seconds between two looks: at least these, and so many times the seconds that a look takes (a millisecond for each 250 MB).
_EVERY, _REST = 0.02, 5.0
#: What a page takes of a process, divided by the processes that have it: fields of ``smaps_rollup``.
_COUNTED = ("Pss_Anon:", "Pss_Shmem:")


def resident_bytes() -> int:
    """What is resident in this process now."""
    return _status("VmRSS")


def peak_bytes() -> int:
    """The most that was resident in this process."""
    return _status("VmHWM")


def tree_bytes(root: int) -> dict[int, int]:
    """The process ``root`` and all processes that it has started, with the memory of each.

    Raises:
        InputError: this system does not tell.
    """
    found: dict[int, int] = {}
    waiting = [root]
    while waiting:
        process = waiting.pop()
        with suppress(ProcessLookupError, FileNotFoundError):  # it has ended meanwhile
            found[process] = _anonymous_bytes(process)
            for task in Path(f"/proc/{process}/task").iterdir():
                waiting += map(int, (task / "children").read_text(encoding="ascii").split())
    if root not in found:
        raise InputError("the memory benchmark needs Linux with /proc/PID/smaps_rollup")
    return found


def _anonymous_bytes(process: int) -> int:
    lines = Path(f"/proc/{process}/smaps_rollup").read_text(encoding="ascii").splitlines()
    return sum(int(line.split()[1]) * 1024 for line in lines if line.startswith(_COUNTED))


def _status(field: str) -> int:
    try:
        text = Path("/proc/self/status").read_text(encoding="ascii")
    except OSError:
        raise InputError("the memory benchmark needs Linux: there is no /proc/self/status here") from None
    line = next(line for line in text.splitlines() if line.startswith(field + ":"))
    return int(line.split()[1]) * 1024


class _Curve(threading.Thread):
    """Memory over time, thinned: a point for each change by 8 MB."""

    def __init__(self) -> None:
        super().__init__(name="memory-curve", daemon=True)
        self.points: list[tuple[float, int]] = []
        self.peak = 0
        #: Of the process that forks, while it has no children.
        self.forks = 0
        self.over = threading.Event()

    def run(self) -> None:
        """Watch until ``over``."""
        begin, last, own, pause = time.monotonic(), -(1 << 30), os.getpid(), _EVERY
        while not self.over.wait(pause):
            before = time.monotonic()
            tree = tree_bytes(own)
            pause = max(_EVERY, _REST * (time.monotonic() - before))
            now = sum(tree.values())
            self.peak = max(self.peak, now)
            if len(tree) == 2:
                self.forks = max(self.forks, now - tree[own])
            if abs(now - last) > 8 << 20:
                last = now
                self.points.append((round(time.monotonic() - begin, 2), now))


def _import_all() -> None:
    """What a worker imports in a run, with what PyTorch itself loads when operators first run without data (80 MB)."""
    names = ["farflung.worker.process", "farflung.checkpoint", "farflung.data", "torch._dynamo"]
    names += [name for name in ("datasets", "tokenizers") if find_spec(name) is not None]
    for name in names:
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
    floor = sum(tree_bytes(os.getpid()).values())
    curve = _Curve()
    curve.start()
    try:
        sys.argv = ["farflung", *arguments[1:]]
        runpy.run_module("farflung", run_name="__main__", alter_sys=True)
    finally:
        curve.over.set()
        figures = {"after_imports": floor + curve.forks, "peak": curve.peak, "curve": curve.points}
        file.write_text(json.dumps(figures), encoding="utf-8")


if __name__ == "__main__":
    main(sys.argv[1:])
