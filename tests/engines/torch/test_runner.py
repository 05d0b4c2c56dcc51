"""The stage runner beyond exactness: sharing, resuming, memory, and what it refuses."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farflung.engines import EngineSettings, MicroBatch, StageRunner, get_engine
from farflung.errors import CheckpointError, DataError, GraphError, InputError
from farflung.frontends.torch.capture import capture
from farflung.graph.cut import SubGraph, cut
from farflung.graph.ir import Graph, Op, OpKind, State, StateKind, StateRef, TensorSpec, Use, ValueRef
from farflung.job.spec import GroupSpec, OptimizerSpec
from tests.support.engines.engine_drive import Stages, captured, equal_cuts, make, module_states

F32 = TensorSpec(dtype="float32", shape=(3,))
KEY = MicroBatch(0, 0)


def op(name: str, target: str, *args: Any, outputs: tuple[TensorSpec, ...] = (F32,), **more: Any) -> Op:
    return Op(name=name, kind=OpKind.NON_PARAMETRIC, target=target, args=args, outputs=outputs, **more)


def tiny(*middle: Op, loss_of: str = "h", states: tuple[State, ...] = ()) -> Graph:
    """x (3) -> ``middle`` -> sum; parameter p (3)."""
    p = State(name="p", kind=StateKind.PARAMETER, spec=F32, trainable=True)
    x = Op(name="x", kind=OpKind.PLACEHOLDER, target="farflung.input", outputs=(F32,))
    total = op("total", "aten.sum.default", ValueRef(loss_of), outputs=(TensorSpec(dtype="float32", shape=()),))
    return Graph(name="tiny", ops=(x, *middle, total), states=(p, *states), outputs=(("loss", ValueRef("total")),))


def scaled() -> Graph:
    return tiny(op("h", "aten.mul.Tensor", ValueRef("x"), StateRef("p")))


def whole(graph: Graph, settings: EngineSettings | None = None) -> StageRunner:
    (sub,) = cut(graph, [(0, len(graph.ops))])
    return get_engine("torch").open(sub, settings or EngineSettings())


def data(**arrays: list[float]) -> Mapping[str, np.ndarray[Any, Any]]:
    return {name: np.array(values, dtype=np.float32) for name, values in arrays.items()}


def loaded(graph: Graph, settings: EngineSettings | None = None) -> StageRunner:
    runner = whole(graph, settings)
    runner.load(data(p=[1, 2, 3]))
    return runner


def test_one_step_by_hand() -> None:
    runner = loaded(scaled(), EngineSettings(optimizer=OptimizerSpec(lr=0.5)))
    made = runner.forward(KEY, {}, data(x=[1, 1, 2]))
    assert float(made.outputs["loss"]) == 9.0
    assert not made.values
    assert runner.backward(KEY, {}, 0.5) == {}
    runner.finish_gradients({})
    assert np.array_equal(runner.gradients()["p"], [0.5, 0.5, 1.0])
    assert runner.gradient_norms() == {"p": float(np.float32(np.sqrt(1.5)))}
    runner.update([0.5], np.array(2.0, dtype=np.float32))
    assert np.array_equal(runner.states()["p"], [0.5, 1.5, 2.0])
    assert runner.gradients() == {}


@pytest.mark.parametrize(
    ("x", "spoilt"),
    [([1, 2, 3], ()), ([3e38, 3e38, 3e38], ()), ([1, float("nan"), 1], ("p",)), ([float("inf"), -float("inf"), 1], ("p",))],
    ids=["numbers", "a sum that overflows", "nan", "infinities"],
)
def test_gradients_that_are_not_numbers_are_named(x: list[float], spoilt: tuple[str, ...]) -> None:
    runner = loaded(scaled())
    assert runner.spoilt_gradients() == ()
    runner.forward(KEY, {}, data(x=x))
    runner.backward(KEY, {}, 1.0)
    runner.finish_gradients({})
    assert runner.spoilt_gradients() == spoilt


def test_discard_forgets_gradients_and_activations() -> None:
    runner = loaded(scaled())
    runner.forward(KEY, {}, data(x=[1, 1, 1]))
    runner.backward(KEY, {}, 1.0)
    runner.forward(MicroBatch(0, 1), {}, data(x=[1, 1, 1]))
    runner.discard()
    assert runner.gradients() == {}
    with pytest.raises(GraphError, match=r"stage 0 has no forward of MicroBatch\(step=0, index=1\)"):
        runner.backward(MicroBatch(0, 1), {}, 1.0)


def test_nothing_of_a_micro_batch_is_left_after_its_backward() -> None:
    graph = tiny(op("a", "aten.exp.default", ValueRef("x")), op("h", "aten.mul.Tensor", ValueRef("a"), StateRef("p")))
    runner = loaded(graph)
    kept: list[weakref.ref[torch.Tensor]] = []
    original = torch.ops.aten.exp.default
    call = runner._program.calls[0]  # type: ignore[attr-defined]
    assert call.function is original

    def watched(x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = original(x)
        kept.append(weakref.ref(result))
        return result

    object.__setattr__(call, "function", watched)
    runner.forward(KEY, {}, data(x=[1, 1, 1]))
    runner.backward(KEY, {}, 1.0)
    assert [ref() for ref in kept] == [None]


def pair(graph: Graph, at: int, settings: EngineSettings | None = None) -> tuple[tuple[SubGraph, ...], list[StageRunner]]:
    subs = cut(graph, [(0, at), (at, len(graph.ops))])
    return subs, [get_engine("torch").open(sub, settings or EngineSettings()) for sub in subs]


def test_what_is_handed_out_does_not_change() -> None:
    """A parameter's gradient may take over memory that was also sent: later micro-batches must not write there."""
    view = op("v", "aten.view.default", StateRef("q"), (3,))
    graph = tiny(
        op("a", "aten.mul.Tensor", ValueRef("x"), StateRef("p")),
        view,
        op("h", "aten.add.Tensor", ValueRef("a"), ValueRef("v")),
        op("s", "aten.mul.Tensor", ValueRef("h"), ValueRef("h")),
        loss_of="s",
        states=(State(name="q", kind=StateKind.PARAMETER, spec=F32, trainable=True),),
    )
    _, (first, second) = pair(graph, graph.position["v"])
    first.load(data(p=[1, 1, 1]))
    second.load(data(q=[0, 1, 2]))
    sent = []
    for index in range(2):
        key = MicroBatch(0, index)
        made = first.forward(key, {}, data(x=[1, 2, 3]))
        second.forward(key, made.values, {})
        back = second.backward(key, {}, 1.0)
        sent.append({value: (array, array.copy()) for value, array in back.items()})
    second.finish_gradients({})
    second.update([0.1], None)
    for arrays in sent:
        for array, before in arrays.values():
            assert np.array_equal(array, before)


