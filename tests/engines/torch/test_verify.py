"""Declarations are checked before anything is allocated; initializer programs are replayed from data alone."""

from __future__ import annotations

import gc
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest
import torch

from farflung.engines import EngineSettings, get_engine
from farflung.engines.host.initialize import initial_value as host_initial_value
from farflung.engines.torch.initialize import initial_value
from farflung.engines.torch.verify import verify_graph
from farflung.errors import GraphError, InputError, MemoryExceeded
from farflung.frontends.torch.capture import capture
from farflung.graph.cut import cut
from farflung.graph.ir import DTypeArg, Graph, InitStep, LocalRef, Op, OpKind, State, StateKind, TensorSpec, ValueRef
from farflung.ids import derive_seed
from farflung.memory_budget import MemoryBudget
from tests.support.engines.engine_drive import captured
from tests.support.models.engine_models import MODELS

ENGINE = get_engine("torch")
SPEC = TensorSpec(dtype="float32", shape=(4, 3))


def graph_of(*ops: Op) -> Graph:
    x = Op(name="x", kind=OpKind.PLACEHOLDER, target="farflung.input", outputs=(SPEC,))
    return Graph(name="g", ops=(x, *ops), states=(), outputs=(("y", ValueRef(ops[-1].name)),), mode="eval")


def op(target: str, *args: object, shape: tuple[int, ...] = (4, 3), dtype: str = "float32", **kwargs: object) -> Op:
    outputs = (TensorSpec(dtype=dtype, shape=shape),)
    return Op(
        name="y",
        kind=OpKind.NON_PARAMETRIC,
        target=target,
        args=args,
        kwargs=tuple(kwargs.items()),
        outputs=outputs,  # type: ignore[arg-type]
    )


@pytest.mark.parametrize("name", MODELS)
def test_captured_graphs_pass(name: str) -> None:
    ENGINE.verify(captured(name))


@pytest.mark.parametrize(
    ("bad", "text"),
    [
        (op("aten.t.default", ValueRef("x")), r"'y' \(aten.t.default\) declares float32\[4, 3\] but gives float32\[3, 4\]"),
        (op("aten.relu.default", ValueRef("x"), dtype="float64"), r"declares float64\[4, 3\] but gives float32\[4, 3\]"),
        (op("aten.mm.default", ValueRef("x"), ValueRef("x")), r"'y' \(aten.mm.default\) refuses its declared arguments: "),
        (op("aten.relu.default", ValueRef("z")), r"operator 'y' reads z, which no earlier operator makes"),
        (op("aten.system.default", ValueRef("x")), r"operator 'aten.system.default' is not on the allow-list"),
        (op("aten.copy_.default", ValueRef("x"), ValueRef("x")), r"only allowed in initializer programs"),
        (op("aten.relu.default", LocalRef(0)), r"which the graph does not have"),
        (op("aten.full.default", (1 << 40, 1 << 10), 1.0), r"declares float32\[4, 3\] but gives float32\[1099511627776, 1024\]"),
        (op("aten.clone.default", ValueRef("x"), memory_format="strange"), r"memory format 'strange' is not known"),
        (replace(op("aten.zeros.default", (4, 3)), kwargs=(("dtype", DTypeArg("complex32")),)), r"'complex32' is not known"),
        (op("aten.to.dtype", ValueRef("x"), -1), r"'y' \(aten.to.dtype\): argument 'dtype' must be ScalarType, not int -1"),
        (op("aten._weight_norm.default", ValueRef("x"), ValueRef("x"), 0), r"norms of shape \[4, 3\]"),
    ],
)
def test_lies_are_found(bad: Op, text: str) -> None:
    with pytest.raises(GraphError, match=text):
        ENGINE.verify(graph_of(bad))


def test_open_checks_first() -> None:
    graph = graph_of(op("aten.t.default", ValueRef("x")))
    (sub,) = cut(graph, [(0, 2)])
    for _ in range(2):
        with pytest.raises(GraphError, match="declares"):
            ENGINE.open(sub, EngineSettings(training=False))


