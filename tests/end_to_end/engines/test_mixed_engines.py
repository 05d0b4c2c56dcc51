"""Workers with different engines in one run, and a worker whose engine computes something else."""

from __future__ import annotations

import numpy as np
import pytest

from farflung.errors import InputError
from farflung.plan.model import Plan
from farflung.worker import device_measurement
from farflung.worker.membership import join
from farflung.worker.options import WorkerOptions
from farflung.worker.process import Worker
from tests.support.runs.loopback import Loopback, text_job


def test_a_pipeline_of_two_engines_learns_as_one_of_pytorch(two: Loopback) -> None:
    job = text_job(plan={"planner": "equal_number"}, workers=2)
    expected = two.run(job)
    two.workers["b"].stop()
    two.add("c", engine="reference")
    found = two.run(job)
    assert Plan.from_json((found.folder / "plan.json").read_text()).devices == ("a", "c")
    assert np.allclose(found.losses, expected.losses, rtol=1e-4)
    members = {str(member["name"]): member for member in two.client.status()["members"]}
    assert members["c"]["precisions"] == ["float32"]
    assert members["c"]["versions"]["engine"].startswith("reference ")


def test_a_worker_whose_engine_computes_something_else_is_refused(two: Loopback, monkeypatch: pytest.MonkeyPatch) -> None:
    probe = device_measurement.probe_engine
    monkeypatch.setattr(device_measurement, "probe_engine", lambda *given: tuple(1.01 * number for number in probe(*given)))
    member = join(two.ticket("join"), name="odd", role="worker", key=two.key)
    worker = Worker(member, WorkerOptions(listen="127.0.0.1:0", memory=4e9, data=two.home), lambda line: None)
    try:
        with pytest.raises(
            InputError, match=r"worker 'odd' is refused: the gradients that its engine \(torch .*\) computes deviate"
        ):
            worker.serve()
    finally:
        worker.close()
    assert "odd" not in two.members()
