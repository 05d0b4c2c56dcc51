"""A broker with a twentieth of a core reads reports later than workers make steps, and the run is whole nevertheless."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest

from farflung.chaos.local_cluster import LocalCluster
from farflung.messages.watching import RecordLine
from farflung.telemetry.records import RunResult, StepRecord, read_record
from tests.support.runs.loopback import captured, text_folder, text_job
from tests.support.runs.slowed_processes import slowed

#: More than the reports that the broker keeps for steps that others have not reported (64).
STEPS = 200


@pytest.mark.slow  # each step waits for the broker; test_progress.py has the rules for reports
@pytest.mark.timeout(300)
def test_a_run_survives_a_broker_that_barely_runs(tmp_path: Path) -> None:
    text_folder(tmp_path)
    steps = list[int]()
    with LocalCluster(tmp_path / "cluster", ["a", "b"], data=tmp_path) as cluster, ExitStack() as ends:
        client = cluster.client()
        ends.callback(client.close)
        bundle = captured(text_job(steps=STEPS, workers=2, checkpoint={"recover_every": 0.0}), tmp_path)
        client.submit(bundle)
        for message in client.watch(bundle.run):
            if not isinstance(message, RecordLine) or not isinstance(record := read_record(message.line), StepRecord):
                continue
            if not steps:
                ends.enter_context(slowed(cluster.processes["broker"], share=0.05, period=0.2))
            steps.append(record.step)
        folder = tmp_path / "cluster/broker/runs" / bundle.run
        result = RunResult.from_json((folder / "result.json").read_text(encoding="utf-8"))
    assert (result.status, result.cause) == ("finished", "")
    assert steps == list(range(STEPS))
