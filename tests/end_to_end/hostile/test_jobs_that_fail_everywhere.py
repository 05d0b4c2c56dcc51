"""A job that fails on every machine fails by its own cause, and costs no worker its standing."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.runs.loopback import Loopback, text_folder, text_job


@pytest.mark.timeout(240)
@pytest.mark.parametrize("planner", ["equal_compute", "auto"])
def test_a_loss_that_is_not_finite_anywhere(tmp_path: Path, planner: str) -> None:
    text_folder(tmp_path)
    job = text_job(
        steps=20,
        optimizer={"name": "sgd", "lr": 1e30},
        checkpoint={"recover_every": 0.0},
        plan={"planner": planner},
        recoveries=9,
    )
    with Loopback(tmp_path, 2) as cluster:
        result = cluster.run(job, anybody=True).result
        members = cluster.client.status()["members"]
    assert result.status == "failed"
    assert "is not a finite number; lower the learning rate" in result.cause
    assert [one["idle"] for one in members if "planned last" in one["idle"] or "quarantine" in one["idle"]] == []
