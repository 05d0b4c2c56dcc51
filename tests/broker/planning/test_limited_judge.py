"""A planner on a thread of the broker ends when nobody waits for its plan, and computes few predictions at once."""

import threading

import pytest

from farflung.broker.planning import LimitedJudges, plan_run
from farflung.cluster import Topology
from farflung.errors import Stopped, TrainingError
from farflung.job.spec import JobSpec, PlanSpec
from farflung.messages.submission import Bundle
from farflung.plan import Estimate, Plan, estimate
from tests.support.plans.chains import chain

TOPOLOGY = Topology.preset("homogeneous-3")
PLANNERS = ["auto", "equal_compute", "op_fence", "dtfm"]


class Counting:
    """A judge that counts its predictions, and the most at once."""

    def __init__(self) -> None:
        self.calls = self.now = self.most = 0
        self.lock = threading.Lock()

    def __call__(self, graph, topology, job):
        def predict(plan: Plan) -> Estimate:
            with self.lock:
                self.calls, self.now = self.calls + 1, self.now + 1
                self.most = max(self.most, self.now)
            found = estimate(graph, plan, topology, job)
            with self.lock:
                self.now -= 1
            return found

        return predict


def bundle_of(planner: str) -> Bundle:
    job = JobSpec(micro_batch_sizes=(32,) * 4, plan=PlanSpec(planner=planner))
    return Bundle(run="r", job=job, graphs={32: chain([64] * 6)})


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_planner_ends_when_nobody_waits_for_its_plan(planner: str) -> None:
    counting = Counting()
    with pytest.raises(Stopped):
        plan_run(bundle_of(planner), TOPOLOGY, LimitedJudges(counting).until(lambda: False))
    assert counting.calls == 0, "a planner must not take the end for a plan that does not fit"


def test_a_search_ends_at_the_next_prediction() -> None:
    counting = Counting()
    with pytest.raises(Stopped):
        plan_run(bundle_of("auto"), TOPOLOGY, LimitedJudges(counting).until(lambda: counting.calls < 3))
    assert counting.calls == 3


@pytest.mark.parametrize("planner", PLANNERS)
def test_a_planner_ends_at_its_deadline(planner: str) -> None:
    with pytest.raises(TrainingError, match="took more than 0 seconds: use fewer and larger micro-batches"):
        plan_run(bundle_of(planner), TOPOLOGY, LimitedJudges(Counting(), seconds=0.0).until(lambda: True))


def test_plans_are_those_without_limits() -> None:
    bundle = bundle_of("auto")
    limited = plan_run(bundle, TOPOLOGY, LimitedJudges().until(lambda: True))
    assert limited.plan_json == plan_run(bundle, TOPOLOGY).plan_json


def test_few_predictions_run_at_once() -> None:
    counting = Counting()
    judges = LimitedJudges(counting)
    bundle = bundle_of("auto")
    threads = [threading.Thread(target=plan_run, args=(bundle, TOPOLOGY, judges.until(lambda: True))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counting.calls > 6
    assert counting.most <= 2
