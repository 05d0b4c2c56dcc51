"""What a part of a run reports: of what it fetches, and of a defect."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from farflung.data.fetching import Fetch
from farflung.errors import TrainingError
from farflung.known_names import close_names
from farflung.messages.reports import Failed, Waits
from farflung.telemetry.log_line import Detail
from farflung.worker.run_part import CurrentPart, RunPart


def test_a_heartbeat_reports_what_the_part_has_fetched_while_it_grows() -> None:
    part: Any = SimpleNamespace(run="r", attempt=1, fetch=Fetch(), awaited=lambda: ((), 0.0), start=lambda: None)
    current = CurrentPart(None)
    assert current.waits() is None
    current.start(part)
    assert current.waits() is None
    part.fetch.add(5)
    assert current.waits() == Waits(run="r", attempt=1, peers=(), seconds=0.0, fetched=5)
    assert current.waits() is None
    part.fetch.add(5)
    assert current.waits() == Waits(run="r", attempt=1, peers=(), seconds=0.0, fetched=10)


class Failing(RunPart):
    """A part whose work fails with ``error`` (None: with a defect inside farflung)."""

    error: Exception | None = None

    def start(self) -> None:
        self._main()

    def abort(self, error: BaseException, *, broker_knows: bool = False, keep: bool = True) -> None:
        raise AssertionError

    def on_message(self, sender: Any, message: Any) -> None:
        raise AssertionError

    def on_lost(self, peer: str, error: Exception) -> None:
        raise AssertionError

    def _work(self) -> None:
        if self.error is not None:
            raise self.error
        nothing: Any = None
        close_names("a", nothing)

    def _close(self) -> None:
        pass

    def _describe(self, error: Exception, cause: str) -> tuple[str, bool]:
        return f"failed: {cause}", False


@pytest.mark.parametrize("error", [None, TrainingError("the loss is nan")], ids=["defect", "own"])
def test_a_defect_is_reported_with_its_line_and_logged_with_its_traceback(error: Exception | None) -> None:
    logged: list[str] = []
    reported: list[Any] = []
    services: Any = SimpleNamespace(log=logged.append, report=reported.append)
    command: Any = SimpleNamespace(run="r", attempt=1)
    part = Failing(command, services, lambda part: None)
    part.error = error
    part.start()
    (failed,) = reported
    assert isinstance(failed, Failed)
    assert logged[0] == f"failed: {failed.cause}"
    if error is not None:
        assert (failed.cause, failed.kind, logged[1:]) == ("the loss is nan", "TrainingError", [])
        return
    assert "(at farflung/known_names.py:" in failed.cause
    (trace,) = logged[1:]
    assert isinstance(trace, Detail)
    assert trace.startswith("Traceback")
    assert "test_run_part.py" in trace
