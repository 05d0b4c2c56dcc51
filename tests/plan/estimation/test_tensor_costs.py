"""What a stage costs on a site whose ranks compute each micro-batch together."""

from __future__ import annotations

from dataclasses import replace

import pytest

from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.graph.ir import Graph, ValueRef
from farflung.job.spec import JobSpec, OptimizerSpec
from farflung.plan import Estimate, Plan, estimate
from farflung.plan.estimation.cost_tables import CostTables
from farflung.plan.estimation.tensor_costs import tensor_costs
from farflung.plan.model import Shard, Stage
from farflung.plan.report.estimate_tables import saving_lines
from farflung.units import BytesPerSecond, Seconds
from tests.support.plans.hand_plans import topology

ROWS, WIDTH, LAYERS = 8, 64, 4
RATE, LATENCY = 1e9, 1e-4


def graph() -> Graph:
    """Pairs of products with an activation between them, and a norm before each pair."""
    builder = GraphBuilder("mlp")
    value = builder.input("x", "float32", (ROWS, WIDTH))
    for i in range(LAYERS):
        value = builder.add(f"norm{i}", "LayerNorm", value, normalized_shape=[WIDTH])
        value = builder.add(f"up{i}", "Linear", value, in_features=WIDTH, out_features=4 * WIDTH)
        value = builder.add(f"act{i}", "ReLU", value)
        value = builder.add(f"down{i}", "Linear", value, in_features=4 * WIDTH, out_features=WIDTH)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (ROWS, WIDTH)))
    return builder.build()


GRAPH = graph()
PARAMETERS = 4.0 * sum(state.spec.numel for state in GRAPH.parameters)
#: Norms, and the biases that are added after a sum.
WHOLE = 4.0 * LAYERS * 3 * WIDTH


def found(shard: Shard, ranks: int = 2, *, measured: bool = True, recompute: bool = False, graph: Graph = GRAPH) -> Estimate:
    stage = Stage(index=0, start=0, stop=len(graph.ops), device="d0", shard=shard, recompute=recompute)
    plan = Plan(graph_hash=graph.hash, planner="by hand", stages=(stage,), micro_batch_sizes=(ROWS, ROWS))
    links = {"rank_rate": BytesPerSecond(RATE), "rank_latency": Seconds(LATENCY)} if measured else {}
    network = topology(count=1)
    network = network.with_devices([replace(network.devices[0], ranks=ranks, **links)])
    return estimate(graph, plan, network, JobSpec(micro_batch_sizes=(ROWS, ROWS), optimizer=OptimizerSpec(name="adamw")))


def test_divided_parameters_are_there_once_and_the_others_on_each_rank() -> None:
    memory, alone = found("tensor").stages[0].memory, found("tensor", 1).stages[0].memory
    assert alone["parameters"] == PARAMETERS
    assert memory["parameters"] == pytest.approx(PARAMETERS + WHOLE)
    assert memory["gradients"] == pytest.approx(PARAMETERS + WHOLE)
    assert memory["optimizer"] == pytest.approx(alone["optimizer"], rel=0.01), "one rank updates what all have"
    assert alone["activations"] < memory["activations"] < 2 * alone["activations"]
    assert found("tensor").stages[0].memory_bytes < 0.7 * found("none").stages[0].memory_bytes


def test_sums_take_two_exchanges_each() -> None:
    with_sums, without = found("tensor").stages[0], found("tensor", measured=False).stages[0]
    one = 2 * (LATENCY + 4.0 * ROWS * WIDTH / RATE)
    assert with_sums.forward_seconds - without.forward_seconds == pytest.approx(LAYERS * one)
    assert with_sums.backward_seconds - without.backward_seconds == pytest.approx(LAYERS * one)
    assert with_sums.update_seconds - without.update_seconds == pytest.approx(LATENCY + WHOLE / RATE)
    again = found("tensor", recompute=True).stages[0].backward_seconds
    assert again - found("tensor", measured=False, recompute=True).stages[0].backward_seconds == pytest.approx(2 * LAYERS * one)


def test_a_micro_batch_takes_as_long_as_the_part_of_one_rank() -> None:
    """The site's speed is that of both ranks together."""
    whole, parts = found("none", 1).stages[0], found("tensor", measured=False).stages[0]
    assert whole.forward_seconds < parts.forward_seconds < 1.5 * whole.forward_seconds
    assert parts.forward_flops == whole.forward_flops
    (piece,) = cut(GRAPH, [(0, len(GRAPH.ops))])
    tables = CostTables.of(GRAPH)
    costs = tensor_costs(tables, piece, 2)
    assert costs is tensor_costs(tables, piece, 2)
    local, all_ = costs.tables.sums("cpu", costs.sub), tables.sums("cpu", piece)
    assert 0.5 * all_.forward < local.forward < 0.6 * all_.forward


def test_the_plan_says_that_results_differ_by_rounding() -> None:
    share = f"{1 - WHOLE / PARAMETERS:.0%} of parameters divided"
    assert saving_lines(found("tensor")) == [
        ("sites", f"ranks compute each micro-batch together: results differ by rounding ({share})")
    ]
    assert saving_lines(found("tensor", 1)) == []


WORDS, TOKENS = 1001, ROWS


def language_model() -> Graph:
    """An embedding, a norm and a head with its loss."""
    builder = GraphBuilder("words")
    value = builder.input("x", "int64", (TOKENS,))
    value = builder.add("table", "Embedding", value, num_embeddings=WORDS, embedding_dim=WIDTH)
    value = builder.add("norm", "LayerNorm", value, normalized_shape=[WIDTH])
    value = builder.add("head", "Linear", value, in_features=WIDTH, out_features=WORDS)
    builder.add("loss", "CrossEntropyLoss", value, builder.label("y", "int64", (TOKENS,)))
    return builder.build()


def test_a_vocabulary_and_its_logits_are_there_once() -> None:
    """Ranks add what they looked up. For the loss they exchange three numbers for each token."""
    graph = language_model()
    tables, (piece,) = CostTables.of(graph), cut(graph, [(0, len(graph.ops))])
    costs = tensor_costs(tables, piece, 2)
    tokens = 4.0 * TOKENS
    assert sorted(costs.ahead) == [tokens, 2 * tokens, tokens * WIDTH]
    assert costs.back == (tokens * WIDTH,)
    assert costs.shared == 4.0 * 2 * WIDTH, "the norm"
    assert costs.divided > 0.99
    half = -(-WORDS // 2)
    assert costs.sub.graph.spec(ValueRef("head")).shape == (TOKENS, half)
    alone, both = (found("tensor", ranks, graph=graph).stages[0].memory for ranks in (1, 2))
    assert both["parameters"] == 2 * 4.0 * (half * (2 * WIDTH + 1) + 2 * WIDTH)
    assert both["optimizer"] < 1.02 * alone["optimizer"]
    assert both["activations"] < alone["activations"] + tokens * (2 * half - WORDS) + 3 * tokens * WIDTH, "logits are there once"
