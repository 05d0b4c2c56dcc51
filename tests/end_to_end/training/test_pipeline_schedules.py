"""The schedules that a job can name, on workers over TLS: the weights are those of a plain loop."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import torch

import farflung
from farflung.job.spec import OptimizerSpec, PlanSpec
from farflung.plan.model import Plan
from farflung.telemetry import SpanKind, injecting, read_traces
from farflung.testing.reference import PlainSettings, plain_loop
from tests.support.runs.loopback import Finished, Loopback, cut_off, plainly, same, states_of, text_job
from tests.support.runs.small_training import batch, plain_net

MODEL = {"recipe": "gpt", "args": {"sequence": 16, "layers": 4, "width": 16, "heads": 2, "dropout": 0.1}}


def ran(cluster: Loopback, schedule: str, **changes: Any) -> Finished:
    plan = {"planner": "equal_compute", "schedule": schedule, **changes.get("plan", {})}
    job = text_job(steps=2, micro_batch_sizes=[2, 3, 2, 1], model=MODEL, **{**changes, "plan": plan})
    finished = cluster.run(job)
    assert finished.result.status == "finished", finished.result.cause
    return finished


def plan_of(finished: Finished) -> Plan:
    return Plan.from_json((finished.folder / "plan.json").read_text())


def computed(finished: Finished) -> Counter[str]:
    """How often each kind of action was computed."""
    traces = read_traces(finished.folder / "events")
    return Counter(span.name for trace in traces for span in trace.spans if span.what is SpanKind.COMPUTE)


@pytest.mark.parametrize("schedule", ["gpipe", "1f1b", "interleaved-2", "zb-h1"])
def test_any_schedule_gives_the_weights_of_a_plain_loop(three: Loopback, schedule: str) -> None:
    finished = ran(three, schedule)
    assert plan_of(finished).schedule == schedule
    _, truth = plainly(text_job(steps=2, micro_batch_sizes=[2, 3, 2, 1], model=MODEL), three.home)
    assert same(truth.states, states_of(finished)) == []


def test_zb_h1_makes_gradients_of_parameters_apart(three: Loopback) -> None:
    counts = computed(ran(three, "zb-h1"))
    assert counts["W"] == counts["B"] == counts["F"] == 2 * 4 * 3
    assert computed(ran(three, "zb-h1", plan={"recompute": "always"}))["W"] == 0, "a stage that recomputes makes all at once"


def test_interleaving_gives_each_worker_several_stages(three: Loopback) -> None:
    plan = plan_of(ran(three, "interleaved-2"))
    assert [stage.device for stage in plan.stages] == ["a", "b", "c"] * 2


@pytest.mark.parametrize("schedule", ["interleaved-2", "zb-h1"])
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param({"plan": {"replicas": 3}}, id="replicas", marks=pytest.mark.slow),
        pytest.param(
            {"plan": {"replicas": 3}, "sync": {"strategy": "dreamddp", "settings": {"sync_every": 2}}}, id="a sync strategy"
        ),
        pytest.param({"plan": {"recompute": "always"}}, id="recomputation"),
        pytest.param({"precision": "bf16"}, id="bf16", marks=pytest.mark.slow),
    ],
)
def test_beside_other_settings(three: Loopback, schedule: str, changes: dict[str, Any]) -> None:
    plain, other = (ran(three, name, **changes) for name in ("1f1b", schedule))
    assert same(states_of(plain), states_of(other)) == []


@pytest.mark.parametrize("schedule", [pytest.param("interleaved-2", marks=pytest.mark.slow), "zb-h1"])
def test_replicas_of_several_stages(schedule: str) -> None:
    """Two pipelines of two stages equal a plain loop."""
    plan = PlanSpec(planner="equal_compute", schedule=schedule, replicas=2)
    torch.manual_seed(0)
    module = plain_net()
    result = farflung.train(module, batch, steps=3, micro_batches=4, lr=1e-2, workers=4, seed=3, planner=plan)
    assert result.plan.schedule == schedule
    assert len(result.plan.stages) == (4 if schedule == "interleaved-2" else 2)
    truth = plain_loop(module, batch, steps=3, micro_batches=4, settings=PlainSettings(optimizer=OptimizerSpec(lr=1e-2), seed=3))
    assert result.losses == truth.losses
    found = result.state_dict()
    assert same(truth.states, {name: found[name] for name in truth.states}) == []


@pytest.mark.parametrize("schedule", ["interleaved-2", "zb-h1"])
def test_the_loss_of_a_worker_changes_nothing(home: Path, tmp_path: Path, schedule: str) -> None:
    """The worker is lost between the two parts of a backward, or in its second stage."""
    done: list[str] = []

    def inject(name: str, facts: Mapping[str, int | str]) -> None:
        if (name, facts.get("step"), facts.get("device")) == ("worker.before_backward", 1, "b"):
            done.append(name)
            if len(done) == 4:
                cut_off(cluster.workers.pop("b"))

    plan = {"planner": "equal_compute", "schedule": schedule}
    job = text_job(steps=3, micro_batch_sizes=[2, 3, 2, 1], model=MODEL, plan=plan, copies=0)
    with Loopback(home, 3, folder=str(tmp_path)) as cluster, injecting(inject):
        finished = cluster.run(job, anybody=True)
    assert finished.result.status == "finished", finished.result.cause
    assert len(done) >= 4
    assert "b" not in plan_of(finished).devices
    assert plan_of(finished).schedule == schedule
    _, truth = plainly(job, home)
    assert same(truth.states, states_of(finished)) == []
