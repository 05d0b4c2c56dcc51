"""``train`` with a ticket reports lost workers, what the run waits for, and that it continues."""

from __future__ import annotations

import logging
import threading
from pathlib import Path

import pytest

from farflung import CheckpointSpec
from farflung.telemetry.records import StepRecord
from tests.support.runs.loopback import Loopback
from tests.support.runs.small_training import same, trained
from tests.support.runs.worker_deaths import vanish


class _Log(logging.Handler):
    """The warnings, and an event at the first that says that the run waits."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []
        self.waits = threading.Event()

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())
        if "waiting for" in self.lines[-1]:
            self.waits.set()


@pytest.mark.timeout(300)
def test_the_loss_of_all_workers_says_what_the_run_waits_for(tmp_path: Path) -> None:
    log, steps = _Log(), 8
    logger = logging.getLogger("farflung")
    logger.addHandler(log)
    with Loopback(tmp_path, 1) as cluster:

        def replace() -> None:
            log.waits.wait()
            cluster.add("b")

        joins = threading.Thread(target=replace, name="replacement", daemon=True)
        joins.start()

        def on_step(record: StepRecord) -> None:
            if record.step == 3:
                vanish(cluster, "a")

        try:
            ticket = str(cluster.ticket("submit"))
            found = trained(ticket, steps=steps, workers=1, checkpoint=CheckpointSpec(every=2), on_step=on_step)
        finally:
            log.waits.set()
            joins.join()
            logger.removeHandler(log)
    lost, waits, resumed = log.lines
    assert lost.startswith(f"{found.run}: lost: worker a is gone: ")
    assert waits == (
        f"{found.run}: waiting for 1 more worker: add workers with farflung join, or end the run with farflung stop {found.run}"
    )
    assert resumed.startswith(f"{found.run}: resumed after ")
    assert same(found, trained(steps=steps))
