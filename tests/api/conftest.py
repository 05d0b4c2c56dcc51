"""A broker with two workers, for tests of ``train`` with a ticket. No thread outlives its owner."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from farflung.broker.process import Broker
from farflung.errors import ConnectionLost
from farflung.worker.membership import join
from farflung.worker.options import WorkerOptions
from farflung.worker.process import Worker
from tests.support.runs.cluster_fixtures import graphs_are_read_once, home, no_warm_up, threads_end, two  # noqa: F401 - fixtures apply to the folder whose conftest has them


@pytest.fixture(scope="module")
def broker_home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("cluster") / "broker"


@pytest.fixture(scope="module")
def ticket(broker_home: Path) -> Iterator[str]:
    """A broker with two workers."""
    broker = Broker(broker_home, listen="127.0.0.1:0")
    workers = [
        Worker(
            join(broker.ticket(), name=name, role="worker"), WorkerOptions(listen="127.0.0.1:0", memory=1e9), lambda line: None
        )
        for name in "ab"
    ]

    def serve(worker: Worker) -> None:
        with suppress(ConnectionLost):
            worker.serve()

    threads = [threading.Thread(target=serve, args=(worker,), daemon=True) for worker in workers]
    for thread in threads:
        thread.start()
    yield str(broker.ticket("submit"))
    for worker in workers:
        worker.stop()
    for thread in threads:
        thread.join(20)
    for worker in workers:
        worker.close()
    broker.close()


@pytest.fixture
def place(there: bool, request: pytest.FixtureRequest) -> str | None:
    """A ticket, or None for workers of this process."""
    ticket: str | None = request.getfixturevalue("ticket") if there else None
    return ticket


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)
