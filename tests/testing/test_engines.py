"""The conformance kit of engines: the engines of farflung pass, and a broken rule is found and named."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from farflung.engines import Engine, EngineSettings, EngineSupport, MicroBatch, get_engine
from farflung.engines.reference.engine import ReferenceEngine
from farflung.engines.reference.runner import ReferenceRunner
from farflung.graph.cut import SubGraph
from farflung.graph.opset import OPSET
from farflung.testing import check_engine
from farflung.testing.operator_cases import operator_cases

OTHER = "use a worker with --engine torch"
#: Operators that calls of one line cannot show.
_OWN = {f"farflung.{name}" for name in ("input", "cached_attention", "gradient", "ctc_loss", "grouped_linear", "grouped_mm")}


def test_each_operator_of_the_allow_list_has_a_case() -> None:
    cases = [case.operator for case in operator_cases()]
    assert len(cases) == len(set(cases))
    assert {name for name, known in OPSET.items() if known.graph} - set(cases) == _OWN


@pytest.mark.parametrize("name", ["reference", "torch"])
def test_the_engines_pass(name: str) -> None:
    check_engine(get_engine(name))


@pytest.mark.slow
@pytest.mark.skipif(find_spec("jax") is None, reason="jax is not installed")
@pytest.mark.timeout(1200)  # XLA compiles each of a thousand small graphs
def test_jax_passes() -> None:
    check_engine(get_engine("jax"))


class _Runner:
    """A runner whose results pass through functions."""

    def __init__(self, runner: ReferenceRunner, changes: Mapping[str, Callable[[Any], Any]]) -> None:
        self._runner, self._changes = runner, changes

    def forward(self, *arguments: Any) -> Any:
        found = self._runner.forward(*arguments)
        return self._changes["forward"](found) if "forward" in self._changes else found

    def gradients(self) -> Any:
        found = self._runner.gradients()
        return self._changes["gradients"](found) if "gradients" in self._changes else found

    def __getattr__(self, name: str) -> Any:
        return getattr(self._runner, name)


class _Broken(ReferenceEngine):
    """The reference engine with a defect."""

    def __init__(self, claims: frozenset[str] | None = None, **changes: Callable[[Any], Any]) -> None:
        super().__init__()
        self._claims, self._changes = claims, changes

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: Any = None) -> Any:
        return _Runner(super().open(subgraph, settings, share), self._changes)

    def support(self, device: str) -> EngineSupport:
        found = super().support(device)
        return found if self._claims is None else EngineSupport(operators=self._claims, precisions=found.precisions)


def _doubled(forward: Any) -> Any:
    return type(forward)(values=forward.values, outputs={name: 2 * array for name, array in forward.outputs.items()})


def _widened(forward: Any) -> Any:
    outputs = {name: array.astype(np.float64) for name, array in forward.outputs.items()}
    return type(forward)(values=forward.values, outputs=outputs)


def _negative(gradients: Any) -> Any:
    return {name: -array for name, array in gradients.items()}


@pytest.mark.parametrize(
    ("engine", "operator", "text"),
    [
        (_Broken(forward=_doubled), "aten.tanh.default", "result0 differs by 1.0e+00 of its largest value (float32)"),
        (_Broken(forward=_widened), "aten.tanh.default", "result0 has element type float64, not float32 (float32)"),
        (
            _Broken(gradients=_negative),
            "aten.tanh.default",
            "the gradient of w0 differs by 2.0e+00 of its largest value (float32)",
        ),
        (_Broken(gradients=lambda found: {}), "aten.tanh.default", "gradients of [], not of ['w0'] (float32)"),
        (
            _Broken(claims=frozenset()),
            "aten.tanh.default",
            "it is computed, but the engine says that it does not support it (float32)",
        ),
        (
            _Broken(claims=frozenset({"aten.rot90.default"})),
            "aten.rot90.default",
            f"it is refused: the reference engine has no operator 'aten.rot90.default': {OTHER} (float32)",
        ),
        (_Broken(claims=frozenset({"aten.strange"})), "aten.strange", "it is not on the allow-list"),
    ],
)
def test_broken_rules_are_named(engine: Engine, operator: str, text: str) -> None:
    with pytest.raises(AssertionError, match=rf"^1 broken rule:\n{re.escape(operator)}: {re.escape(text)}$"):
        check_engine(engine, [operator])


class _Unkeyed(ReferenceEngine):
    """Draws the same numbers for each micro-batch (``fixed``), or other ones each time."""

    def __init__(self, *, fixed: bool) -> None:
        super().__init__()
        self._fixed, self._calls = fixed, 0

    def open(self, subgraph: SubGraph, settings: EngineSettings, share: Any = None) -> Any:
        runner = super().open(subgraph, settings, share)
        forward = runner.forward

        def changed(key: MicroBatch, *arguments: Any) -> Any:
            self._calls += 1
            return forward(MicroBatch(0, 0 if self._fixed else self._calls), *arguments)

        runner.forward = changed  # type: ignore[method-assign]
        runner.backward = lambda *arguments: {}  # type: ignore[assignment, method-assign]
        return runner


def test_random_numbers_depend_on_their_key() -> None:
    with pytest.raises(AssertionError, match=r"aten\.dropout\.default: the same key gives other numbers"):
        check_engine(_Unkeyed(fixed=False), ["aten.dropout.default"])
    with pytest.raises(AssertionError, match=r"aten\.dropout\.default: another micro-batch gives the same numbers"):
        check_engine(_Unkeyed(fixed=True), ["aten.dropout.default"])


def test_gradients_that_the_reference_engine_lacks_are_compared_with_slopes() -> None:
    class Wrong:
        """PyTorch's engine with other gradients."""

        def __init__(self) -> None:
            self.engine = get_engine("torch")

        def open(self, *arguments: Any) -> Any:
            return _Runner(self.engine.open(*arguments), {"gradients": _negative})  # type: ignore[arg-type]

        def __getattr__(self, name: str) -> Any:
            return getattr(self.engine, name)

    wrong: Any = Wrong()
    with pytest.raises(AssertionError, match=r"aten\.rot90\.default: the gradient of w0 is .* in which the loss grows by "):
        check_engine(wrong, ["aten.rot90.default"])