def test_a_value_that_is_a_view_of_a_parameter_is_copied() -> None:
    graph = tiny(
        op("v", "aten.view.default", StateRef("p"), (3,)),
        op("h", "aten.mul.Tensor", ValueRef("v"), ValueRef("x")),
    )
    position = graph.position["v"] + 1
    _, (first, second) = pair(graph, position, EngineSettings(optimizer=OptimizerSpec(lr=1.0)))
    first.load(data(p=[1, 2, 3]))
    made = first.forward(KEY, {}, data(x=[1, 1, 1]))
    (array,) = made.values.values()
    second.forward(KEY, made.values, data(x=[1, 1, 1]))
    (gradient,) = second.backward(KEY, {}, 1.0).values()
    first.backward(KEY, {ValueRef("v"): [gradient]}, 1.0)
    first.finish_gradients({})
    first.update([1.0], None)
    assert np.array_equal(array, [1, 2, 3])
    assert np.array_equal(first.states()["p"], [0, 1, 2])


def test_no_gradient_flows_back_is_zeros() -> None:
    graph = tiny(
        op("a", "aten.mul.Tensor", ValueRef("x"), StateRef("p")),
        op("d", "aten.mul.Tensor", ValueRef("a"), StateRef("q")),
        op("h", "aten.add.Tensor", ValueRef("d"), ValueRef("x")),
        states=(State(name="q", kind=StateKind.PARAMETER, spec=F32, trainable=True),),
    )
    frozen = EngineSettings(optimizer=OptimizerSpec(groups=(GroupSpec(match="p|q", frozen=True),)))
    subs, (_, second) = pair(graph, graph.position["d"], frozen)
    second.load(data(q=[0, 0, 0]))
    second.forward(KEY, {ValueRef("a"): np.ones(3, dtype=np.float32)}, data(x=[1, 1, 1]))
    back = second.backward(KEY, {}, 1.0)
    assert [edge.value for edge in subs[1].sends_gradients] == [ValueRef("a")]
    assert np.array_equal(back[ValueRef("a")], np.zeros(3))


