"""A worker that verifies: what it answers when it comes too late."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from farflung.plan.verification import Audit, Unit
from farflung.step.verification.verification import Verification

UNIT = Unit(3, 0, 1)


def verification(asked: list[str]) -> Verification:
    """Of worker b, while worker a computes the unit."""
    plan = SimpleNamespace(device_of=lambda stage, micro_batch: "a")
    setup = SimpleNamespace(run="r", device="b", job=SimpleNamespace(verify=SimpleNamespace(share=1.0)), plan=plan, secrets={})
    context: Any = SimpleNamespace(setup=setup, transfer=SimpleNamespace(post=lambda device, message: asked.append(device)))
    return Verification(context, SimpleNamespace())  # type: ignore[arg-type]


def test_a_second_verifier_without_the_states_of_that_step_says_so() -> None:
    asked: list[str] = []
    here = verification(asked)
    here.recheck(UNIT, "c")
    assert asked == ["c"]
    assert here.take_report(UNIT.step + 1)[2] == (), "its inputs may still come"
    assert here.take_report(UNIT.step + 99)[2] == (Audit(unit=UNIT, took={}, gave={}),)


def test_a_first_verifier_without_the_states_says_nothing() -> None:
    here = verification([])
    here.recheck(UNIT, "a")
    assert here.take_report(UNIT.step + 99)[2] == ()
