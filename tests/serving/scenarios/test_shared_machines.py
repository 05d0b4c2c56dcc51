"""A machine that trains and serves at the same time: two workers on it, and its owner says what each of them is for."""

from __future__ import annotations

from pathlib import Path

from tests.support.runs.loopback import Loopback, plainly, same, states_of, text_folder, text_job
from tests.support.servers.served_models import ServingOptions, greedy, save_served, serving


def test_a_model_is_served_beside_a_training_run(tmp_path: Path) -> None:
    model, job = save_served(tmp_path / "model"), text_job(workers=2)
    text_folder(tmp_path)
    options = ServingOptions(slots=2, chunk=8, planner="equal_compute", workers=2)
    answers: list[list[int]] = []
    with Loopback(tmp_path, 0) as cluster:
        for machine in "ab":
            cluster.add(f"{machine}-trains", only="training", data=tmp_path)
            cluster.add(f"{machine}-serves", only="serving", data=tmp_path)
        with serving(cluster, tmp_path / "model", options) as served:

            def ask(run: str, record: object) -> None:
                answers.append(served.complete([5, 6, 7], 4)["choices"][0]["token_ids"])

            finished = cluster.run(job, on_record=ask)
            assert set(served.service.devices) == {"a-serves", "b-serves"}
        assert finished.result.status == "finished", finished.result.cause
        assert set(finished.devices) == {"a-trains", "b-trains"}
    assert answers == [greedy(model, [5, 6, 7], 4)] * job.steps
    _, truth = plainly(job, tmp_path)
    assert same(truth.states, states_of(finished)) == []
