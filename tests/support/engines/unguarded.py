"""Programs with changed modules: without checks of arguments, an operator can crash for real, as one that nobody knows would."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from farflung.graph.ir import DTypeArg, Graph, Op, OpKind, State, StateKind, StateRef, TensorSpec, ValueRef

#: Python runs this at its start where it lies on PYTHONPATH: code that runs in modules after they are loaded.
_START = """
import importlib.abc, importlib.machinery, sys

CHANGES = {changes!r}

class Change(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name not in CHANGES:
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        load = spec.loader.exec_module
        def exec_module(module):
            load(module)
            exec(CHANGES[name], module.__dict__)
        spec.loader.exec_module = exec_module
        return spec

sys.meta_path.insert(0, Change())
"""
_LEAST = -(1 << 63)
SCALAR, ROW, WHOLE = (
    TensorSpec(dtype="float32", shape=()),
    TensorSpec(dtype="float32", shape=(4,)),
    TensorSpec(dtype="int64", shape=()),
)


def without_guards(place: Path) -> str:
    """A folder for PYTHONPATH: no guard of a division whose result does not fit."""
    return with_changes(place, {"farflung.engines.torch.guards": 'del _CHECKS["aten.div.Tensor_mode"]'})


def with_changes(place: Path, changes: Mapping[str, str]) -> str:
    """A folder for PYTHONPATH. ``changes``: module -> what runs in it after it is loaded."""
    place.mkdir(exist_ok=True)
    (place / "sitecustomize.py").write_text(_START.format(changes=dict(changes)))
    return str(place)


def crashing_graph(*, crashes: bool = True) -> Graph:
    """The sum of a row times a weight, plus an integer quotient; ``crashes``: it does not fit, and the processor traps."""
    kind = (("dtype", DTypeArg("int64")),)

    def op(name: str, target: str, *args: object, output: TensorSpec, **fields: object) -> Op:
        kwargs = fields.pop("kwargs", ())
        kind = fields.pop("kind", OpKind.NON_PARAMETRIC)
        return Op(name=name, kind=kind, target=target, args=args, kwargs=kwargs, outputs=(output,), **fields)  # type: ignore[arg-type]

    rounding = (("rounding_mode", "trunc"),)
    ops = (
        op("x", "farflung.input", output=ROW, kind=OpKind.PLACEHOLDER),
        op("product", "aten.mul.Tensor", ValueRef("x"), StateRef("weight"), output=ROW, kind=OpKind.PARAMETRIC),
        op("sum", "aten.sum.default", ValueRef("product"), output=SCALAR),
        op("least", "aten.full.default", (), _LEAST if crashes else 0, output=WHOLE, kwargs=kind),
        op("minus", "aten.full.default", (), -1, output=WHOLE, kwargs=kind),
        op("quotient", "aten.div.Tensor_mode", ValueRef("least"), ValueRef("minus"), output=WHOLE, kwargs=rounding),
        op("loss", "aten.add.Tensor", ValueRef("sum"), ValueRef("quotient"), output=SCALAR),
    )
    weight = State(name="weight", kind=StateKind.PARAMETER, spec=ROW, trainable=True)
    return Graph(name="crash", ops=ops, states=(weight,), outputs=(("loss", ValueRef("loss")),))