@pytest.mark.parametrize("optimizer", [OptimizerSpec(name="adamw", lr=1e-2), OptimizerSpec(lr=0.1, momentum=0.9)])
def test_resume_is_bit_equal_under_another_cut(optimizer: OptimizerSpec) -> None:
    module, batch = make("gpt2")
    graph = captured("gpt2")
    settings = EngineSettings(optimizer=optimizer)
    straight = Stages(graph, equal_cuts(graph, 2), settings)
    straight.load(module_states(module))
    for step in range(2):
        straight.step(step, 1, batch)
        straight.update()
    saved = [(runner.states(), runner.optimizer_states()) for runner in straight.runners]
    states = {key: value for one, _ in saved for key, value in one.items()}
    slots = {key: value for _, one in saved for key, value in one.items()}
    resumed = Stages(graph, equal_cuts(graph, 3), settings)
    resumed.load(states)
    for sub, runner in zip(resumed.subs, resumed.runners, strict=True):
        runner.load_optimizer({key: value for key, value in slots.items() if key.partition("/")[2] in sub.states})
    for stages in (straight, resumed):
        stages.step(2, 1, batch)
        stages.update()
    expected, found = straight.states(), resumed.states()
    assert expected.keys() == found.keys()
    assert all(np.array_equal(value, found[key]) for key, value in expected.items())


def test_evaluation_shares_the_states_of_training() -> None:
    module, batch = make("resnet18")
    graph = captured("resnet18")
    evaluated = capture(module, batch(0, 0), mode="eval")
    train = Stages(graph, equal_cuts(graph, 1))
    train.load(module_states(module))
    (sub,) = cut(evaluated, [(0, len(evaluated.ops))])
    engine = get_engine("torch")
    eval_settings = replace(train.settings, training=False)
    runner = engine.open(sub, eval_settings, share=train.runners[0])
    for step in range(2):
        train.step(step, 2, batch)
        train.update([0.1])
        before = train.states()
        inputs = train.data(batch(9, 0))
        found = runner.forward(MicroBatch(step, 0), {}, inputs).outputs["loss"]
        assert all(np.array_equal(value, train.states()[key]) for key, value in before.items())
        module.load_state_dict({key: torch.from_numpy(np.array(value)) for key, value in before.items()})
        module.eval()
        assert float(found) == float(module(*batch(9, 0)).detach())
    assert not runner.gradients()


def test_shared_parameter_within_one_stage_is_summed_there() -> None:
    torch.manual_seed(0)
    layer = nn.Linear(4, 4)

    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = layer

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.layer(self.layer(x).tanh()).square().mean()

    graph = capture(Twice(), (torch.ones(2, 4),))
    runner = whole(graph)
    runner.load(module_states(Twice()))
    x = np.ones((2, 4), dtype=np.float32)
    (name,) = (placeholder.name for placeholder in graph.placeholders)
    runner.forward(KEY, {}, {name: x})
    runner.backward(KEY, {}, 1.0)
    assert runner.use_gradients() == {}
    runner.finish_gradients({})
    Twice()(torch.from_numpy(x)).backward()
    assert layer.weight.grad is not None
    assert np.allclose(runner.gradients()["layer.weight"], layer.weight.grad.numpy(), rtol=1e-6)


