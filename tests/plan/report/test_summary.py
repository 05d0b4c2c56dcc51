"""What people see of a plan first."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.job.spec import JobSpec
from farflung.plan import Estimate, Plan, estimate, plan_answer, plan_line, stage_table
from farflung.plan.estimation.results import SavingEstimate
from farflung.plan.report.estimate_tables import saving_lines, stage_rows
from farflung.plan.report.summary import listed
from farflung.planners import get_planner
from tests.support.plans.chains import chain
from tests.support.plans.hand_plans import topology


def planned_on(count: int) -> tuple[Plan, Estimate]:
    graph, network, job = chain([64] * (count + 1)), topology(count=count), JobSpec(micro_batch_sizes=(4, 4))
    plan = get_planner("equal_number").plan(graph, network, job=job)
    return plan, estimate(graph, plan, network, job)


@pytest.fixture(scope="module")
def planned() -> tuple[Plan, Estimate]:
    return planned_on(3)


def test_one_line_has_stages_devices_step_and_bottleneck(planned: tuple[Plan, Estimate]) -> None:
    line = plan_line(*planned)
    assert line.startswith("plan: 3 stages on d0, d1, d2; predicted step ")
    assert line.endswith(f" samples/s); bottleneck: {planned[1].bound_by}")
    assert "\n" not in line


def test_the_answer_is_a_labeled_line_for_each_question(planned: tuple[Plan, Estimate]) -> None:
    lines = plan_answer(*planned, available=5, remedy="a faster link").splitlines()
    labels = [line.partition(":")[0] for line in lines]
    assert labels == ["predicted step", "stages", "devices", "memory", "bottleneck", "to speed it up"]
    assert lines[2] == "devices:        3 of 5 used: d0, d1, d2"
    assert " is the fullest device: " in lines[3]
    assert lines[3].endswith(" free")
    assert lines[-1] == "to speed it up: a faster link"
    assert len(plan_answer(*planned, available=3).splitlines()) == 5


@pytest.mark.parametrize(
    ("factor", "needed", "text"),
    [
        (1.62, True, "fits only with optimizer states on disk: 1.6 x slower (12 GB)"),
        (1.62, False, "optimizer states on disk: 1.6 x slower (12 GB)"),
        (1.0, True, "fits only with optimizer states on disk: not slower (12 GB)"),
    ],
)
def test_states_on_disk_have_a_line(planned: tuple[Plan, Estimate], factor: float, needed: bool, text: str) -> None:
    found = replace(planned[1], offload=SavingEstimate(factor=factor, needed=needed, nbytes=12e9))
    assert saving_lines(found) == [("disk", text)]
    assert f"disk:           {text}" in plan_answer(planned[0], found, available=3).splitlines()
    assert text in plan_line(planned[0], found)
    assert saving_lines(planned[1]) == []


def test_divided_parameters_have_a_line(planned: tuple[Plan, Estimate]) -> None:
    found = replace(planned[1], shard=SavingEstimate(factor=1.31, needed=True, nbytes=12e9))
    text = "fits only with parameters divided among ranks: 1.3 x slower (12 GB)"
    assert f"sites:          {text}" in plan_answer(planned[0], found, available=3).splitlines()
    assert plan_line(planned[0], found).endswith(f"; {text}")


def test_a_stage_whose_parameters_ranks_divide_is_marked(planned: tuple[Plan, Estimate]) -> None:
    first, *others = planned[1].replicas
    found = replace(planned[1], replicas=(replace(first, sharded_bytes=1e6), *others))
    assert [row[-1].endswith(" (divided)") for row in stage_rows(found)] == [False, True, False, False]


def test_the_table_has_a_row_for_each_stage(planned: tuple[Plan, Estimate]) -> None:
    head, rule, *rows = stage_table(planned[1]).splitlines()
    assert head.split()[:3] == ["stage", "device", "modules"]
    assert set(rule) == {"-", " "}
    assert [row.split()[:2] for row in rows] == [["0", "d0"], ["1", "d1"], ["2", "d2"]]


def test_many_stages_are_cut_to_those_that_compute_longest() -> None:
    lines = stage_table(planned_on(20)[1]).splitlines()
    assert len(lines) == 2 + 16 + 1
    assert lines[-1] == "(4 more rows; these 16 compute the longest, -v prints all)"


def test_long_lists_of_names_are_cut() -> None:
    assert listed([f"d{number}" for number in range(8)]).endswith("d7")
    assert listed([f"d{number}" for number in range(20)]).endswith("d7 and 12 more")
