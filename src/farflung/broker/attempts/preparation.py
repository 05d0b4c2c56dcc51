"""What workers receive before an attempt begins."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from farflung.broker.live_run import LiveRun
from farflung.broker.planning.attempt_start import Start
from farflung.broker.planning.planned import Planned
from farflung.messages.copy_rounds import Rounds
from farflung.messages.submission import Bundle, squeeze
from farflung.wire.frames import Frame

__all__ = ["preparation_of"]


def preparation_of(bundle: Bundle, live: LiveRun, planned: Planned, start: Start) -> Frame:
    """Return what every worker of the run receives, without its own name and the addresses of its peers."""
    frame = replace(bundle, files={}).to_frame("prepare")
    protection = planned.protection(live.job)
    rounds = Rounds(every=protection.every, guards=protection.guards, least=protection.least, budget=protection.budget)
    extra: dict[str, Any] = {
        **start.header,
        "recovered": live.times.begun > 0,
        "submitter": live.submitter,
        "rounds": rounds.header(),
    }
    header = {**frame.header, **extra, "documents": [*frame.header["documents"], "plan"]}
    return Frame("prepare", header, (*frame.sections, squeeze(planned.plan_json)))
