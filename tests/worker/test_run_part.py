"""What a heartbeat reports of the part that runs."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from farflung.data.fetching import Fetch
from farflung.messages.reports import Waits
from farflung.worker.run_part import CurrentPart


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
