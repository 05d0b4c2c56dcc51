"""The workers that a restored run waits for."""

from __future__ import annotations

from farflung.protocol.broker import BrokerMachine
from farflung.protocol.events import MakePlan, MemberJoined, Offer, RunRestored, RunSubmitted, WaitedEnough


def test_a_restored_run_waits_for_its_own_workers() -> None:
    machine = BrokerMachine()
    machine.handle(RunRestored(run="r", workers=None, attempts=1, expected=3, names=("a", "b", "c")))
    for name in ("a", "d", "e"):
        machine.handle(MemberJoined(name=name, address=name, offer=Offer(memory=1.0, speed=1.0)))
    assert machine.absent(machine.runs["r"]) == ["b", "c"]
    machine.handle(WaitedEnough(run="r"))
    assert machine.absent(machine.runs["r"]) == []


def test_a_restored_run_claims_no_worker_whose_owner_does_not_allow_it() -> None:
    """The owner of ``a`` allows serving only, so the run that trained waits for others."""
    machine = BrokerMachine()
    machine.handle(RunRestored(run="old", workers=None, attempts=4, expected=2))
    offer = Offer(memory=1.0, speed=1.0, only="serving")
    machine.handle(MemberJoined(name="a", address="a", offer=offer))
    commands = machine.handle(RunSubmitted(run="chat", workers=1, serves=True))
    assert MakePlan(run="chat", members=("a",), attempt=1) in commands
