"""However a worker's part in a run ends, it releases what it has opened, and the worker is free for another run."""

from __future__ import annotations

from pathlib import Path

import pytest

from farflung.engines.torch.engine import TorchEngine
from farflung.step.executor import Executor
from tests.support.network.quiet import until
from tests.support.runs.loopback import Loopback, text_job


def test_a_part_that_cannot_be_closed_ends_its_engine_and_frees_the_worker(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, failed, ended = Executor.close, list[str](), list[str]()

    def close(self: Executor) -> None:
        real(self)
        if not failed:
            failed.append(self.setup.run)
            raise RuntimeError("no space for the last trace")

    monkeypatch.setattr(Executor, "close", close)
    monkeypatch.setattr(TorchEngine, "end", lambda self: ended.append("engine"))
    monkeypatch.setattr("threading.excepthook", lambda found: None)
    with Loopback(home, 1) as cluster:
        assert cluster.run(text_job(steps=2)).result.status == "finished"
        until(lambda: cluster.workers["a"].part is None)
        assert ended == ["engine"]
        assert cluster.run(text_job(steps=2, name="next")).result.status == "finished"
    assert len(failed) == 1
