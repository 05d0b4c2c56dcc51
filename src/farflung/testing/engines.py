"""Conformance of an engine: ``check_engine(engine)`` raises ``AssertionError`` with all rules that it breaks.

The rules, for each operator that the engine says it supports: the results and the gradients are those of the reference engine in
float64, up to rounding, in float32 and in float64, and whatever the order of its arguments in memory; an operator that draws has
the same bits for the same key, and others for another micro-batch; where the reference engine lacks the operator, the gradient
is the slope that finite differences find. An operator that the engine does not support is refused by name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

import numpy as np

from farflung.engines import Engine, EngineSettings, MicroBatch
from farflung.engines.base import Array
from farflung.engines.reference.engine import WideEngine
from farflung.errors import FarflungError
from farflung.graph.cut import cut
from farflung.graph.opset import OPSET
from farflung.testing.operator_cases import Case, operator_cases
from farflung.units import counted

__all__ = ["broken_rules", "check_engine"]

#: The largest difference over the largest value.
_TOLERANCES = {"float32": 2e-5, "float64": 1e-8}
#: Operators that PyTorch computes in float64 with constants, or with random numbers, of float32.
_ROUGH = {"aten.hardsigmoid.default": 1e-7, "aten.randn_like.default": 1e-7}
#: Of a slope by finite differences, and the step of these.
_SLOPE, _STEP = 2e-2, 1e-2
_KEY, _OTHER_KEY = MicroBatch(0, 0), MicroBatch(0, 1)


def check_engine(engine: Engine, operators: Collection[str] | None = None) -> None:
    """Hold ``engine`` against every rule above (``operators``: only these).

    Raises:
        AssertionError: the text has a line for each operator and rule.
    """
    broken = broken_rules(engine, operators)
    assert not broken, f"{counted(len(broken), 'broken rule')}:\n" + "\n".join(f"{name}: {rule}" for name, rule in broken.items())


def broken_rules(engine: Engine, operators: Collection[str] | None = None) -> dict[str, str]:
    """The first rule that each operator breaks (none: the engine conforms)."""
    supported = engine.support("cpu").operators
    truth = WideEngine()
    known = truth.support("cpu").operators
    found = dict.fromkeys(sorted(supported - OPSET.keys()), "it is not on the allow-list")
    variants = (("float32", False), ("float32", True), ("float64", False))
    for dtype, turned in variants:
        for case in operator_cases(dtype, turned=turned):
            if case.operator in found or (operators is not None and case.operator not in operators):
                continue
            check = _Check(
                engine, truth if case.operator in known else None, case, max(_TOLERANCES[dtype], _ROUGH.get(case.operator, 0.0))
            )
            rule = check.broken() if case.operator in supported else check.accepted()
            if rule:
                found[case.operator] = f"{rule} ({dtype}{', arguments with strides' if turned else ''})"
    return found


@dataclass(frozen=True)
class _Outcome:
    """What a case gives on an engine."""

    results: Mapping[str, Array]
    loss: float | None
    gradients: Mapping[str, Array]


@dataclass(frozen=True)
class _Check:
    """One case on ``engine``; ``truth`` knows the operator, or is ``None``."""

    engine: Engine
    truth: Engine | None
    case: Case
    tolerance: float

    def accepted(self) -> str:
        """Whether an operator that the engine does not support is refused by name ("": it is)."""
        try:
            self._run(self.engine, _KEY)
        except FarflungError as error:
            return "" if self.case.operator in str(error) else f"the refusal does not name it: {error}"
        return "it is computed, but the engine says that it does not support it"

    def broken(self) -> str:
        """The first broken rule ("": none)."""
        try:
            found = self._run(self.engine, _KEY)
        except FarflungError as error:
            return f"it is refused: {error}"
        return self._keys(found) or (self._slopes(found) if self.truth is None else self._values(found, self.truth))

    def _keys(self, found: _Outcome) -> str:
        """Whether random numbers depend on their key alone."""
        if all(op.rng is None for op in self.case.graph.ops):
            return ""
        if not _equal(found.results, self._run(self.engine, _KEY).results):
            return "the same key gives other numbers"
        is_same = _equal(found.results, self._run(self.engine, _OTHER_KEY).results)
        return "another micro-batch gives the same numbers" if is_same else ""

    def _values(self, found: _Outcome, truth: Engine) -> str:
        """Compare results and gradients with those of ``truth``."""
        expected = self._run(truth, _KEY)
        if found.gradients.keys() != expected.gradients.keys():
            return f"gradients of {sorted(found.gradients)}, not of {sorted(expected.gradients)}"
        pairs = [(name, found.results[name], array) for name, array in expected.results.items()]
        pairs += [(f"the gradient of {name}", found.gradients[name], array) for name, array in expected.gradients.items()]
        for name, own, array in pairs:
            difference = _difference(own, array)
            if own.dtype != array.dtype:
                return f"{name} has element type {own.dtype}, not {array.dtype}"
            if difference > self.tolerance:
                return f"{name} differs by {difference:.1e} of its largest value"
        return ""

    def _slopes(self, found: _Outcome) -> str:
        """Compare gradients with finite differences along one direction."""
        if found.loss is None:
            return ""
        generator = np.random.default_rng(1)
        for name, gradient in found.gradients.items():
            direction = generator.standard_normal(gradient.shape)
            direction /= max(float(np.linalg.norm(direction)), 1e-12)
            ends = [self._run(self.engine, _KEY, {name: step * direction}).loss for step in (_STEP, -_STEP)]
            assert ends[0] is not None
            assert ends[1] is not None
            slope, expected = (ends[0] - ends[1]) / (2 * _STEP), float((gradient * direction).sum())
            size = max(abs(slope), float(np.linalg.norm(gradient)), 1e-3)
            if abs(slope - expected) > _SLOPE * size:
                return f"the gradient of {name} is {expected:.4g} along a direction in which the loss grows by {slope:.4g}"
        return ""

    def _run(self, engine: Engine, key: MicroBatch, moved: Mapping[str, Array] | None = None) -> _Outcome:
        graph = self.case.graph
        (piece,) = cut(graph, [(0, len(graph.ops))])
        trains = graph.mode == "train"
        runner = engine.open(piece, EngineSettings(training=trains))
        states = self.case.states
        if moved:
            states = {
                name: (array + moved[name]).astype(array.dtype) if name in moved else array for name, array in states.items()
            }
        runner.load(states)
        outputs = runner.forward(key, {}, self.case.inputs).outputs
        results = {name: np.array(outputs[name]) for name in self.case.results}
        if not trains:
            return _Outcome(results, None, {})
        runner.backward(key, {}, 1.0)
        runner.close_part(last=True)
        runner.finish_gradients({})
        return _Outcome(results, float(outputs["loss"]), runner.gradients())


def _difference(found: Array, expected: Array) -> float:
    """The largest difference over the largest value (0 for equal arrays; infinite for shapes that differ)."""
    if found.shape != expected.shape:
        return float("inf")
    if found.dtype.kind not in "fcV" and expected.dtype.kind not in "fcV":
        return 0.0 if np.array_equal(found, expected) else float("inf")
    wide = np.complex128 if "c" in (found.dtype.kind, expected.dtype.kind) else np.float64
    a, b = found.astype(wide), expected.astype(wide)
    if not a.size or np.array_equal(a, b, equal_nan=True):
        return 0.0
    with np.errstate(invalid="ignore"):
        apart = np.abs(np.where(a == b, 0, a - b)).max()
    largest = np.abs(b[np.isfinite(b)]).max(initial=0.0)
    return float("inf") if np.isnan(apart) else float(apart / max(float(largest), 1e-3))


def _equal(a: Mapping[str, Array], b: Mapping[str, Array]) -> bool:
    return all(np.array_equal(array, b[name]) for name, array in a.items())
