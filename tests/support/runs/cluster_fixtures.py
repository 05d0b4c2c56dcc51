"""Fixtures of the tests that run workers: one thread of torch, no warm-up, each graph read once, patient dialing, small clusters.

The ``conftest.py`` of each such folder imports them all.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest
import torch

from farflung.broker import process as broker
from farflung.broker.links import reachability as reaching
from farflung.engines.base import DeviceReport
from farflung.engines.torch.engine import TorchEngine
from farflung.graph.ir import Graph
from farflung.graph.validate import DEFAULT_LIMITS, Limits
from tests.support.documents.thread_table import rows, surviving
from tests.support.runs.loopback import Loopback, text_folder

__all__ = [
    "graphs_are_read_once",
    "home",
    "no_warm_up",
    "one_thread",
    "own_cache",
    "patient_dialing",
    "threads_end",
    "three",
    "two",
]


@pytest.fixture(scope="module", autouse=True)
def threads_end() -> Iterator[None]:
    """Whatever a module's brokers, workers and runs have started ends with them."""
    before = threading.enumerate()
    yield
    assert surviving(before, rows()) == []


@pytest.fixture(scope="session", autouse=True)
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="module", autouse=True)
def no_warm_up() -> Iterator[None]:
    """A worker's measurement of its device takes half a second, and every run asks for one.

    Of a module's scope: other packages' tests may follow in this process.
    """
    patch = pytest.MonkeyPatch()
    report = DeviceReport(
        name="test", flops_per_second=1e9, launch_seconds=0.0, total_bytes=8_000_000_000, free_bytes=8_000_000_000
    )
    patch.setattr(TorchEngine, "measure", lambda self, device, peak=None: report)
    yield
    patch.undo()


@lru_cache(maxsize=256)
def _read(text: str | bytes, limits: Limits) -> Graph:
    return _from_json(text, limits)


_from_json = Graph.from_json


@pytest.fixture(scope="module", autouse=True)
def graphs_are_read_once() -> Iterator[None]:
    """A broker and workers of one process read and check the same few graphs again and again: a quarter of a short run."""
    patch = pytest.MonkeyPatch()
    patch.setattr(Graph, "from_json", classmethod(lambda _, text, limits=DEFAULT_LIMITS: _read(text, limits)))
    yield
    patch.undo()


@pytest.fixture(scope="module", autouse=True)
def patient_dialing() -> Iterator[None]:
    """Whether a worker can be dialled is found out once: on a busy machine it must not take the time of an answer for a no."""
    patch = pytest.MonkeyPatch()
    for room in (reaching, broker):
        patch.setattr(room, "DIAL_SECONDS", 60.0)
    yield
    patch.undo()


@pytest.fixture(autouse=True)
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A folder with text in it."""
    text_folder(tmp_path)
    return tmp_path


@pytest.fixture
def three(home: Path) -> Iterator[Loopback]:
    """A broker with the workers a, b and c."""
    with Loopback(home, 3) as cluster:
        yield cluster


@pytest.fixture
def two(home: Path) -> Iterator[Loopback]:
    """A broker with the workers a and b."""
    with Loopback(home, 2) as cluster:
        yield cluster
