"""Which members a run is planned for."""

from __future__ import annotations

from dataclasses import replace

from farflung.protocol.broker import BrokerMachine, RunState
from farflung.protocol.candidates import candidates
from farflung.protocol.events import MakePlan, MemberJoined, Offer, PlanMade, RunSubmitted
from farflung.protocol.members import Member

PLAIN = Offer(memory=1e9, speed=1e9, factor=1.0, overhead=0.0, host="", processors=(), kind="cpu", description="", versions={})


def offer(number: int) -> Offer:
    """Of every fifty, the last five are the fastest and the first five have the most memory; two regions."""
    place = number % 50
    return replace(PLAIN, speed=1e9 + place, memory=2e9 - place, region=f"region {number // 50 % 2}")


def members(count: int) -> list[Member]:
    return [Member(name=f"m{number:03}", address="", offer=offer(number)) for number in range(count)]


def test_few_members_are_all_candidates() -> None:
    few = members(128)
    assert candidates(few, 2) == few


def test_a_run_that_takes_all_is_planned_for_all() -> None:
    many = members(1000)
    assert candidates(many, None) == many


def test_of_many_members_the_fastest_and_the_largest_of_each_region_are_candidates() -> None:
    many = members(200)
    found = candidates(many, 2, keep=("m007",))
    # in region 0: m049 and m149 are the fastest, m000 and m100 have the most memory
    assert [one.name for one in found] == ["m000", "m007", "m049", "m050", "m099", "m100", "m149", "m150", "m199"]


def machine_with(count: int) -> BrokerMachine:
    machine = BrokerMachine()
    for number in range(count):
        machine.handle(MemberJoined(name=f"m{number:03}", address="", offer=offer(number), generation=1))
    return machine


def submit(machine: BrokerMachine, run: str, workers: int) -> list[MakePlan]:
    commands = machine.handle(RunSubmitted(run=run, workers=workers))
    return [one for one in commands if isinstance(one, MakePlan)]


def test_two_runs_are_planned_at_the_same_time() -> None:
    machine = machine_with(200)
    (first,), (second,) = submit(machine, "one", 2), submit(machine, "two", 2)
    assert not set(first.members) & set(second.members)
    assert max(len(first.members), len(second.members)) <= 8


def test_a_run_that_finds_no_plan_for_its_candidates_is_planned_for_all() -> None:
    machine = machine_with(200)
    (first,) = submit(machine, "one", 2)
    refusal = {"error": "no plan fits", "kind": "PlanError"}
    again = machine.handle(PlanMade(run="one", attempt=first.attempt, **refusal))  # type: ignore[arg-type]
    (second,) = [one for one in again if isinstance(one, MakePlan)]
    assert len(second.members) == 200
    machine.handle(PlanMade(run="one", attempt=second.attempt, **refusal))  # type: ignore[arg-type]
    assert machine.runs["one"].state is RunState.FAILED
