"""The bytes of a call on the host are known before it runs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from farflung.engines.host.call_bytes import call_bytes
from farflung.engines.host.initialize import initial_value
from farflung.engines.host.operators import host_function
from farflung.engines.host.random_bits import Stream
from farflung.errors import GraphError, MemoryExceeded
from farflung.graph.ir import Arg, InitStep, LocalRef, State, StateKind, TensorSpec
from farflung.memory_budget import MemoryBudget

F32 = np.dtype("float32")
MATRIX, ROW = np.ones((6, 4), F32), np.ones(4, F32)
CALLS: list[tuple[str, tuple[Any, ...], dict[str, Any]]] = [
    ("full.default", ([3, 5], 1), {}),
    ("zeros.default", ([3, 5],), {"dtype": np.dtype("float64")}),
    ("ones.default", ([3, 5],), {}),
    ("eye.default", (7,), {}),
    ("eye.m", (7, 3), {}),
    ("arange.start_step", (0, 90, 3), {}),
    ("linspace.default", (0.0, 1.0, 12), {}),
    ("rand.default", ([3, 5],), {}),
    ("randn_like.default", (MATRIX,), {}),
    ("normal_.default", (MATRIX.copy(),), {}),
    ("add.Tensor", (np.ones((6, 1), F32), np.ones((1, 900), F32)), {}),
    ("where.self", (MATRIX > 0, MATRIX, ROW), {}),
    ("to.dtype", (MATRIX, np.dtype("float64")), {}),
    ("cat.default", ([MATRIX, MATRIX],), {}),
    ("stack.default", ([MATRIX, MATRIX],), {}),
    ("repeat.default", (MATRIX, [3, 2]), {}),
    ("outer.default", (ROW, np.ones(9, F32)), {}),
    ("mm.default", (MATRIX, np.ones((4, 50), F32)), {}),
    ("addmm.default", (ROW, MATRIX, np.ones((4, 4), F32)), {"beta": 0.5}),
    ("pad.default", (MATRIX, [1, 2, 3, 4]), {}),
    ("constant_pad_nd.default", (MATRIX, [1, 2], 0.0), {}),
    ("linalg_qr.default", (MATRIX, "complete"), {}),
    ("cumsum.default", (MATRIX, 0), {}),
    ("clone.default", (np.broadcast_to(ROW, (30, 4)),), {}),
    ("reshape.default", (np.broadcast_to(ROW, (30, 4)), [120]), {}),
    ("expand.default", (np.ones((1, 4), F32), [1 << 40, 4]), {}),
    ("sum.default", (MATRIX,), {}),
    ("var.correction", (MATRIX, [0]), {"correction": 1}),
]


def made_bytes(item: Any) -> int:
    if isinstance(item, tuple):
        return sum(map(made_bytes, item))
    array = np.asarray(item)
    while isinstance(array.base, np.ndarray):
        array = array.base
    return array.nbytes


@pytest.mark.parametrize("call", CALLS, ids=[name for name, _, _ in CALLS])
def test_a_call_makes_no_more_than_was_said(call: tuple[str, tuple[Any, ...], dict[str, Any]]) -> None:
    name, args, kwargs = call
    said = call_bytes(f"aten.{name}", args, kwargs)
    extra = {"stream": Stream(1)} if "rand" in name or "normal" in name else {}
    found = host_function(f"aten.{name}")(*args, **kwargs, **extra)
    fresh = not any(np.may_share_memory(np.asarray(part), arg) for part in (found if isinstance(found, tuple) else (found,))
                    for arg in args if isinstance(arg, np.ndarray))  # fmt: skip
    assert made_bytes(found) <= said or not fresh
    assert said <= 3 * max(made_bytes(found), 64) or not fresh


HUGE = (1 << 20, 1 << 20)  # 4 TB, more than any machine that runs this test has


def state(*steps: InitStep) -> State:
    return State(name="w", kind=StateKind.PARAMETER, spec=TensorSpec(dtype="float32", shape=(4,)), trainable=True, init=steps)


def step(target: str, *args: Arg, rng: int | None = None) -> InitStep:
    return InitStep(target=f"aten.{target}", args=args, kwargs=(), rng=rng)


@pytest.mark.parametrize(
    "steps",
    [
        (step("full.default", HUGE, 1.0),),
        (step("ones.default", (4,)), step("repeat.default", LocalRef(0), (1 << 38,))),
        (step("arange.default", 1 << 40),),
        (step("eye.default", 1 << 20),),
        (step("ones.default", (1 << 18,)), step("outer.default", LocalRef(0), LocalRef(0))),
        (step("ones.default", (1, 4)), step("expand.default", LocalRef(0), (1 << 38, 4)), step("clone.default", LocalRef(1))),
        (step("randn.default", HUGE, rng=0),),
        (step("ones.default", (4,)), step("pad.default", LocalRef(0), (1 << 40, 0))),
    ],
    ids=lambda steps: steps[-1].target,
)
def test_a_huge_step_of_an_initializer_is_refused_before_it_takes_memory(steps: tuple[InitStep, ...]) -> None:
    with pytest.raises(GraphError, match=r"its values take \d{12,} bytes, at most 33554432 are allowed"):
        initial_value(state(*steps), 1)


def test_the_budget_is_asked_before_the_step_runs() -> None:
    budget = MemoryBudget(1 << 20)
    with pytest.raises(MemoryExceeded, match=r"the initializer of 'w' needs .*offer more memory \(--memory\)"):
        initial_value(state(step("zeros.default", (1 << 19,)), step("add.Scalar", LocalRef(0), 1.0)), 1, budget)
    assert budget.used == 0
