"""Sites of two ranks on the CPU, for tests: real processes, joined by Gloo."""

from __future__ import annotations

from pathlib import Path

import psutil

from farflung.worker.process import Worker
from tests.support.runs.loopback import Loopback, text_folder

__all__ = ["RANKS", "rank_processes", "sites"]

RANKS = ("cpu", "cpu")


def sites(home: Path, names: str) -> Loopback:
    """A broker with a site for each letter of ``names``; a capital letter is a worker without ranks."""
    text_folder(home)
    cluster = Loopback(home, 0)
    for name in names:
        cluster.add(name.lower(), devices=() if name.isupper() else RANKS)
    return cluster


def rank_processes(worker: Worker) -> list[psutil.Process]:
    """The processes of the ranks of a worker's attempt, in their order; none while there is no attempt."""
    engine = worker.carried.device.engine
    forks = psutil.Process(engine.forks)  # type: ignore[attr-defined]
    guards = [one for one in forks.children(recursive=True) if len(one.children()) == len(RANKS)]
    return sorted(guards[-1].children(), key=lambda one: one.pid) if guards else []