def test_refusals() -> None:
    engine = get_engine("torch")
    graph = scaled()
    (sub,) = cut(graph, [(0, len(graph.ops))])
    with pytest.raises(InputError, match=r"unknown precision 'fp8': known are bf16, float32"):
        engine.open(sub, EngineSettings(precision="fp8"))
    with pytest.raises(InputError, match=r"unknown device 'tpu': known are auto, cpu, cuda, .*; there is .*cpu, \d+ core"):
        engine.open(sub, EngineSettings(device="tpu"))
    if not torch.cuda.is_available():
        with pytest.raises(InputError, match=r"device 'cuda' is not available here: there is .*cpu, \d+ cores?; use one"):
            engine.open(sub, EngineSettings(device="cuda"))
    runner = whole(graph)
    with pytest.raises(GraphError, match=r"state 'p' has no value yet: initialize or load it first"):
        runner.forward(KEY, {}, data(x=[1, 1, 1]))
    with pytest.raises(GraphError, match=r"state 'q' is not in this stage"):
        runner.load(data(q=[1]))
    with pytest.raises(GraphError, match=r"state 'p' is declared float32\[3\] but the given array is float32\[2\]"):
        runner.load(data(p=[1, 2]))
    runner.load(data(p=[1, 2, 3]))
    with pytest.raises(GraphError, match=r"input 'x' of stage 0 is missing"):
        runner.forward(KEY, {}, {})
    with pytest.raises(GraphError, match=r"input 'x' is declared float32\[3\] but the given array is float32\[1\]"):
        runner.forward(KEY, {}, data(x=[1]))
    with pytest.raises(InputError, match=r"3 learning rates for 1 groups"):
        runner.update([1, 2, 3], None)
    with pytest.raises(CheckpointError, match=r"'exp_avg/q' belongs to no trained parameter"):
        runner.load_optimizer(data(**{"exp_avg/q": [1]}))
    with pytest.raises(CheckpointError, match=r"has shape \(1,\), its parameter \(3,\)"):
        runner.load_optimizer(data(**{"exp_avg/p": [1]}))
    with pytest.raises(GraphError, match=r"no operator 'zz' of graph 'tiny' trains state 'p'"):
        runner.finish_gradients({Use("p", "zz"): np.zeros(3, dtype=np.float32)})


def test_bad_group_pattern() -> None:
    with pytest.raises(InputError, match=r"optimizer group 0: '\(' is not a regular expression"):
        whole(scaled(), EngineSettings(optimizer=OptimizerSpec(groups=(GroupSpec(match="("),))))


def test_gradients_of_the_wrong_shape_or_missing_are_named() -> None:
    _, (first, _) = pair(scaled(), 2)
    first.load(data(p=[1, 2, 3]))
    for given, text in (
        ([np.zeros(2, dtype=np.float32)], r"the gradient of h has shape \[2\]"),
        ([], "no gradient came back for h"),
    ):
        first.forward(KEY, {}, data(x=[1, 1, 1]))
        with pytest.raises(GraphError, match=text):
            first.backward(KEY, {ValueRef("h"): given}, 1.0)


def test_failing_operator_is_named() -> None:
    table = State(name="t", kind=StateKind.PARAMETER, spec=TensorSpec(dtype="float32", shape=(2, 3)), trainable=True)
    index = Op(name="i", kind=OpKind.PLACEHOLDER, target="farflung.input", outputs=(TensorSpec(dtype="int64", shape=()),))
    graph = tiny(index, op("h", "aten.embedding.default", StateRef("t"), ValueRef("i")), states=(table,))
    runner = whole(graph)
    runner.load({"t": np.zeros((2, 3), dtype=np.float32)})
    with pytest.raises(
        DataError, match=r"^indices of the table must be 0 to 1, got 7: .*; operator 'h' \(aten.embedding.default\)$"
    ):
        runner.forward(KEY, {}, {"i": np.array(7)})


def test_every_call_of_the_program_frees_what_it_last_reads() -> None:
    graph = captured("gpt2")
    program = whole(graph)._program  # type: ignore[attr-defined]
    freed = [slot for call in program.calls for slot in call.free]
    assert len(freed) == len(set(freed))
    kept = {program.slots[graph.loss]}
    assert set(range(program.size)) - set(freed) == kept


def test_clip_scale_is_torchs() -> None:
    engine = get_engine("torch")
    parameters = [nn.Parameter(torch.zeros(n)) for n in (3, 5, 9)]
    for parameter in parameters:
        parameter.grad = torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1))
    norms = [float(torch.linalg.vector_norm(p.grad)) for p in parameters if p.grad is not None]
    before = parameters[2].grad.clone() if parameters[2].grad is not None else torch.zeros(0)
    torch.nn.utils.clip_grad_norm_(parameters, 0.5, foreach=False)
    scale = engine.clip_scale(norms, 0.5)
    assert scale.dtype == np.float32
    assert parameters[2].grad is not None
    assert torch.equal(before * float(scale), parameters[2].grad)
    assert float(engine.clip_scale(norms, 1e9)) == 1.0
    assert float(engine.clip_scale([], 1.0)) == 1.0
