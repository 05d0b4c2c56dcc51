"""Workers that are sites of two ranks train as one process does."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.plan import Plan
from farflung.telemetry import RunFolder
from tests.support.loopback import Finished, Loopback, same, text_folder, text_job
from tests.support.sites import rank_processes, sites

STEPS = 6
#: AdamW and clipping, dropout, and micro-batches of two sizes.
CHANGES: dict[str, Any] = {
    "steps": STEPS,
    "micro_batch_sizes": [3, 3, 2, 3, 2, 3],
    "model": {"args": {"vocab": 256, "sequence": 16, "layers": 2, "width": 16, "heads": 2, "dropout": 0.1}},
    "optimizer": {"name": "adamw", "lr": 1e-2, "clip_norm": 0.5},
    "evaluate": {"every": 3, "batches": 1},
}


def alone(home: Path, **changes: Any) -> Finished:
    """What one worker with one device makes of the job."""
    (home / "alone").mkdir()
    text_folder(home / "alone")
    with Loopback(home / "alone", 1) as cluster:
        return cluster.run(text_job(**CHANGES | changes))


@pytest.mark.parametrize(
    ("names", "changes"),
    [
        pytest.param("a", {}, id="site", marks=pytest.mark.slow),
        pytest.param("ab", {}, id="pipeline"),
        pytest.param("ab", {"plan": {"replicas": 2}}, id="replicas", marks=pytest.mark.slow),
        pytest.param("aB", {}, id="site and worker", marks=pytest.mark.slow),
        pytest.param("Ab", {"plan": {"schedule": "zb-h1"}}, id="split backward", marks=pytest.mark.slow),
    ],
)
def test_the_weights_are_those_of_one_process(tmp_path: Path, names: str, changes: dict[str, Any]) -> None:
    with sites(tmp_path, names) as cluster:
        found = cluster.run(text_job(**CHANGES | changes))
    truth = alone(tmp_path)
    assert found.result.status == "finished", found.result.cause
    assert len(found.devices) == len(names)
    assert Plan.from_json(RunFolder(found.folder).plan.read_text()).schedule.endswith("@2")
    assert found.losses == truth.losses
    assert [record.loss for record in found.evaluations] == [record.loss for record in truth.evaluations]
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []


@pytest.mark.slow
def test_sums_in_any_order_differ_by_rounding(tmp_path: Path) -> None:
    changes = {"sync": {"order": "any"}, "optimizer": {"name": "sgd", "lr": 0.1}}
    with sites(tmp_path, "a") as cluster:
        found = cluster.run(text_job(**CHANGES | changes))
    truth = alone(tmp_path, **changes)
    assert found.losses == pytest.approx(truth.losses, rel=1e-5)
    ours, theirs = found.tensors(STEPS), truth.tensors(STEPS)
    assert ours.keys() == theirs.keys()
    assert all(np.allclose(ours[name], theirs[name], rtol=1e-4, atol=1e-6) for name in theirs)


@pytest.mark.parametrize("rank", [pytest.param(0, marks=pytest.mark.slow), 1])
def test_the_death_of_a_rank_costs_time_only(tmp_path: Path, rank: int) -> None:
    killed: list[int] = []
    with sites(tmp_path, "ab") as cluster:

        def kill(run: str, record: Any) -> None:
            if record.step == 2 and not killed:
                victim = rank_processes(cluster.workers["b"])[rank]
                killed.append(victim.pid)
                victim.kill()

        found = cluster.run(text_job(**CHANGES), on_record=kill)
        said = "\n".join(cluster.said["b"])
    truth = alone(tmp_path)
    assert found.result.status == "finished", found.result.cause
    assert len(killed) == 1
    assert f"rank {rank} of 2 died of SIGKILL" in said
    steps = {record.step: record.loss for record in found.steps}
    assert [steps[step] for step in range(STEPS)] == truth.losses
    assert same(truth.tensors(STEPS), found.tensors(STEPS)) == []
