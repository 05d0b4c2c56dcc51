"""What a broker that was started again takes from a worker that returns with states."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farflung.broker.attempts.retained_states import RetainedReport, RetainedStates
from farflung.broker.live_run import WorkerFacts
from farflung.broker.records.report_limits import ReportLimits
from farflung.broker.run_table import RunTable
from farflung.job.load import make_job
from farflung.protocol.events import RunRestored


@pytest.mark.parametrize(("attempt", "usable"), [(3, True), (2, False)])
def test_a_worker_of_the_last_attempt_is_not_measured_again(attempt: int, usable: bool) -> None:
    """Its offer has what it measured for the run, and training waits for the plan."""
    runs = RunTable()
    limits = ReportLimits(make_job({"steps": 10, "micro_batch_sizes": [1]}))
    live: Any = SimpleNamespace(run="r", workers=WorkerFacts(), running=None, limits=lambda plan: limits, result=None)
    runs.add(live)
    runs.machine.handle(RunRestored(run="r", workers=2, attempts=3, expected=2))
    retained = RetainedStates(runs, lambda name, message: None)
    assert retained.rejoin("a", RetainedReport(run="r", attempt=attempt, states=[], steps=[])) == usable
    assert live.workers.measured == ({"a"} if usable else set())
    assert not retained.rejoin("a", RetainedReport(run="another", attempt=attempt, states=[], steps=[]))
