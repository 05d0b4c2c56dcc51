"""Update programs: what they compute, and what hostile ones may not do."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from farflung.engines.torch.optimizers.built_in import RuleOptimizer, plain_optimizer
from farflung.engines.torch.optimizers.update_programs import missing_program
from farflung.errors import CheckpointError, GraphError, InputError
from farflung.frontends.optimizers.capture import Trained, capture_rules
from farflung.graph.ir import InitStep, LocalRef, TensorSpec
from farflung.job.spec import OptimizerSpec
from farflung.optim import Rule, RuleBook, StateSlot, UpdateProgram, write_rules

SHAPE = (4, 3)
SPEC = OptimizerSpec(name="captured")


def book_of(make: Callable[[list[torch.nn.Parameter]], torch.optim.Optimizer]) -> RuleBook:
    optimizer = make([torch.nn.Parameter(torch.zeros(SHAPE))])
    settings = optimizer.param_groups[0]
    return capture_rules([Trained(group=0, optimizer=optimizer, settings=settings, dtype=torch.float32, shape=SHAPE)])


def parameter(seed: int = 0) -> torch.nn.Parameter:
    return torch.nn.Parameter(torch.randn(SHAPE, generator=torch.Generator().manual_seed(seed)))


def gradient(step: int) -> torch.Tensor:
    return torch.randn(SHAPE, generator=torch.Generator().manual_seed(100 + step))


def steps(optimizer: Any, parameter: torch.nn.Parameter, numbers: range) -> None:
    for number in numbers:
        parameter.grad = gradient(number)
        optimizer.step([0.1])


def test_states_go_to_arrays_and_back() -> None:
    book = book_of(torch.optim.NAdam)
    whole, first, second = parameter(), parameter(), parameter()
    steps(RuleOptimizer(SPEC, book, {"w": whole}), whole, range(6))
    optimizer = RuleOptimizer(SPEC, book, {"w": first})
    steps(optimizer, first, range(3))
    states = optimizer.export()
    assert set(states) == {"step/w", "mu_product/w", "exp_avg/w", "exp_avg_sq/w"}
    second.data.copy_(first.data)
    again = plain_optimizer(SPEC.model_copy(update={"rules": write_rules(book)}), {"w": second})
    again.load(states)
    steps(again, second, range(3, 6))
    assert torch.equal(whole, second)


def test_a_parameter_without_a_gradient_stays() -> None:
    optimizer = RuleOptimizer(SPEC, book_of(torch.optim.Adam), {"w": parameter()})
    optimizer.step([0.1])
    assert optimizer.export() == {}


@pytest.mark.parametrize(
    ("states", "why"),
    [
        ({"step/other": np.zeros(())}, "belongs to no trained parameter of this stage"),
        ({"step/w": np.zeros(())}, "optimizer state 'exp_avg' of parameter 'w' is missing, or of another optimizer"),
        (
            {"step/w": np.zeros(()), "exp_avg/w": np.zeros(5), "exp_avg_sq/w": np.zeros(SHAPE)},
            r"has shape \(5,\), its rule \(4, 3\)",
        ),
    ],
)
def test_states_of_something_else(states: dict[str, Any], why: str) -> None:
    optimizer = RuleOptimizer(SPEC, book_of(torch.optim.Adam), {"w": parameter()})
    with pytest.raises(CheckpointError, match=why):
        optimizer.load({key: value.astype(np.float32) for key, value in states.items()})


def test_rates_and_rules_that_do_not_fit() -> None:
    book = book_of(torch.optim.Adam)
    with pytest.raises(InputError, match="2 values for 1 settings of 1 groups"):
        RuleOptimizer(SPEC, book, {"w": parameter()}).step([0.1, 0.2])
    with pytest.raises(GraphError, match=r"have none for parameter 'w' \(float32\[7\]\): submit again"):
        RuleOptimizer(SPEC, book, {"w": torch.nn.Parameter(torch.zeros(7))})


def made(*calls: InitStep, states: tuple[StateSlot, ...] = (), results: tuple[Any, ...] = ()) -> RuleBook:
    program = UpdateProgram(steps=calls, results=results)
    rule = Rule(states=states, first=(program,), later=(program,))
    return RuleBook(settings=("lr",), rules=(rule,), uses=(((0, "float32", SHAPE), 0),))


def test_memory_is_bounded_before_anything_runs() -> None:
    huge = InitStep(target="aten.zeros.default", args=((1 << 20, 1 << 10),))
    with pytest.raises(GraphError, match="its values take 4294967296 bytes, at most 1048576 are allowed for such a parameter"):
        RuleOptimizer(SPEC, made(huge), {"w": parameter()})


def test_many_small_values_are_bounded_together() -> None:
    wide = [InitStep(target="aten.zeros.default", args=((1 << 16,),)) for _ in range(5)]
    kept = InitStep(target="aten.cat.default", args=(tuple(LocalRef(3 + i) for i in range(5)),))
    with pytest.raises(GraphError, match="its values take 1310720 bytes, at most 1048576"):
        RuleOptimizer(SPEC, made(*wide, kept), {"w": parameter()})


def test_a_state_must_be_as_declared() -> None:
    slot = StateSlot(name="m", kind="float32", shape=None)
    row = InitStep(target="aten.select.int", args=(LocalRef(0), 0, 0))
    with pytest.raises(GraphError, match=r"state 'm' is declared float32\[4, 3\], but its program gives float32\[3\]"):
        RuleOptimizer(SPEC, made(row, states=(slot,), results=(LocalRef(3),)), {"w": parameter()})


def test_a_number_without_a_result_names_the_operator() -> None:
    bad = InitStep(target="number.truediv", args=(LocalRef(2), 0))
    found = parameter()
    with pytest.raises(GraphError, match=r"number.truediv\(0.1, 0\) has no result: float division by zero"):
        steps(RuleOptimizer(SPEC, made(bad), {"w": found}), found, range(1))


def test_powers_of_integers_do_not_grow_without_bound() -> None:
    power = InitStep(target="number.pow", args=(10, 10_000_000))
    found = parameter()
    with pytest.raises(GraphError, match="an integer power does not fit into 64 bits"):
        steps(RuleOptimizer(SPEC, made(power), {"w": found}), found, range(1))


class Turning(torch.optim.SGD):
    """Takes another way from the learning rate 0.5 on."""

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            for p in group["params"]:
                p.mul_(0.5) if group["lr"] > 0.5 else p.sub_(group["lr"] * p.grad)


def test_a_step_that_no_program_fits() -> None:
    book = book_of(lambda params: Turning(params, lr=0.1))
    assert missing_program(book.rules[0], TensorSpec(dtype="float32", shape=SHAPE), [(0.1,), (0.2,)]) is None
    found = missing_program(book.rules[0], TensorSpec(dtype="float32", shape=SHAPE), [(0.1,), (0.7,)])
    assert found is not None
    assert found[0] == (0.7,)
    weights = parameter()
    optimizer = RuleOptimizer(SPEC, book, {"w": weights})
    before = weights.detach().clone()
    weights.grad = gradient(0)
    with pytest.raises(GraphError, match="no program of the optimizer fits this step"):
        optimizer.step([0.7])
    assert torch.equal(weights, before), "nothing has changed"


def test_all_ways_are_captured_that_a_run_takes() -> None:
    optimizer = Turning([torch.nn.Parameter(torch.zeros(SHAPE))], lr=0.1)
    rates = [(0.1,), (0.2,), (0.7,)]
    item = Trained(group=0, optimizer=optimizer, settings=optimizer.param_groups[0], dtype=torch.float32, shape=SHAPE)
    declared = TensorSpec(dtype="float32", shape=SHAPE)
    book = capture_rules([item], missing=lambda rule, _: missing_program(rule, declared, rates))
    assert len(book.rules[0].later) == 2
    weights = parameter()
    ruled = RuleOptimizer(SPEC, book, {"w": weights})
    weights.grad = gradient(0)
    ruled.step([0.1])
    before = weights.detach().clone()
    ruled.step([0.7])
    assert torch.equal(weights, before * 0.5)
