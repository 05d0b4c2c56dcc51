"""Ranks that compute each micro-batch together give what one process gives, to rounding, and whole arrays."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
import psutil
import pytest
import torch

from farflung.engines import ComputeDevice, EngineSettings, MicroBatch
from farflung.engines.isolated import Zygote
from farflung.engines.site import SiteAttempt, SiteEngine, SiteRunner
from farflung.errors import DataError, EngineCrashed, GraphError
from farflung.graph.builder import GraphBuilder
from farflung.graph.cut import cut
from farflung.graph.ir import Graph
from farflung.job.spec import OptimizerSpec
from farflung.testing.reference import PlainResult, PlainSettings, plain_loop
from tests.support.engines.engine_drive import Outcome, Stages, captured, equal_cuts, make, module_states, plain, run

SETTINGS = EngineSettings(optimizer=OptimizerSpec(lr=0.05, momentum=0.9), tensor=True)
CLIPPED = OptimizerSpec(name="adamw", clip_norm=0.3)


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    zygote = Zygote()
    yield zygote
    zygote.close()


@pytest.fixture
def site(zygote: Zygote) -> SiteAttempt:
    return site_of(zygote, 2)


def site_of(zygote: Zygote, ranks: int) -> SiteAttempt:
    attempt = SiteEngine(zygote, [ComputeDevice(name="cpu")] * ranks).attempt("cpu", ranks << 30)
    attempt.set_threads(torch.get_num_threads())
    return attempt


def opened(site: SiteAttempt, settings: EngineSettings = SETTINGS, share: SiteRunner | None = None) -> SiteRunner:
    graph = captured("gpt2")
    runner = site.open(cut(graph, [(0, len(graph.ops))])[0], settings, share)
    if share is None:
        runner.load(module_states(make("gpt2")[0]))
    return runner


def data_of(runner: SiteRunner, index: int) -> dict[str, np.ndarray]:
    names = dict(runner.subgraph.graph.meta)["inputs"].split(",")
    return {name: tensor.numpy() for name, tensor in zip(names, make("gpt2")[1](0, index), strict=True)}


def step(runner: SiteRunner, *, update: bool = True) -> float:
    found = runner.forward(MicroBatch(0, 0), {}, data_of(runner, 0))
    runner.backward(MicroBatch(0, 0), {}, 1.0)
    runner.close_part(last=True)
    runner.finish_gradients({})
    if update:
        runner.update([0.05], None)
    return float(found.outputs["loss"])


def assert_close(found: Outcome, truth: PlainResult) -> None:
    assert np.allclose(found.micro_losses, truth.micro_losses, rtol=1e-5)
    assert found.gradients.keys() == truth.gradients.keys()
    assert found.states.keys() == truth.states.keys()
    for name, gradient in truth.gradients.items():
        assert np.abs(found.gradients[name] - gradient).max() <= 1e-5 * max(np.abs(gradient).max(), 0.01), name


@pytest.mark.parametrize("name", ["gpt2", "llama", "bert", "albert", "moe", "mixtral"])
def test_gradients_are_those_of_one_process_to_rounding(name: str, site: SiteAttempt) -> None:
    """With dropout, also of the weights of attention: ranks draw the numbers of one process."""
    assert_close(run(name, equal_cuts(captured(name), 1), 2, SETTINGS, site), plain(name, 2, SETTINGS.optimizer))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gpt2", "llama", "mixtral"])
def test_losses_of_fifty_steps(name: str, site: SiteAttempt) -> None:
    module, batch = make(name)
    stages = Stages(captured(name), equal_cuts(captured(name), 1), replace(SETTINGS, seed=3), site)
    stages.load(module_states(module))
    losses = []
    for number in range(50):
        losses += stages.step(number, 1, batch)
        stages.update()
    settings = PlainSettings(optimizer=SETTINGS.optimizer, seed=3)
    truth = plain_loop(make(name)[0], batch, steps=50, micro_batches=1, settings=settings)
    assert losses == pytest.approx([loss for (loss,) in truth.micro_losses], abs=1e-3)


@pytest.mark.parametrize("ranks", [pytest.param(3, marks=pytest.mark.slow), 4])
def test_more_than_two_ranks(ranks: int, zygote: Zygote) -> None:
    """The vocabulary of 67 words is no multiple of the ranks, and neither are the heads."""
    found = run("llama", equal_cuts(captured("llama"), 1), 2, SETTINGS, site_of(zygote, ranks))
    assert_close(found, plain("llama", 2, SETTINGS.optimizer))


@pytest.mark.parametrize("changes", [{"recompute": True}, {"split_backward": True}, {"optimizer": CLIPPED}])
def test_stages_that_cut_layers_and_other_settings(changes: dict[str, object], site: SiteAttempt) -> None:
    settings = replace(SETTINGS, **changes)  # type: ignore[arg-type]
    assert_close(run("gpt2", equal_cuts(captured("gpt2"), 2), 2, settings, site), plain("gpt2", 2, settings.optimizer))


def test_reduced_precision(site: SiteAttempt) -> None:
    found = run("gpt2", equal_cuts(captured("gpt2"), 1), 2, replace(SETTINGS, precision="bf16"), site)
    truth = plain("gpt2", 2, SETTINGS.optimizer, "bf16")
    assert np.allclose(found.micro_losses, truth.micro_losses, rtol=2e-3)


def test_ranks_have_parts_and_states_come_and_go_whole(site: SiteAttempt) -> None:
    runner = opened(site, replace(SETTINGS, optimizer=CLIPPED))
    whole = module_states(make("gpt2")[0])
    assert all(np.array_equal(array, whole[name]) for name, array in runner.states().items())
    weight = "body.transformer.h.0.attn.c_attn.weight"
    assert [stage.runner.states([weight])[weight].shape for stage in runner.stages] == [(32, 48), (32, 48)]
    step(runner)
    states, slots = dict(runner.states()), dict(runner.optimizer_states())
    assert {key.partition("/")[2] for key in slots} == runner.subgraph.graph.trained
    assert slots[f"exp_avg/{weight}"].shape == (32, 96)
    again = opened(site, replace(SETTINGS, optimizer=CLIPPED))
    again.load(states)
    again.load_optimizer(slots)
    found = again.optimizer_states()
    assert all(np.array_equal(found[key], array) for key, array in slots.items())
    assert step(runner) == step(again)
    assert all(np.array_equal(array, again.states()[name]) for name, array in runner.states().items())


def pair(between: str, **options: object) -> Graph:
    """Two products with another operator between them."""
    builder = GraphBuilder("pair")
    value = builder.input("x", "float32", (4, 8))
    value = builder.add("up", "Linear", value, in_features=8, out_features=16)
    value = builder.add("down", "Linear", builder.add("act", between, value, **options), in_features=16, out_features=8)
    builder.add("loss", "MSELoss", value, builder.label("y", "float32", (4, 8)))
    return builder.build()


def test_evaluation_gathers_what_another_graph_cannot_divide(site: SiteAttempt) -> None:
    """A softmax needs all features, so all ranks compute both products as a whole."""
    graph, other = pair("ReLU"), pair("Softmax", dim=-1)
    numbers = np.random.default_rng(0)
    data = {name: numbers.standard_normal((4, 8), dtype=np.float32) for name in ("x", "y")}
    losses = []
    for settings in (SETTINGS, replace(SETTINGS, tensor=False)):
        runner = site.open(cut(graph, [(0, len(graph.ops))])[0], settings)
        runner.initialize([state.name for state in graph.parameters])
        evaluated = site.open(cut(other, [(0, len(other.ops))])[0], replace(settings, training=False), runner)
        losses.append(evaluated.forward(MicroBatch(0, 0), {}, data).outputs["loss"])
    assert losses[0] == losses[1]
    runner = site.open(cut(graph, [(0, len(graph.ops))])[0], SETTINGS)
    with pytest.raises(GraphError, match=r"^stage 0: operator 'up' divides its parameters in no other way"):
        site.open(cut(other, [(0, len(other.ops))])[0], SETTINGS, runner)


def test_initial_values_are_those_of_one_process(site: SiteAttempt) -> None:
    graph = pair("ReLU")
    runner = site.open(cut(graph, [(0, len(graph.ops))])[0], replace(SETTINGS, seed=5))
    names = [state.name for state in graph.parameters]
    runner.initialize(names)
    truth = site.initial_states(graph, 5, names)
    found = runner.states()
    assert [stage.runner.states(["up.weight"])["up.weight"].shape for stage in runner.stages] == [(8, 8), (8, 8)]
    assert all(np.array_equal(found[name], truth[name]) for name in names)


def test_gradients_come_and_go_whole(site: SiteAttempt) -> None:
    runner = opened(site)
    step(runner, update=False)
    before = {name: array.copy() for name, array in runner.gradients().items()}
    norms = runner.gradient_norms()
    assert norms == pytest.approx({name: float(np.linalg.norm(array)) for name, array in before.items()}, rel=1e-5)
    runner.set_gradients({name: 2 * array for name, array in before.items()})
    assert all(np.array_equal(array, 2 * before[name]) for name, array in runner.gradients().items())
    assert runner.gradient_views(["body.transformer.wte.weight"]).keys() == {"body.transformer.wte.weight"}
    runner.discard()
    assert runner.gradients() == {}
    runner.forward(MicroBatch(0, 0), {}, data_of(runner, 0))
    runner.backward(MicroBatch(0, 0), {}, 1.0)
    taken = dict(runner.take_gradients())
    runner.put_gradients(taken)
    runner.finish_gradients({})
    assert all(np.array_equal(array, before[name]) for name, array in runner.gradients().items())


def test_evaluation_uses_the_parts_of_training(site: SiteAttempt) -> None:
    runner = opened(site)
    shared = opened(site, replace(SETTINGS, training=False), runner)
    losses = []
    for _ in range(2):
        losses.append(float(shared.forward(MicroBatch(0, 0), {}, data_of(runner, 0)).outputs["loss"]))
        assert step(runner) == pytest.approx(losses[-1], rel=1e-5)
    assert losses[1] != losses[0]


@pytest.mark.parametrize("rank", [0, 1])
def test_the_death_of_a_rank_ends_the_attempt(rank: int, zygote: Zygote, site: SiteAttempt) -> None:
    runner = opened(site)
    guards = [one for one in psutil.Process(zygote.pid).children(recursive=True) if len(one.children()) == 2]
    ranks = sorted(max(guards, key=psutil.Process.create_time).children(), key=lambda one: one.pid)
    ranks[rank].kill()
    with pytest.raises(EngineCrashed, match=f"^rank {rank} of 2 died of SIGKILL"):
        step(runner)
    assert site.lost


def test_an_error_of_a_rank_is_the_error_of_the_call(site: SiteAttempt) -> None:
    runner = opened(site)
    with pytest.raises(GraphError, match=r"^input 'x' of stage 0 is missing$"):
        runner.forward(MicroBatch(0, 0), {}, {})
    assert site.lost, "the ranks may have made different calls"


def language_model(*, with_loss: bool) -> Graph:
    """An embedding and a head; the logits are a result."""
    builder = GraphBuilder("words", training=with_loss)
    value = builder.input("x", "int64", (5,))
    value = builder.add("table", "Embedding", value, num_embeddings=11, embedding_dim=4)
    value = builder.add("head", "Linear", value, in_features=4, out_features=11)
    builder.output("logits", value)
    if with_loss:
        builder.add("loss", "CrossEntropyLoss", value, builder.label("y", "int64", (5,)))
    return builder.build()


def test_logits_leave_the_site_whole(site: SiteAttempt) -> None:
    """Each rank has the logits of six words, one of which is padding on the second rank."""
    graph, evaluated = language_model(with_loss=True), language_model(with_loss=False)
    data = {"x": np.array([0, 5, 6, 10, 3]), "y": np.array([10, 0, 6, 5, 1])}
    logits = []
    for settings in (SETTINGS, replace(SETTINGS, tensor=False)):
        runner = site.open(cut(graph, [(0, len(graph.ops))])[0], replace(settings, seed=5))
        runner.initialize([state.name for state in graph.parameters])
        other = site.open(cut(evaluated, [(0, len(evaluated.ops))])[0], replace(settings, training=False), runner)
        logits.append(other.forward(MicroBatch(0, 0), {}, {"x": data["x"]}).outputs["logits"])
        if settings.tensor:
            assert runner.stages[1].runner.states(["head.weight"])["head.weight"].shape == (6, 4)
    assert logits[0].shape == (5, 11)
    assert np.allclose(logits[0], logits[1], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "text"), [("x", "indices of the table must be 0 to 10, got 11"), ("y", "labels must be 0 to 10")]
)
def test_a_word_out_of_range_is_an_error_of_the_data(name: str, text: str, site: SiteAttempt) -> None:
    graph = language_model(with_loss=True)
    runner = site.open(cut(graph, [(0, len(graph.ops))])[0], SETTINGS)
    runner.initialize([state.name for state in graph.parameters])
    data = {"x": np.zeros(5, dtype=np.int64), "y": np.zeros(5, dtype=np.int64)}
    data[name][2] = 11
    with pytest.raises(DataError, match=text):
        runner.forward(MicroBatch(0, 0), {}, data)
