"""Who lies about a unit of work, by the digests of three replicas and of the stage before them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from farflung.broker.verification.unit_verdicts import Disputed, Finding, Forged, SecondOpinion, UnitVerdicts
from farflung.messages.conversions.step_reports import StepReport
from farflung.plan.model import Plan, Replica, Stage
from farflung.plan.verification import (
    Audit,
    Digests,
    Transfer,
    TransferKind,
    Unit,
    drawn_units,
    secret_of,
    secrets_for,
    verifiers,
)

#: Stage 0 on z; stage 1 on a, b and c, one micro-batch each.
PLAN = Plan(
    graph_hash="0" * 64,
    planner="hand",
    stages=(
        Stage(index=0, start=0, stop=1, device="z"),
        Stage(
            index=1,
            start=1,
            stop=2,
            device="a",
            replicas=tuple(Replica(device=name, first=i, end=i + 1) for i, name in enumerate("abc")),
        ),
    ),
    links=(),
    schedule="1f1b",
    micro_batch_sizes=(1, 1, 1),
)
#: Of worker b.
UNIT = Unit(0, 1, 1)
TOOK = {Transfer(0, 1, 1, TransferKind.VALUES): b"values"}
GAVE = {Transfer(1, 0, 1, TransferKind.GRADIENTS): b"gradients", Transfer(1, 1, 1, TransferKind.PART): b"part"}
FORGED = GAVE | {Transfer(1, 1, 1, TransferKind.PART): b"forged"}
OTHER = GAVE | {Transfer(1, 1, 1, TransferKind.PART): b"another"}
EMPTY = StepReport(step=0, seconds=1.0, busy=1.0, wait=0.0, sent={}, dense={}, stage_busy={})
LATER = replace(EMPTY, step=1)


def audit(gave: Digests, took: Digests = TOOK) -> Audit:
    return Audit(unit=UNIT, took=took, gave=gave)


def found(audits: Mapping[str, Audit], gave: Digests = GAVE, taken: Digests = GAVE, given: Digests = TOOK) -> list[Finding]:
    """What follows if b gave ``gave``, z reports ``taken`` and ``given``, and ``audits`` come one after the other."""
    verdicts, findings = UnitVerdicts(PLAN), list[Finding]()
    back = {at: digest for at, digest in taken.items() if at.kind is TransferKind.GRADIENTS}
    for name, report in {
        "z": replace(EMPTY, gave=given, took=back),
        "a": EMPTY,
        "b": replace(EMPTY, gave=gave, took=TOOK),
        "c": EMPTY,
    }.items():
        findings += verdicts.report(name, report)
    for name, one in audits.items():
        findings += verdicts.report(name, replace(LATER, audits=(one,)))
    return findings


FIRST, SECOND = verifiers(PLAN, UNIT)
ASKED = SecondOpinion(name=SECOND, unit=UNIT, verifier=FIRST)


def test_equal_digests_name_nobody() -> None:
    assert found({FIRST: audit(GAVE)}) == []


def test_a_second_verifier_decides_against_the_worker() -> None:
    forged = Forged(name="b", unit=UNIT, others=(FIRST, SECOND))
    assert found({FIRST: audit(GAVE), SECOND: audit(GAVE)}, gave=FORGED) == [ASKED, forged]


def test_a_second_verifier_decides_against_the_first_one() -> None:
    assert found({FIRST: audit(FORGED)}) == [ASKED], "it is asked once"
    forged = Forged(name=FIRST, unit=UNIT, others=("b", SECOND))
    assert found({FIRST: audit(FORGED), SECOND: audit(GAVE)}) == [ASKED, forged]


def test_three_results_are_a_dispute() -> None:
    disputed = Disputed(names=("b", FIRST, SECOND), unit=UNIT)
    assert found({FIRST: audit(OTHER), SECOND: audit(FORGED)}) == [ASKED, disputed]


@pytest.mark.parametrize("took", [{}, {Transfer(0, 1, 1, TransferKind.VALUES): b"others"}])
def test_other_inputs_or_none_are_a_dispute_of_two(took: Digests) -> None:
    assert found({FIRST: audit(GAVE, took)}) == [Disputed(names=("b", FIRST), unit=UNIT)]
    second = Disputed(names=(FIRST, SECOND), unit=UNIT)
    assert found({FIRST: audit(FORGED), SECOND: audit(GAVE, took)}) == [ASKED, second]


def test_a_second_verifier_that_comes_too_late_is_no_party_to_the_dispute() -> None:
    disputed = Disputed(names=("b", FIRST), unit=UNIT)
    assert found({FIRST: audit(FORGED), SECOND: audit({}, {})}) == [ASKED, disputed]


def test_the_ends_of_a_link_must_report_the_same() -> None:
    disputed = [Disputed(names=("b", "z"), unit=UNIT)]
    assert found({FIRST: audit(GAVE)}, given={Transfer(0, 1, 1, TransferKind.VALUES): b"others"}) == disputed
    assert found({FIRST: audit(GAVE)}, taken={Transfer(1, 0, 1, TransferKind.GRADIENTS): b"others"}) == disputed


def test_nobody_but_the_verifiers_may_accuse() -> None:
    strange = replace(audit(FORGED), unit=Unit(0, 7, 1)), replace(audit(FORGED), unit=Unit(9, 1, 1))
    for name, one in (("z", audit(FORGED)), ("b", audit(FORGED)), (FIRST, strange[0]), (FIRST, strange[1])):
        assert found({name: one}) == []
    assert found({SECOND: audit(FORGED)}) == [], "the second one was not asked"


def test_draws_are_a_share_that_the_worker_cannot_predict() -> None:
    key = secret_of("secret", "b")
    drawn = [unit for step in range(5000) for unit in drawn_units(PLAN, step, 0.02, key, "b")]
    assert 60 < len(drawn) < 140
    assert {(unit.stage, unit.micro_batch) for unit in drawn} == {(1, 1)}
    assert [*drawn_units(PLAN, 3, 1.0, key, "z")] == [], "nobody else has the states of z"
    alike = dict.fromkeys("abcz", "cpu")
    assert secrets_for("secret", PLAN, "a", alike) == {"b": key, "c": secret_of("secret", "c")}
    assert secrets_for("secret", PLAN, "a", alike | {"c": "cuda"}) == {"b": key}, "another machine rounds differently"
    assert secrets_for("secret", PLAN, "z", alike) == {}
    assert {verifiers(PLAN, Unit(step, 1, 1)) for step in range(4)} == {("a", "c"), ("c", "a")}
