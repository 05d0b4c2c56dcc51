"""Codecs of layers that follow measured errors: the choice, that all members make it alike, and that a run resumes with it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from farflung.errors import PlanError, WireError
from farflung.step.sync.layer_codecs import chosen_codecs, codecs_from, codecs_to
from farflung.step.sync.stage_replica import StageReplica
from farflung.step.sync.value_exchange import ValueExchange
from farflung.sync import LayerCodecs, get_strategy
from tests.support.models.small_nets import world
from tests.support.steps.executor_threads import EVERY_STEP, Case, Ran, assert_goes_on, differing, other, run_threads
from tests.support.steps.strategy_cases import assert_agreed, case_of, close, straight

RULE = LayerCodecs(options=("identity", "int8", "int2"), error=0.0, every=2)
#: Of each layer: the squared norm, then of each option what it loses and its bytes. The first layer hardly counts.
LIGHT, HEAVY = [1.0, 0.0, 400.0, 0.1, 100.0, 0.2, 25.0], [1000.0, 0.0, 400.0, 0.3, 100.0, 90.0, 25.0]


def report(*layers: list[float]) -> Any:
    return np.array(layers)


def test_layers_lose_together_what_one_codec_for_all_would_lose() -> None:
    """int8 everywhere loses 0.4; int2 fits where little is lost by it, and the heavy layer gives nothing for it."""
    two = world(2, layers=2)
    assert chosen_codecs(RULE, [report(LIGHT, HEAVY)], two) == ("int8", "int8"), "0.2 + 0.3 is more than 0.4"
    roomy = replace(RULE, error=0.03)
    assert chosen_codecs(roomy, [report(LIGHT, HEAVY)], two) == ("int2", "int8"), "3 % of the norm, squared: 0.9"
    assert chosen_codecs(replace(RULE, error=1e-6), [report(LIGHT, HEAVY)], two) == ("identity", "identity")


def test_all_members_count_and_their_order_does_not() -> None:
    two, quiet = world(2, layers=2), [1.0, 0.0, 400.0, 0.0, 100.0, 0.0, 25.0]
    one, another = report(quiet, quiet), report(LIGHT, HEAVY)
    assert chosen_codecs(RULE, [one, one], two) == ("int2", "int2")
    assert chosen_codecs(RULE, [one, another], two) == chosen_codecs(RULE, [another, one], two) == ("int8", "int8")


def test_what_other_stages_have_too_has_no_codec() -> None:
    assert chosen_codecs(RULE, [report(LIGHT, HEAVY)], replace(world(2, layers=2), shared=(1,)))[1] == "identity"


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_reports_that_are_no_numbers_change_nothing(bad: float) -> None:
    two = replace(world(2, layers=2), codecs=("int2", "int8"))
    strange = report(LIGHT, HEAVY)
    strange[0, 3] = bad
    assert chosen_codecs(RULE, [strange, report(LIGHT, HEAVY)], two) == ("int2", "int8")


def test_a_choice_never_sends_more_than_the_codec_for_all() -> None:
    """Also where errors, rounded up to parts of the budget, would not fit any more."""
    random = np.random.default_rng(3)
    for layers in (1, 2, 7):
        rows = [[1.0, 0.0, 400.0, *random.random(1), 100.0, *(5 * random.random(1)), 90.0] for _ in range(layers)]
        chosen = chosen_codecs(RULE, [report(*rows)], world(2, layers=layers))
        cost = {"identity": 400.0, "int8": 100.0, "int2": 90.0}
        assert sum(cost[codec] for codec in chosen) <= 100.0 * layers


def test_codecs_in_force_are_stored_and_those_of_other_layers_are_left() -> None:
    two = replace(world(2, layers=2), codecs=("int2", "identity"))
    stored = codecs_to(RULE, two)
    assert codecs_from(RULE, stored, world(2, layers=2)) == two
    for strange in (world(2, layers=3), world(2, layers=1)):
        assert codecs_from(RULE, stored, strange) == strange
    fewer = replace(RULE, options=("identity", "int8"))
    assert codecs_from(fewer, stored, world(2, layers=2)) == world(2, layers=2)


#: The first codec is coarse in one layer only once the errors are known.
SETTINGS = {"codec": "int8", "options": "int4 int2", "error": 0.2, "every": 3}


def of(settings: dict[str, Any], **changes: Any) -> Case:
    return other(case_of("lgreco", settings, grid=False, **changes), make=straight)


def notes(ran: Ran) -> list[str]:
    return [note for note in ran.notes if "measured errors ask for other codecs" in note]


def test_workers_choose_alike_and_send_less() -> None:
    """What is measured in step 0 counts from step 2 on; replicas stay equal, so they decode with what the others encoded."""
    ran = run_threads(of(SETTINGS, steps=6))
    assert differing(ran.held["a"], ran.held["c"]) == []
    assert notes(ran)[0].startswith("step 2: measured errors ask for other codecs of layers in stage 0: ")
    assert set(notes(ran)[0].rpartition(": ")[2].split(", ")) & {"int4", "int2"}
    sent = [sum(report.sent.values()) for report in ran.reports]
    assert sent[2] < sent[1]
    assert sent[4] < sent[1]


def test_a_choice_keeps_its_error() -> None:
    """The relative error that the run measures, of all layers of one stage, stays within what was asked for."""
    ran = run_threads(of(SETTINGS | {"error": 0.05, "options": "int4 int2 bf16"}, steps=3))
    errors = [use.error for report in ran.reports[2:] for use in report.codecs.values() if use.error is not None]
    assert all(error < 0.2 for error in errors)
    assert run_threads(of(SETTINGS | {"error": 1e-6}, steps=4)).notes[-1].count("identity") >= 3


def test_without_an_error_to_spend_it_is_wait_free_backpropagation() -> None:
    close(
        run_threads(of({"codec": "identity"}, steps=5)), run_threads(other(case_of("wfbp", grid=False, steps=5), make=straight))
    )


@pytest.mark.parametrize("memory", ["none", "error_feedback"])
@pytest.mark.parametrize("at", [1, 2, 4])
def test_a_run_resumes_with_its_codecs(at: int, memory: str, tmp_path: Path) -> None:
    """After step 1 reports are under way, after step 2 a choice is in force."""
    assert_goes_on(of(SETTINGS | {"memory": memory}, steps=7, checkpoint=EVERY_STEP), at, tmp_path)


def test_tied_weights_of_two_stages_stay_equal() -> None:
    ran = run_threads(case_of("lgreco", SETTINGS, steps=6))
    for first, second in (("a", "b"), ("c", "d")):
        common = ran.held[first].keys() & ran.held[second].keys()
        assert common
        assert differing({n: ran.held[first][n] for n in common}, {n: ran.held[second][n] for n in common}) == []
    assert_agreed("lgreco", ran.held["a"], ran.held["c"])


@pytest.mark.parametrize(
    "strange", [lambda found: found[:-1], lambda found: found.astype(np.complex128)], ids=["short", "complex"]
)
def test_a_report_of_other_layers_is_refused_and_its_sender_named(strange: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    begin = ValueExchange.begin_report

    def forged(values: ValueExchange, replica: StageReplica, step: int, report: Any) -> None:
        begin(values, replica, step, strange(report) if replica.world.rank else report)

    monkeypatch.setattr(ValueExchange, "begin_report", forged)
    with pytest.raises(WireError, match=r"^[ac] sent a report that does not fit the layers of stage 0$") as found:
        run_threads(of(SETTINGS, steps=3))
    assert found.value.blames == str(found.value)[0]


def test_an_unknown_option_is_refused_before_a_run() -> None:
    with pytest.raises(PlanError, match="unknown codec 'int5'"):
        run_threads(of({"options": "int4 int5"}))
    assert get_strategy("lgreco").traits.layer_codecs is not None
