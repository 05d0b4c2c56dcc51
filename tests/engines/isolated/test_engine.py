"""A process of its own computes the bits of the worker's process, and its errors and death are errors of the call."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch

from farflung.api.optimizers import with_named_optimizer
from farflung.engines import EngineSettings, MicroBatch, get_engine
from farflung.engines.base import Array, Engine
from farflung.engines.isolated import PROTECTIONS, IsolatedEngine, arena
from farflung.errors import GraphError, TrainingError
from farflung.frontends.torch.capture import capture
from farflung.job.rates import rates
from farflung.job.spec import JobSpec, OptimizerSpec
from tests.support.engines.engine_drive import Stages, assert_equal, captured, equal_cuts, make, module_states, plain, run

SETTINGS = EngineSettings(optimizer=OptimizerSpec(lr=0.05, momentum=0.9))


@pytest.mark.parametrize("name", ["gpt2", "resnet18", "user_cnn", "moe"])
def test_the_bits_are_those_of_a_plain_loop(name: str, engine: IsolatedEngine) -> None:
    attempt = engine.attempt("cpu", 1 << 30)
    attempt.set_threads(torch.get_num_threads())
    for settings in (SETTINGS, replace(SETTINGS, split_backward=True)):
        assert_equal(run(name, equal_cuts(captured(name), 3), 2, settings, attempt), plain(name, 2, SETTINGS.optimizer))


def test_reduced_precision_and_clipping(engine: IsolatedEngine) -> None:
    optimizer = OptimizerSpec(name="adamw", clip_norm=0.3)
    attempt = engine.attempt("cpu", 1 << 30)
    attempt.set_threads(torch.get_num_threads())
    settings = replace(SETTINGS, optimizer=optimizer, precision="bf16")
    found = run("gpt2", equal_cuts(captured("gpt2"), 2), 2, settings, attempt)
    assert_equal(found, plain("gpt2", 2, optimizer, "bf16"))


def test_optimizer_states_in_eight_bits_come_back(engine: IsolatedEngine) -> None:
    module, batch = make("gpt2")
    graph = captured("gpt2")
    job = with_named_optimizer(JobSpec(optimizer=OptimizerSpec(name="adamw", state="8bit")), graph)
    stages = Stages(graph, [(0, len(graph.ops))], replace(SETTINGS, optimizer=job.optimizer), engine.attempt("cpu", 1 << 30))
    stages.load(module_states(module))
    (runner,) = stages.runners
    stages.forward(MicroBatch(0, 0), stages.data(batch(0, 0)))
    stages.backward(MicroBatch(0, 0), 1.0)
    runner.finish_gradients({})
    runner.update(rates(job, 0), None)
    found = runner.optimizer_states()
    packed = [key for key in found if key.partition("/")[0].endswith(".scale")]
    assert packed
    assert all(found[key.replace(".scale", "")].dtype == np.uint8 for key in packed)
    runner.load_optimizer({})
    runner.load_optimizer(found)
    again = runner.optimizer_states()
    assert again.keys() == found.keys()
    assert [key for key, array in found.items() if not np.array_equal(again[key], array)] == []


def test_gradients_are_taken_inside_a_backward(engine: IsolatedEngine) -> None:
    def trained(used: Engine) -> tuple[list[int], dict[str, Array], dict[str, Array]]:
        module, batch = make("gpt2")
        graph = captured("gpt2")
        stages = Stages(graph, [(0, len(graph.ops))], SETTINGS, used)
        stages.load(module_states(module))
        (runner,) = stages.runners
        groups = [[name] for name in sorted(graph.trained) if "ln_" in name]
        seen, gradients = [], {}

        def ready(index: int) -> None:
            seen.append(index)
            gradients.update({name: np.array(value) for name, value in runner.gradient_views(groups[index]).items()})
            runner.update([0.05], None, groups[index])

        stages.forward(MicroBatch(0, 0), stages.data(batch(0, 0)))
        runner.watch(groups, ready)
        stages.backward(MicroBatch(0, 0), 1.0)
        return seen, gradients, {name: np.array(value) for name, value in runner.states().items()}

    attempt = engine.attempt("cpu", 1 << 30)
    attempt.set_threads(torch.get_num_threads())
    found, expected = trained(attempt), trained(get_engine("torch"))
    assert found[0] == expected[0] != []
    for there, here in zip(found[1:], expected[1:], strict=True):
        assert there.keys() == here.keys()
        assert all(np.array_equal(there[name], here[name]) for name in here)


def test_an_answer_is_read_before_its_pages_go_back(engine: IsolatedEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    """A large answer, then small ones, then a large one again: the pages of the last must not go back before it is copied."""
    monkeypatch.setattr(arena, "_WINDOW", 1)
    module, _ = make("gpt2")
    graph = captured("gpt2")
    attempt = engine.attempt("cpu", 1 << 30)
    stages = Stages(graph, [(0, len(graph.ops))], SETTINGS, attempt)
    stages.load(module_states(module))
    (runner,) = stages.runners
    expected = {name: np.array(value) for name, value in runner.states().items()}
    assert any(value.any() for value in expected.values())
    for small in range(3):
        for _ in range(small):
            attempt.set_threads(torch.get_num_threads())
        for name, value in runner.states().items():
            assert np.array_equal(value, expected[name]), name


def test_an_error_of_what_watches_ends_the_process(engine: IsolatedEngine) -> None:
    module, batch = make("gpt2")
    graph = captured("gpt2")
    attempt = engine.attempt("cpu", 1 << 30)
    stages = Stages(graph, [(0, len(graph.ops))], SETTINGS, attempt)
    stages.load(module_states(module))

    def ready(index: int) -> None:
        raise TrainingError(f"no group {index}")

    stages.forward(MicroBatch(0, 0), stages.data(batch(0, 0)))
    stages.runners[0].watch([sorted(graph.trained)[:1]], ready)
    with pytest.raises(TrainingError, match="no group 0"):
        stages.backward(MicroBatch(0, 0), 1.0)
    assert attempt.lost


def test_errors_of_the_engine_are_those_of_the_call(engine: IsolatedEngine) -> None:
    attempt = engine.attempt("cpu", 1 << 30)
    graph = captured("gpt2")
    stages = Stages(graph, equal_cuts(graph, 2), SETTINGS, attempt)
    with pytest.raises(GraphError, match="is not in this stage"):
        stages.runners[0].load({"nothing": np.zeros(1, np.float32)})
    with pytest.raises(GraphError, match="has no forward of"):
        stages.runners[1].backward(MicroBatch(5, 0), {}, 1.0)
    with pytest.raises(TrainingError, match=r"^RuntimeError: .* \(at farflung/engines/.*\.py:\d+, in .*\)$"):
        attempt.set_threads(0)
    assert set(attempt.holds) <= set(PROTECTIONS)
    assert not attempt.lost


def test_a_graph_is_checked_in_the_other_process(engine: IsolatedEngine) -> None:
    graph = capture(lambda: torch.nn.Sequential(torch.nn.Linear(4, 3), torch.nn.Softmax(1)), (torch.ones(2, 4),), mode="eval")
    engine.verify(graph)
    name = next(state.name for state in graph.states if state.init)
    found = engine.initial_states(graph, 3, [name])
    assert np.array_equal(found[name], get_engine("torch").initial_states(graph, 3, [name])[name])
    scale = engine.clip_scale([3.0, 4.0], 1.0)
    assert scale == get_engine("torch").clip_scale([3.0, 4.0], 1.0)
