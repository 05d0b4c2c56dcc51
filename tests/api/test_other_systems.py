"""What the cost models of other systems take from a job: layers, heads and bytes of its transformer."""

from __future__ import annotations

from farflung.api.other_systems import other_systems, transformer_work
from farflung.api.planning import judge
from farflung.api.why import Case, reasons
from farflung.clock import VirtualClock
from farflung.cluster import Topology
from farflung.frontends.recipes import load_recipe
from farflung.job.spec import JobSpec, OptimizerSpec
from farflung.planners import get_planner
from tests.support.chains import chain

TOPOLOGY = Topology.preset("local4-two-regions")


def test_a_transformer_has_the_steps_of_both_systems() -> None:
    graph = load_recipe("gpt", {"vocab": 61, "sequence": 16, "layers": 3, "width": 32, "heads": 2}).graph("train", 4)
    job = JobSpec(micro_batch_sizes=(4, 4, 2, 2), optimizer=OptimizerSpec(name="adamw"))
    work = transformer_work(graph, TOPOLOGY, job)
    assert work is not None
    assert (work.layers, work.heads, work.micro_batches) == (3, 2, 4)
    assert work.activations == 4 * 16 * 32 * 4 * 0.75, "the mean micro-batch has three of four samples"
    assert work.states >= 4 * work.parameters
    found = other_systems(graph, TOPOLOGY, job)
    assert {one.name for one in found} == {"Megatron-LM", "ZeRO-3"}
    assert found[0].seconds <= found[1].seconds


def test_other_models_have_none() -> None:
    assert other_systems(chain([8, 8]), TOPOLOGY, JobSpec(micro_batch_sizes=(32,))) == ()


def test_an_explained_plan_shows_them() -> None:
    graph = load_recipe("gpt", {"vocab": 61, "sequence": 16, "layers": 3, "width": 32, "heads": 2}).graph("train", 4)
    job = JobSpec(micro_batch_sizes=(4, 4))
    plan = get_planner("equal_number").plan(graph, TOPOLOGY, job=job)
    case = Case(
        graph=graph,
        topology=TOPOLOGY,
        job=job,
        plan=plan,
        estimate=judge(graph, TOPOLOGY, job)(plan),
        replan=lambda topology: get_planner("equal_number").plan(graph, topology, job=job),
    )
    found = reasons(case, clock=VirtualClock(), changes=False)
    assert found.systems == ()
    found = reasons(case)
    assert len(found.systems) == 2
    assert "other systems on all devices, by cost models that favor them: " in found.text
    assert f"{found.systems[0].name} " in found.text
    assert found.to_dict()["systems"][0]["seconds"] == found.systems[0].seconds
