"""The demo's comparison, its settings and its share of time."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from farflung.cli.trial import demo
from farflung.cli.trial.demo_results import best_of, compare, explanation, results_table
from farflung.cli.trial.demo_runs import PRESET, VICTIM, demo_job, demo_runs, share_of_time
from farflung.cli.trial.demo_summary import demo_facts, last_lines, recovery_lines
from farflung.cluster import Topology
from farflung.job import JobSpec, check_job
from farflung.plan import LinkPlan, Plan, Stage
from farflung.telemetry import RecoveryRecord, RunResult, StepRecord
from farflung.web.reports import Run

PLAN = Plan(
    graph_hash="0" * 64,
    planner="equal_number",
    stages=(Stage(index=0, start=0, stop=1, device="east-0"), Stage(index=1, start=1, stop=2, device="west-0")),
    links=(LinkPlan(source=0, target=1),),
)


def made(label: str, losses: list[float], seconds: float, size: int) -> Run:
    steps = tuple(
        StepRecord(
            step=index,
            loss=loss,
            seconds=seconds,
            elapsed=seconds * (index + 1),
            samples=4,
            link_bytes={(0, 1): size, (1, 0): size // 2},
            predicted_seconds=seconds / 2,
        )
        for index, loss in enumerate(losses)
    )
    return Run(label=label, job=JobSpec(steps=max(1, len(losses))), plan=PLAN, topology=Topology.preset(PRESET), steps=steps)


def test_times_at_equal_loss() -> None:
    runs = [
        made("dense", [5.0, 4.0, 3.0], 2.0, 1000),
        made("adatopk 100", [5.0, 4.0, 4.0, 3.5, 3.6], 0.5, 20),
        made("int4", [5.0, 4.5, 3.5, 2.9, 2.5], 0.5, 130),
    ]
    comparison = compare(runs)
    found = comparison.outcomes
    assert (comparison.common, comparison.base) == (3.5, 3.0)
    assert [one.reached for one in found] == [6.0, 2.0, 1.5]
    assert [one.matched for one in found] == [6.0, None, 2.0]
    assert [one.bytes_slow for one in found] == [1000, 20, 130]
    assert [one.bytes_all for one in found] == [1500, 30, 195]
    best = best_of(comparison)
    assert best is not None
    assert best.label == "int4"
    said = explanation(comparison)
    assert "training loss: at the end of each run, smoothed over its last steps" in said
    assert "to 3.50: time to the lowest loss that every run reached" in said
    assert "int4 was as good as dense after 2.00 s instead of 6.00 s: 3.0 times sooner." in said


def test_dense_may_win() -> None:
    comparison = compare([made("dense", [5.0, 3.0], 1.0, 1000), made("adatopk 100", [5.0, 4.5, 4.0], 1.0, 20)])
    assert comparison.common == 4.0
    assert "dense was the first at its own loss: no other setting was worth its error here." in explanation(comparison)


def test_runs_that_were_cut_off_decide_nothing() -> None:
    cut = replace(made("dense", [5.0, 3.0], 1.0, 1000), result=RunResult(status="stopped", steps=2, seconds=2.0))
    text = explanation(compare([cut, made("int4", [5.0, 4.5], 1.0, 20)]))
    assert "The time of dense was up before the last step: runs this short show no order of the codecs." in text
    assert "worth its error" not in text


def test_a_run_that_loses_a_worker_is_not_stopped_before_its_least_steps() -> None:
    asked: list[str] = []
    client: Any = SimpleNamespace(stop=asked.append)
    guard = demo.TimeLimit(client, "run-1", 1.0, lambda: None, range(3, 9))
    for record in made("int4", [5.0, 4.0, 3.0, 2.0], 2.0, 1000).steps:
        guard.on_step(record)
        assert asked == (["run-1"] if record.step >= 2 else [])


def test_a_run_that_has_made_its_last_step_is_not_stopped() -> None:
    asked: list[str] = []
    client: Any = SimpleNamespace(stop=asked.append)
    guard = demo.TimeLimit(client, "run-1", 3.0, lambda: None, range(1, 2))
    for record in made("int4", [5.0, 4.0], 2.0, 1000).steps:
        guard.on_step(record)
    assert (asked, guard.reached) == ([], False)


def test_a_finished_run_writes_rather_than_a_longer_one_that_was_stopped() -> None:
    runs = [
        replace(made("dense", [5.0, 4.0], 1.0, 1000), result=RunResult(status="finished", steps=2, seconds=2.0)),
        replace(made("adatopk", [5.0, 4.0, 3.0], 1.0, 20), result=RunResult(status="stopped", steps=3, seconds=3.0)),
    ]
    said = last_lines(compare(runs), runs, Path("report.html"), [Path("runs/dense"), Path("runs/adatopk")])
    assert "farflung generate runs/dense --prompt" in said


def test_without_a_common_loss_nothing_is_claimed() -> None:
    comparison = compare([made("dense", [5.0, 3.0], 1.0, 1000), made("int4", [math.nan], 1.0, 20)])
    assert comparison.common is None
    assert "nothing to compare" in explanation(comparison)
    assert results_table(comparison).splitlines()[-1].split()[-2:] == ["-", "-"]


def test_a_run_without_a_step_is_left_out() -> None:
    comparison = compare([made("dense", [5.0, 3.0], 1.0, 1000), made("int4", [], 1.0, 20)])
    assert comparison.common is None
    assert [one.label for one in comparison.outcomes] == ["dense"]
    assert best_of(compare([made("dense", [], 1.0, 1000)])) is None


def test_the_table_is_aligned() -> None:
    comparison = compare([made("dense", [5.0, 3.0], 1.0, 1000), made("adatopk 100", [5.0, 4.0], 0.1, 20)])
    lines = results_table(comparison).splitlines()
    assert len({len(line) for line in lines}) == 1
    assert lines[0].startswith("run          ")
    assert lines[0].split()[-4:] == ["to", "4.00", "to", "3.00"]
    dense = ["dense", "2", "1.00", "s", "500", "ms", "1", "kB", "1.5", "kB", "3.000", "-", "2.00", "s", "2.00", "s"]
    assert lines[2].split() == dense


@pytest.mark.parametrize("quick", [True, False])
def test_the_jobs_differ_in_codec_length_text_and_workers_only(quick: bool) -> None:
    jobs = [demo_job(run, quick=quick) for run in demo_runs(quick=quick, steps=None)]
    for job in jobs:
        check_job(job)
    fixed = {"codec", "steps", "name", "generate", "schedule", "workers"}
    first, *others = [job.model_dump(exclude=fixed) for job in jobs]
    assert all(other == first for other in others)
    assert [job.codec.name for job in jobs][:2] == ["identity", "adatopk"]
    assert jobs[1].codec.ratio == 100
    assert [job.codec.where for job in jobs][1:] == ["slow", "slow"]
    assert sum(job.generate.tokens > 0 for job in jobs) == 1
    assert [job.workers for job in jobs] == [4, 4, None], "the run that loses a worker waits for no other"


def test_few_steps_make_a_valid_job() -> None:
    for run in demo_runs(quick=False, steps=1):
        assert run.steps == 1
        check_job(demo_job(run, quick=False))


def test_the_demo_stays_under_three_minutes() -> None:
    assert sum(run.seconds for run in demo_runs(quick=False, steps=None)) + demo.RESERVED_SECONDS < demo.WHOLE_SECONDS < 180


def test_one_run_loses_a_worker_in_its_middle() -> None:
    runs = demo_runs(quick=False, steps=None)
    assert [run.victim for run in runs] == ["", "", VICTIM]
    assert VICTIM in Topology.preset(PRESET).names
    assert 0.5 <= runs[-1].death / runs[-1].steps <= 0.75
    assert demo_runs(quick=False, steps=1)[-1].death == 1


def test_what_a_death_cost_is_told() -> None:
    run = made("int4", [5.0, 4.0, 3.5, 3.0], 2.0, 1000)
    assert recovery_lines(run) == ""
    recovery = RecoveryRecord(
        step=2, attempt=2, replayed=1, pause=1.5, elapsed=5.0, cause="gone", devices=("east-0",), source="copies"
    )
    lines = recovery_lines(replace(run, recoveries=(recovery,))).splitlines()
    assert lines == [
        (
            "training continued after 1.50 s with 1 worker (east-0), from the copy of its stage on another worker; "
            "1 step had to be repeated"
        ),
        "before: step 1 to 2, 2.00 s per step (predicted 1.00 s), loss 4.00 at the end",
        "after:  step 4 to 4, 2.00 s per step (predicted 1.00 s), loss 3.00 at the end",
    ]
    whole = replace(run, recoveries=(replace(recovery, replayed=0),))
    assert "no step had to be repeated" in recovery_lines(whole)
    runs = [made("dense", [5.0, 4.0, 3.0], 2.0, 1000), whole]
    said = last_lines(compare(runs), runs, Path("report.html"), [Path("runs/run-0"), Path("runs/run-1")])
    for line in (
        "2 worker processes trained the same model 2 times over a slow link",
        "One worker was killed. The run continued without it after 1.50 s; no step had to be repeated.",
        "open report.html in a browser",
        "farflung generate runs/run-1 --prompt 'import '",
    ):
        assert line in said


def test_the_comparison_is_json() -> None:
    recovery = RecoveryRecord(step=2, attempt=2, replayed=1, pause=1.5, elapsed=5.0, cause="gone", devices=("east-0",))
    result = RunResult(status="finished", steps=4, seconds=8.0, sample="def f")
    whole = replace(made("int4", [5.0, 4.0, 3.5, 2.0], 0.5, 100), recoveries=(recovery,), result=result)
    runs = [made("dense", [5.0, 4.0, 3.0], 2.0, 1000), whole, made("adatopk 100", [math.nan], 1.0, 20), made("none", [], 1.0, 1)]
    found = json.loads(json.dumps(demo_facts(compare(runs[:2]), runs[:2], [Path("a"), Path("b")]), allow_nan=False))
    assert (found["common_loss"], found["base_loss"], found["first"]) == (3.0, 3.0, "int4")
    dense, int4 = found["runs"]
    assert (dense["label"], dense["folder"], dense["status"], dense["bytes_slow"], dense["matched"]) == (
        "dense",
        "a",
        None,
        1000,
        6,
    )
    assert (int4["status"], int4["text"], int4["step_seconds"], int4["loss"]) == ("finished", "def f", 0.5, 2.0)
    assert (int4["recoveries"][0]["pause"], int4["recoveries"][0]["devices"]) == (1.5, ["east-0"])
    found = json.loads(json.dumps(demo_facts(compare(runs), runs, [Path("a")] * 4), allow_nan=False))
    assert (found["common_loss"], found["first"]) == (None, "int4")
    assert found["runs"][2]["loss"] is None, "JSON has no word for what is no number"
    assert "steps" not in found["runs"][3]


def test_slow_machines_share_what_is_left() -> None:
    runs = demo_runs(quick=False, steps=None)
    assert share_of_time(runs, 1000) == runs[0].seconds
    total = sum(run.seconds for run in runs)
    assert share_of_time(runs, total / 2) == pytest.approx(runs[0].seconds / 2)
    assert share_of_time(runs, -5) == 0


def test_the_run_that_writes_text_ends_in_time_by_itself() -> None:
    runs = demo_runs(quick=False, steps=None)
    text = runs[-1]
    assert text.within(100.0, [2.0, 1.0]).steps == 80, "as much computing as the run before"
    assert text.within(100.0, [12.0, 1.0]).steps == 40, "a sixth of the first's time on the link"
    assert text.within(1.0, [1.0]).steps == 8, "enough for the loss of a worker and the recovery"
    assert text.within(1.0, [1.0]).death == 4
    assert replace(text, steps=3).within(1.0, [1.0]).steps == 3
    assert text.within(100.0, [0.01]) == text
    assert text.within(100.0, []) == text
    assert runs[0].within(1.0, [1.0]) == runs[0], "a run without text may be stopped"