NORMAL = (
    InitStep(target="aten.empty.memory_format", args=((4, 3),)),
    InitStep(target="aten.normal_.default", args=(LocalRef(0),), rng=0),
)


def state(*init: InitStep, **more: object) -> State:
    return State(name="w", kind=StateKind.PARAMETER, spec=SPEC, trainable=True, init=init, **more)  # type: ignore[arg-type]


def test_programs_are_keyed_by_seed_state_and_step() -> None:
    expected = torch.empty(4, 3).normal_(generator=torch.Generator().manual_seed(derive_seed("init", 5, "w", 0)))
    before = torch.get_rng_state()
    assert torch.equal(initial_value(state(*NORMAL), 5), expected)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(initial_value(state(*NORMAL), 6), expected)
    assert not torch.equal(initial_value(replace(state(*NORMAL), name="v"), 5), expected)


def test_initial_states_by_name() -> None:
    graph = replace(graph_of(op("aten.relu.default", ValueRef("x"))), states=(state(*NORMAL), replace(state(), name="v")))
    values = ENGINE.initial_states(graph, 1, ["w"])
    assert values.keys() == {"w"}
    assert np.array_equal(values["w"], initial_value(graph.state["w"], 1).numpy())
    with pytest.raises(GraphError, match="state 'v' has no initializer: load its value"):
        ENGINE.initial_states(graph, 1, ["v"])
    with pytest.raises(GraphError, match="graph 'g' has no state 'u'"):
        ENGINE.initial_states(graph, 1, ["u"])


def test_constants_come_from_their_bytes() -> None:
    values = np.arange(12, dtype=np.float32).reshape(4, 3)
    assert np.array_equal(initial_value(state(data=values.tobytes()), 0).numpy(), values)
    with pytest.raises(GraphError, match="state 'w' holds 3 bytes of data but is declared 48"):
        initial_value(state(data=b"abc"), 0)


@pytest.mark.parametrize(
    ("program", "text"),
    [
        (
            (InitStep(target="aten.zeros.default", args=((3, 4),)),),
            r"declared float32\[4, 3\] but its initializer gives float32\[3, 4\]",
        ),
        ((InitStep(target="aten.zeros.default", args=((1 << 40,),)),), r"needs 4398046511104 bytes at step 0: at most 33554432"),
        (
            (
                *(InitStep(target="aten.zeros.default", args=((4, 1 << 18),)) for _ in range(9)),
                InitStep(target="aten.stack.default", args=(tuple(LocalRef(number) for number in range(9)),)),
            ),
            r"needs 37748736 bytes at step 8: at most 33554432 are allowed, which is the larger of 33554432 and 8 times",
        ),
        (
            (*NORMAL, InitStep(target="aten.to.dtype", args=(LocalRef(0), 6))),
            r"the initializer of 'w' at aten.to.dtype: argument 'dtype' must be ScalarType, not int 6",
        ),
        (
            (InitStep(target="aten.fill_.Scalar", args=(LocalRef(0), 1.0)),),
            r"refers to LocalRef\(index=0\), which no earlier step",
        ),
        ((InitStep(target="aten.relu.default", args=(LocalRef(0),)),), r"'aten.relu.default' is not allowed in an initializer"),
        (
            (*NORMAL, InitStep(target="aten.view.default", args=(LocalRef(0), (7,)))),
            r"initializer of 'w' failed at aten.view.default",
        ),
    ],
)
def test_bad_programs(program: tuple[InitStep, ...], text: str) -> None:
    with pytest.raises(GraphError, match=text):
        initial_value(state(*program), 0)


