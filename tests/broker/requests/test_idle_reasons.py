"""Why a worker is idle, in words."""

from __future__ import annotations

from typing import Any

import pytest

from farflung.broker.requests.idle_reasons import RunFacts, idle_reason
from farflung.protocol.events import Offer
from farflung.protocol.members import Member, Parting


def member(only: str = "", **changes: Any) -> Member:
    return Member(name="b", address="x", offer=Offer(memory=1.0, speed=1.0, only=only), **changes)


def facts(run: str = "run-1", **changes: Any) -> RunFacts:
    return RunFacts(**({"run": run, "needs": 0, "trains": True, "replans": True, "gives_stage": True, "findings": {}} | changes))


@pytest.mark.parametrize(
    ("who", "runs", "text"),
    [
        (member(run="run-1"), [facts()], ""),
        (member(), [], "waiting for a job"),
        (member(only="serving"), [], "waiting for a job (join --only serving)"),
        (member(paused=True), [facts()], "paused by its owner"),
        (member(parting=Parting.DRAIN), [facts()], "it leaves"),
        (member(), [facts(), facts("run-2", trains=False, needs=2)], "run-2 waits for 2 idle workers"),
        (member(), [facts(trains=False, needs=3, absent=["attic", "cellar"])], "run-1 waits for attic, cellar to return"),
        (member(), [facts(trains=False)], "waiting for a job"),
        (member(), [facts(), facts("run-2", replans=False)], "run-2 keeps its plan (plan.again = false)"),
        (member(), [facts(gives_stage=False)], "run-1 gives no stage to unreliable workers"),
        (member(), [facts(findings={"b": "it is slow"})], "run-1: it is slow"),
        (member(), [facts(findings={"c": "it is slow"})], "run-1: a plan with it is being looked for"),
    ],
)
def test_reasons(who: Member, runs: list[RunFacts], text: str) -> None:
    assert idle_reason(who, runs) == text
