"""The probe of joining workers: engines pass, and other numbers are refused by the name of the worker."""

from __future__ import annotations

import pytest

from farflung.engines import get_engine
from farflung.engines.base import EngineSupport
from farflung.engines.probe import check_probe, probe_engine
from farflung.engines.reference.engine import ReferenceEngine
from farflung.errors import InputError


@pytest.mark.parametrize("name", ["torch", "reference"])
def test_the_engines_pass(name: str) -> None:
    found = probe_engine(get_engine(name), "cpu")
    exact = probe_engine(get_engine("reference64"), "cpu")
    assert found == pytest.approx(exact, rel=1e-5, abs=1e-5)
    assert len(found) > 10
    check_probe(found, "attic", f"{name} 1.0", "cpu")


@pytest.mark.parametrize("wrong", [0.0, 1.1, -1.0, float("nan"), float("inf")])
def test_other_numbers_are_refused(wrong: float) -> None:
    found = list(probe_engine(ReferenceEngine(), "cpu"))
    found[3] = found[3] * wrong
    text = (
        r"^worker 'attic' is refused: the gradients that its engine \(torch 2\.9\.0\) computes deviate by .* of their norm, at "
    )
    text += r"most 0\.0001 is allowed; install the engine again, or use another --engine or --device$"
    with pytest.raises(InputError, match=text):
        check_probe(found, "attic", "torch 2.9.0", "cpu")


def test_accelerators_may_deviate_more() -> None:
    found = list(probe_engine(ReferenceEngine(), "cpu"))
    found[0] *= 1.001
    check_probe(found, "attic", "torch 2.9.0", "cuda")
    with pytest.raises(InputError, match=r"deviate by 1\.0e-03 of their norm"):
        check_probe(found, "attic", "torch 2.9.0", "cpu")


def test_fewer_numbers_are_refused() -> None:
    with pytest.raises(InputError, match="deviate by inf of their norm"):
        check_probe(probe_engine(ReferenceEngine(), "cpu")[:-1], "attic", "torch 2.9.0", "cpu")


def test_an_engine_that_lacks_an_operator_is_not_probed() -> None:
    class Small(ReferenceEngine):
        def support(self, device: str) -> EngineSupport:
            del device
            return EngineSupport(operators=frozenset({"farflung.input"}), precisions=("float32",))

    assert probe_engine(Small(), "cpu") == ()
    check_probe((), "attic", "strange 1", "cpu")
