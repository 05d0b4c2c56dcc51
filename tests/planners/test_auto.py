"""``auto``: never worse than the others under any judge, repeatable, within memory and its constraints."""

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from farflung.api.planning import judge
from farflung.clock import VirtualClock
from farflung.errors import InputError, PlanError
from farflung.job.spec import JobSpec, PlanSpec
from farflung.plan import Plan, check_plan, estimate
from farflung.planners import Judged, get_planner, planner_names
from farflung.planners.auto import Auto, AutoSettings
from tests.support.plans.chains import chain, network

GRAPH = chain((32, 64, 16, 128, 32, 64, 16))
JOB = JobSpec(micro_batch_sizes=(8, 8, 8, 4))
SMALL = AutoSettings(evaluations=20)


@settings(deadline=None, max_examples=8)
@given(seed=st.integers(0, 10**6), count=st.integers(1, 5), memory=st.sampled_from([1e9, 3e5]), simulated=st.booleans())
def test_it_is_never_worse_than_the_others_and_keeps_the_memory(seed, count, memory, simulated):
    topology, job = network(seed, count, memory), JOB.model_copy(update={"seed": seed})
    evaluate = judge(GRAPH, topology, job) if simulated else lambda plan: estimate(GRAPH, plan, topology, job)
    others = []
    for name in planner_names():
        try:
            if name != "auto":
                others.append(get_planner(name).plan(GRAPH, topology, job=job))
        except PlanError:
            continue
    auto = Auto(SMALL, evaluate)
    if not others:
        return
    plan = auto.plan(GRAPH, topology, job=job)
    check_plan(plan, GRAPH, topology, job)
    assert plan.stages[0].start == 0
    assert sum(s.stop - s.start for s in plan.stages) == len(GRAPH.ops)
    found = evaluate(plan)
    assert found.feasible
    assert found.step_seconds <= min(evaluate(other).step_seconds for other in others)
    assert found.step_seconds == min(trial.seconds for trial in auto.trials)
    assert len(auto.trials) <= len(others) + SMALL.evaluations
    assert Plan.from_json(plan.to_json()) == plan
    assert Auto(SMALL, evaluate).plan(GRAPH, topology, job=job) == plan


@pytest.mark.parametrize(("seed", "gain"), [(1, 1.03), (6, 1.05), (7, 1.05)])
def test_it_finds_better_plans_than_all_others(seed, gain):
    """Where computing counts and links are fast there is more to find than orders and cuts under one schedule."""
    one = PlanSpec(schedule="1f1b")
    graph, job = chain((64,) * 17, rows=64), JobSpec(micro_batch_sizes=(64,) * 8, plan=one)
    topology = network(seed, 6)
    topology = replace(topology, beta=np.minimum(np.array(topology.beta) * 30, 1e9))
    auto = Auto(AutoSettings(evaluations=100), judge(graph, topology, job))
    auto.plan(graph, topology, job=job)
    first = min(trial.seconds for trial in auto.trials if trial.planner != "auto")
    assert first / min(trial.seconds for trial in auto.trials) > gain


def test_constraints_are_kept():
    topology = network(1, 4)
    plan = Auto(replace(SMALL, exclude=frozenset({"d0", "r1"}))).plan(GRAPH, topology, job=JOB)
    assert set(plan.devices) == {"d2"}
    assert len(Auto(replace(SMALL, stages=2)).plan(GRAPH, topology, job=JOB).stages) <= 2
    workers = JOB.model_copy(update={"workers": 2})
    assert len(Auto(SMALL).plan(GRAPH, topology, job=workers).devices) <= 2
    with pytest.raises(InputError, match="'mars' is to be excluded, but topology 'matrices' has no such device or region"):
        Auto(replace(SMALL, exclude=frozenset({"mars"}))).plan(GRAPH, topology, job=JOB)
    with pytest.raises(PlanError, match="every device is excluded; leave at least one"):
        Auto(replace(SMALL, exclude=frozenset({"r0", "r1"}))).plan(GRAPH, topology, job=JOB)
    with pytest.raises(InputError, match="0 or more evaluations and at least 1 stage, got -1 and None"):
        AutoSettings(evaluations=-1)


def test_what_cannot_fit_names_the_lack():
    with pytest.raises(PlanError, match="it lacks"):
        Auto(SMALL).plan(GRAPH, network(1, 2, memory=1e4), job=JOB)


def test_it_begins_with_the_plan_that_runs_now():
    topology = network(7, 4)
    running = Auto(AutoSettings(evaluations=60), judge(GRAPH, topology, JOB)).plan(GRAPH, topology, job=JOB)
    again = Auto(AutoSettings(evaluations=0, start=(running,)), judge(GRAPH, topology, JOB))
    assert again.plan(GRAPH, topology, job=JOB) == running
    assert again.trials[-1].planner == "start"


def test_a_budget_of_seconds_ends_the_search():
    clock = VirtualClock()
    judged = []

    def evaluate(plan):
        clock.advance(1.0)
        judged.append(plan)
        return estimate(GRAPH, plan, network(1, 5), JOB)

    Auto(AutoSettings(seconds=30.0), evaluate, clock).plan(GRAPH, network(1, 5), job=JOB)
    assert len(judged) == 30  # those of the other planners among them


def test_ratios_are_searched_only_where_they_are_given():
    topology = network(3, 4)
    codecs = set()
    for ratios in ((), (10.0, 100.0)):
        auto = Auto(AutoSettings(evaluations=60, ratios=ratios), judge(GRAPH, topology, JOB))
        auto.plan(GRAPH, topology, job=JOB)
        names = {link.activations.name for trial in auto.trials for link in trial.plan.links}
        assert ("topk" in names) == bool(ratios)
        codecs |= names
    assert codecs == {"identity", "topk"}


@pytest.mark.parametrize(("name", "asks"), [("auto", True), ("op_fence", False)])
def test_the_catalog_has_it_and_it_takes_a_judge(name, asks):
    topology, asked = network(3, 2), []

    def evaluate(plan):
        asked.append(plan)
        return estimate(GRAPH, plan, topology, JOB)

    planner = get_planner(name)
    assert isinstance(planner, Judged)
    planner.judged_by(evaluate).plan(GRAPH, topology, job=JOB.model_copy(update={"plan": PlanSpec(schedule="1f1b")}))
    assert bool(asked) is asks


def test_a_search_that_finds_nothing_better_ends_before_its_budget():
    topology = network(3, 3, 1e9)
    tried = []
    for evaluations in (16, 200):
        auto = Auto(AutoSettings(evaluations=evaluations, members=("equal_number",)))
        auto.plan(GRAPH, topology, job=JOB)
        tried.append(sum(trial.planner == "auto" for trial in auto.trials))
        best = min(range(len(auto.trials)), key=lambda i: auto.trials[i].seconds)
    assert tried[0] <= 16 < tried[1] < 200
    assert len(auto.trials) - 1 - best == 200 // 3  # so many in vain