@pytest.mark.parametrize("first_value", [initial_value, host_initial_value])
def test_an_initializer_takes_its_memory_from_the_budget(first_value: Callable[..., object]) -> None:
    shape = (4, 1 << 10)
    zeros = InitStep(target="aten.zeros.default", args=(shape,))
    program = (zeros, zeros, InitStep(target="aten.add.Tensor", args=(LocalRef(0), LocalRef(1))))
    wide = State(name="w", kind=StateKind.BUFFER, spec=TensorSpec(dtype="float32", shape=shape), init=program)
    budget = MemoryBudget(3 * 16384)
    first_value(wide, 0, budget)
    assert (budget.used, budget.peak) == (0, 3 * 16384)
    budget.reserve(1, "a state")
    text = r"^the initializer of 'w' needs .*, and .* of the 49.2 kB that this process may use are in use: offer more memory"
    with pytest.raises(MemoryExceeded, match=text):
        first_value(wide, 0, budget)
    assert budget.used == 1


@pytest.mark.parametrize(("engine", "copies"), [("torch", 1), ("reference", 3)], ids=["torch", "reference"])
def test_states_count_while_their_stage_is_open(engine: str, copies: int) -> None:
    """``copies``: while NumPy makes a first value, it has a word of 64 bits for each number of 32."""
    (sub,) = cut(replace(graph_of(op("aten.relu.default", ValueRef("x"))), states=(state(*NORMAL),)), [(0, 2)])
    sub = replace(sub, states=("w",))
    budget = MemoryBudget(SPEC.nbytes * copies)
    runner = get_engine(engine).open(sub, EngineSettings(training=False, budget=budget))
    runner.initialize(["w"])
    assert (budget.used, budget.peak) == (SPEC.nbytes, SPEC.nbytes * copies)
    del runner
    gc.collect()
    assert budget.used == 0


def test_registry() -> None:
    with pytest.raises(InputError, match=r"unknown engine 'tensorflow': .*torch"):
        get_engine("tensorflow")


def test_measure_and_threads() -> None:
    threads = torch.get_num_threads()
    ENGINE.set_threads(1)
    assert torch.get_num_threads() == 1
    ENGINE.set_threads(threads)
    report = ENGINE.measure("cpu", 1e12)
    assert report.flops_per_second > 0
    assert report.launch_seconds >= 0
    assert 0 < report.free_bytes <= report.total_bytes
    assert report.speed_factor == report.flops_per_second / 1e12
    own = ENGINE.measure("cpu")
    assert own.flops_per_second <= own.peak_flops_per_second
    assert own.convolution >= 0.1
    assert 0 < own.speed_factor <= 1
    assert report.name


def test_memory_that_an_initializer_leaves_unset_is_zero() -> None:
    like, shape = InitStep(target="aten.empty_like.default", args=(LocalRef(0),)), ((64, 64),)
    empty = InitStep(target="aten.empty.memory_format", args=shape)
    new = InitStep(target="aten.new_empty.default", args=(LocalRef(0), *shape))
    for program in ((empty,), (empty, like), (empty, new)):
        for _ in range(8):
            torch.full((64, 64), 7.0)  # what the heap hands out again
            state = State(name="w", kind=StateKind.BUFFER, spec=TensorSpec(dtype="float32", shape=(64, 64)), init=program)
            assert not initial_value(state, 0).any()


def test_results_that_no_later_step_reads_do_not_count() -> None:
    steps = tuple(InitStep(target="aten.zeros.default", args=((4, 1 << 20),)) for _ in range(9))
    state = State(name="w", kind=StateKind.BUFFER, spec=TensorSpec(dtype="float32", shape=(4, 1 << 20)), init=steps)
    assert initial_value(state, 0).shape == (4, 1 << 20)


class Attends(torch.nn.Module):
    """Its ``contiguous`` copies nothing on a processor, so that the graph has no copy and the view needs the strides."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(8, 24)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        query, key, value = (part.unflatten(-1, (2, 4)).transpose(1, 2) for part in self.layer(x).chunk(3, -1))
        found = torch.nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        return found.transpose(1, 2).contiguous().view(*x.shape).square().mean()


def test_the_result_of_attention_has_the_strides_of_a_processor() -> None:
    graph = capture(Attends(), (torch.ones(2, 5, 8),))
    assert "aten.view.default" in {operator.target for operator in graph.ops}
    verify_graph(graph)
