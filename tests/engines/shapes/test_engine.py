"""The shape-only engine hands out what other engines do, by name, shape and element type."""

from __future__ import annotations

import numpy as np
import psutil
import pytest

from benchmarks.harness.inprocess import PlannedRun, run_planned
from farflung.cluster import Topology
from farflung.engines import EngineSettings, MicroBatch, get_engine
from farflung.engines.probe import check_probe, probe_engine
from farflung.errors import GraphError, InputError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.job.spec import CheckpointSpec, JobSpec, OptimizerSpec
from farflung.planners import get_planner
from tests.support.engines.engine_comparison import Trained
from tests.support.engines.engine_drive import Array, make, module_states

SHAPES, TORCH = get_engine("shapes"), get_engine("torch")


def chain(width: int, layers: int = 4) -> Graph:
    builder = GraphBuilder("chain")
    value = builder.input("x", "float32", (2, width))
    for number in range(layers):
        value = builder.add(f"fc{number}", "Linear", value, in_features=width, out_features=width)
    builder.add("loss", "CrossEntropyLoss", value, builder.label("y", "int64", (2,)))
    return builder.build()


def batch(width: int) -> dict[str, Array]:
    return {"x": np.ones((2, width), np.float32), "y": np.zeros(2, np.int64)}


@pytest.mark.parametrize("name", ["gpt2", "moe", "user_cnn"])
def test_a_step_has_the_values_and_gradients_of_another_engine(name: str) -> None:
    settings = EngineSettings(seed=3, optimizer=OptimizerSpec(name="adamw"))
    found, expected = Trained(name, SHAPES, 3, settings), Trained(name, TORCH, 3, settings)
    assert [np.shape(loss) for loss in found.losses] == [np.shape(loss) for loss in expected.losses]
    described = [{key: (array.shape, array.dtype) for key, array in one.gradients.items()} for one in (found, expected)]
    assert described[0] == described[1]
    assert not any(array.any() for array in found.gradients.values())
    assert found.update().keys() == expected.update().keys() <= module_states(make(name)[0]).keys()


def test_a_planned_run_goes_through_all_of_its_steps() -> None:
    graph = chain(8)
    job = JobSpec(steps=3, micro_batch_sizes=(2,) * 4, workers=3, checkpoint=CheckpointSpec(at_end=False))
    plan = get_planner("equal_compute").plan(graph, Topology.preset("homogeneous-2"), job=job)
    states = SHAPES.initial_states(graph, 0, [state.name for state in graph.states])
    given = PlannedRun(graph=graph, plan=plan, job=job, states=states, batches=lambda step, index: batch(8), rows=2)
    assert run_planned(given, engine=SHAPES).losses == (0.0, 0.0, 0.0)


def test_large_parameters_take_no_memory() -> None:
    graph = chain(16384, layers=2)  # 2 GiB, and as much of gradients
    (piece,) = cut(graph, [(0, len(graph.ops))])
    before = psutil.Process().memory_info().rss
    runner = SHAPES.open(piece, EngineSettings())
    runner.initialize(list(piece.states))
    runner.forward(MicroBatch(0, 0), {}, batch(16384))
    runner.backward(MicroBatch(0, 0), {}, 1.0)
    runner.close_part(last=True)
    runner.finish_gradients({})
    assert runner.gradient_views(["fc0.weight"])["fc0.weight"].shape == (16384, 16384)
    runner.update([0.1], None)
    assert runner.gradient_views(["fc0.weight"]) == {}
    assert psutil.Process().memory_info().rss - before < 200e6


def test_inputs_are_checked() -> None:
    (piece,) = cut(chain(8), [(0, len(chain(8).ops))])
    runner = SHAPES.open(piece, EngineSettings())
    with pytest.raises(GraphError, match=r"state 'fc0.weight' has no value yet"):
        runner.forward(MicroBatch(0, 0), {}, batch(8))
    runner.initialize(list(piece.states))
    with pytest.raises(GraphError, match=r"input 'x' is declared float32\[2, 8\] but the given array is float32\[2, 9\]"):
        runner.forward(MicroBatch(0, 0), {}, batch(9))
    with pytest.raises(GraphError, match="input 'y' of stage 0 is missing"):
        runner.forward(MicroBatch(0, 0), {}, {"x": batch(8)["x"]})
    with pytest.raises(GraphError, match=r"stage 0 has no forward of MicroBatch\(step=0, index=0\) to go back from"):
        runner.backward(MicroBatch(0, 0), {}, 1.0)
    with pytest.raises(InputError, match="unknown precision 'bf16': the shape-only engine knows float32"):
        SHAPES.open(piece, EngineSettings(precision="bf16"))


def test_a_broker_refuses_a_worker_that_computes_nothing() -> None:
    with pytest.raises(InputError, match="worker 'idle' is refused: the gradients that its engine"):
        check_probe(probe_engine(SHAPES, "cpu"), "idle", SHAPES.version(), "cpu")
