"""What the cost models of other systems take from a job: layers, heads and bytes of its transformer."""

from __future__ import annotations

from farflung.cluster import Topology
from farflung.frontends.recipes import load_recipe
from farflung.job.spec import JobSpec, OptimizerSpec
from farflung.plan.estimation.other_systems import other_systems, transformer_work
from tests.support.plans.chains import chain

TOPOLOGY = Topology.preset("local4-two-regions")


def test_a_transformer_has_the_steps_of_three_systems() -> None:
    graph = load_recipe("gpt", {"vocab": 61, "sequence": 16, "layers": 3, "width": 32, "heads": 2}).graph("train", 4)
    job = JobSpec(micro_batch_sizes=(4, 4, 2, 2), optimizer=OptimizerSpec(name="adamw"))
    work = transformer_work(graph, TOPOLOGY, job)
    assert work is not None
    assert (work.layers, work.heads, work.micro_batches) == (3, 2, 4)
    assert work.activations == 4 * 16 * 32 * 4 * 0.75, "the mean micro-batch has three of four samples"
    assert work.states >= 4 * work.parameters
    found = other_systems(graph, TOPOLOGY, job)
    assert {one.name for one in found} == {"Megatron-LM", "DeepSpeed, pipelines", "ZeRO-3"}
    assert found[0].seconds <= found[1].seconds <= found[2].seconds


def test_other_models_have_none() -> None:
    assert other_systems(chain([8, 8]), TOPOLOGY, JobSpec(micro_batch_sizes=(32,))) == ()
