"""A served model makes no steps: no deadline ends its run while it waits for requests."""

from __future__ import annotations

from pathlib import Path

from farflung.broker.attempts.attempt_deadlines import AttemptDeadlines, DeadlineSettings
from farflung.clock import monotonic
from farflung.protocol.events import Event
from tests.support.runs.loopback import Loopback
from tests.support.servers.served_models import save_served, serving


def test_a_server_may_wait_for_requests_for_any_time(two: Loopback, tmp_path: Path) -> None:
    save_served(tmp_path / "model")
    with serving(two, tmp_path / "model") as served:
        settings = DeadlineSettings(step=0.0, exchange=0.0, times=0.0)
        events: list[Event] = []
        deadlines = AttemptDeadlines(runs=two.broker.runs, handle=events.append, warn=served.said.append, settings=settings)
        for seconds in (0.0, 1e6, 2e6):  # as if so much time had passed
            deadlines.check(monotonic() + seconds)
        assert served.complete("word5", 3)["usage"]["completion_tokens"] == 3
    assert events == []
