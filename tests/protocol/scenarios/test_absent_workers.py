"""The workers that a restored run waits for."""

from __future__ import annotations

from farflung.protocol.broker import BrokerMachine
from farflung.protocol.events import MemberJoined, Offer, RunRestored, WaitedEnough


def test_a_restored_run_waits_for_its_own_workers() -> None:
    machine = BrokerMachine()
    machine.handle(RunRestored(run="r", workers=None, attempts=1, expected=3, names=("a", "b", "c")))
    for name in ("a", "d", "e"):
        machine.handle(MemberJoined(name=name, address=name, offer=Offer(memory=1.0, speed=1.0)))
    assert machine.absent(machine.runs["r"]) == ["b", "c"]
    machine.handle(WaitedEnough(run="r"))
    assert machine.absent(machine.runs["r"]) == []
