"""What an optimizer costs: bytes of state and operations of an update. Plans, checks and estimates ask here."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping

from farflung.graph.ir import Graph, TensorSpec
from farflung.graph.opset import OpClass, info
from farflung.job.spec import OptimizerSpec
from farflung.optim.document import rules_of
from farflung.optim.eight_bits import BLOCK, packs
from farflung.optim.numbers import PREFIX
from farflung.optim.program import Rule, StateSlot, updated_dtype

__all__ = ["file_bytes", "state_bytes", "state_factor", "update_bytes", "update_flops"]

#: Bytes of state per byte of a parameter of an optimizer whose rules are not captured yet: at most, with PyTorch's defaults.
_COPIES = {
    **dict.fromkeys(("adadelta", "adam", "adamax", "adamw", "nadam", "radam", "rprop", "captured"), 2.0),
    **dict.fromkeys(("adafactor", "adagrad", "asgd", "lion", "muon", "rmsprop"), 1.0),
}
#: Bytes per element that an update in float32 takes beside the state: value and gradient, and random bits with what they make.
_DURING = {"master": 8, "stochastic": 16}
#: Bytes of a float32 state between steps, by ``OptimizerSpec.state``: over those of float32.
_STORED = {"float32": 1.0, "bf16": 0.5, "8bit": (1.0 + 4.0 / BLOCK) / 4.0}
#: A parameter with less than this share of the trained bytes does not decide the largest factor.
_SMALL = 0.01
#: Arrays of states that a parameter may have in a file, and bytes of a page.
_MOST_ARRAYS, _PAGE = 8, 4096
#: Operations of a matrix product that take as long as one elementwise operation of an update, which reads and writes memory:
#: 0.15 to 0.6 ns per element for SGD and 2.3 to 5.9 ns for AdamW, on a core that reaches 100 GFLOP/s.
_ELEMENTWISE = 20.0
#: The same per element of an update without rules.
_SGD_FLOPS, _FLOPS = 1.5 * _ELEMENTWISE, 14 * _ELEMENTWISE


#: Bytes of state and operations per element of each trained parameter, by optimizer and graph: plans ask again and again.
_TABLES: dict[tuple[OptimizerSpec, str], dict[str, tuple[float, float]]] = {}
_MOST_TABLES = 16


def state_bytes(spec: OptimizerSpec, graph: Graph, names: Collection[str]) -> float:
    """Bytes of optimizer state of the parameters ``names`` of ``graph``; those that get no gradient have none.

    With parameters that are updated in another type, or whose states are stored in 8 bits, also the bytes that the update of the
    largest one takes.
    """
    found = [name for name in names if name in graph.trained]
    during = [(0.0, 0.0), *(update_bytes(spec, graph, name) for name in found)]
    return sum(_held_bytes(spec, graph, name) for name in found) + max(one for one, _ in during) + max(one for _, one in during)


def update_bytes(spec: OptimizerSpec, graph: Graph, name: str) -> tuple[float, float]:
    """Bytes that the update of one trained parameter takes beside its state: in another type, and for its states in 8 bits."""
    declared = graph.state[name].spec
    wide = updated_dtype(spec, declared.dtype) != declared.dtype
    packed = spec.state == "8bit"
    return float(_DURING.get(spec.update, 0) * declared.numel * wide), 4.0 * _held_bytes(spec, graph, name) if packed else 0.0


def file_bytes(spec: OptimizerSpec, graph: Graph, names: Collection[str]) -> int:
    """Bytes of a file for the optimizer states of ``names``; each of their arrays begins a page."""
    return math.ceil(state_bytes(spec, graph, names)) + _MOST_ARRAYS * _PAGE * len(names)


def checkpoint_bytes(spec: OptimizerSpec, graph: Graph) -> float:
    """Bytes of optimizer state in a checkpoint of ``graph``."""
    return sum(_held_bytes(spec, graph, name) for name in graph.trained)


def _held_bytes(spec: OptimizerSpec, graph: Graph, name: str) -> float:
    return _table(spec, graph)[name][0] if spec.rules else _named_bytes(spec, graph.state[name].spec)


def state_factor(spec: OptimizerSpec, graph: Graph | None = None) -> float:
    """Bytes of optimizer state per byte of a trained parameter: SGD 0, with momentum 1, AdamW 2.

    With rules, which depend on shapes, the largest factor of a parameter of ``graph`` that is not small.
    """
    if graph is None or (not spec.rules and spec.update == "plain"):
        return _copies(spec)
    sizes = {name: graph.state[name].spec.nbytes for name in graph.trained}
    least = _SMALL * sum(sizes.values())
    held = {name: _held_bytes(spec, graph, name) for name, size in sizes.items() if size and size >= least}
    return max((nbytes / sizes[name] for name, nbytes in held.items()), default=0.0)


def _named_bytes(spec: OptimizerSpec, declared: TensorSpec) -> float:
    """Bytes of state of a parameter whose optimizer an engine has built in."""
    wide = updated_dtype(spec, declared.dtype) != declared.dtype
    size = declared.numel * 4 if wide else declared.nbytes
    return _copies(spec) * size + (size if wide and spec.update == "master" else 0)


def _copies(spec: OptimizerSpec) -> float:
    found = _COPIES[spec.name] if spec.name != "sgd" else float(spec.momentum > 0)
    others = (_COPIES.get(group.name, 1.0) for group in spec.groups if group.name is not None)
    return max(found, *others, 0.0) * _STORED[spec.state]


def update_flops(spec: OptimizerSpec, graph: Graph) -> float:
    """Operations of an update per trained element, on average, in those of a matrix product that take as long."""
    if not spec.rules:
        return _SGD_FLOPS if spec.name == "sgd" else _FLOPS
    table = _table(spec, graph)
    elements = sum(graph.state[name].spec.numel for name in table)
    return sum(graph.state[name].spec.numel * flops for name, (_, flops) in table.items()) / max(elements, 1)


def _table(spec: OptimizerSpec, graph: Graph) -> Mapping[str, tuple[float, float]]:
    key = (spec, graph.hash)
    found = _TABLES.get(key)
    if found is None:
        if len(_TABLES) >= _MOST_TABLES:
            _TABLES.clear()
        rules = rules_of(spec)
        assert rules is not None
        found = _TABLES[key] = {}
        for name in graph.trained:
            declared = graph.state[name].spec
            held, flops = _figures(rules.rule_of(spec, name, declared), declared.shape, spec.state)
            if spec.update == "master" and updated_dtype(spec, declared.dtype) != declared.dtype:
                held += 4 * declared.numel
            found[name] = held, flops
    return found


def _figures(rule: Rule | None, shape: tuple[int, ...], state: str) -> tuple[float, float]:
    if rule is None:
        return 0.0, _SGD_FLOPS
    lower = packs if state == "8bit" else StateSlot.narrows
    held = sum(slot.nbytes(shape) * (_STORED[state] if lower(slot, shape) else 1.0) for slot in rule.states)
    return held, _flops_of(rule, shape)


def _flops_of(rule: Rule, shape: tuple[int, ...]) -> float:
    """A product of a matrix with itself (Muon) takes twice its smaller side per element."""
    found = 0.0
    for step in rule.later[0].steps:
        if not step.target.startswith(PREFIX):
            kind = info(step.target).op_class
            found += 2.0 * min(shape, default=1) if kind is OpClass.GEMM else _ELEMENTWISE * (kind is not OpClass.VIEW)
    return max(found, _SGD_FLOPS)
