"""What a node of ``torch.export`` calls, said in the graph's terms: names, arguments without devices, shapes, casts.

Devices, layouts and pinned memory are left out (the engine chooses them); a memory format stays as a string keyword.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch._prims_common import suggest_memory_format
from torch.fx import Node
from torch.fx.node import map_arg

from farflung.errors import CaptureError, GraphError
from farflung.frontends.torch.opaque import OPAQUE
from farflung.graph.ir import DTYPES, TensorSpec
from farflung.graph.opset import check_target

__all__ = [
    "RECURRENT",
    "Call",
    "Ready",
    "dtype_name",
    "inactive",
    "normalise",
    "out_of_place",
    "recast",
    "tensor_spec",
    "written_argument",
]

_TORCH = Path(torch.__file__).parent
_PLACED = frozenset({"device", "layout", "pin_memory"})
_DROPOUTS = frozenset({"dropout", "alpha_dropout", "feature_dropout", "feature_alpha_dropout"})
_CASTS = frozenset({"to", "_to_copy", "type_as"})
RECURRENT = frozenset({"lstm", "gru", "rnn_tanh", "rnn_relu"})
#: Operators that leave memory unset, and what takes their place: a graph never shows what lay in a worker's memory before.
_UNSET = {
    "aten.empty.memory_format": "aten.zeros.default",
    "aten.empty_like.default": "aten.zeros_like.default",
    "aten.empty_strided.default": "aten.zeros.default",
    "aten.new_empty.default": "aten.new_zeros.default",
    "aten.new_empty_strided.default": "aten.new_zeros.default",
}


@dataclass(frozen=True, slots=True)
class Ready:
    """An argument that is in the graph's terms already."""

    ref: Any


@dataclass(frozen=True, slots=True)
class Call:
    """A call in the graph's terms; tensors are still nodes (or ``Ready``). ``draws``: how often it draws random numbers."""

    target: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    draws: int = 0


def dtype_name(dtype: torch.dtype) -> str:
    """``float32`` for ``torch.float32``.

    Raises:
        CaptureError: the element type is not in the closed table.
    """
    name = str(dtype).removeprefix("torch.")
    if name not in DTYPES:
        raise CaptureError(f"element type {name} is not supported: use one of {', '.join(DTYPES)}")
    return name


def tensor_spec(value: Any, target: str, module: str) -> TensorSpec:
    """Shape and element type of a fake tensor.

    Raises:
        CaptureError: the shape depends on the data, or the value is no tensor.
    """
    if not isinstance(value, torch.Tensor):
        raise CaptureError(f"{target} in module {module or '(root)'} gives a {type(value).__name__}, and values must be tensors")
    if not all(isinstance(size, int) for size in value.shape):
        raise CaptureError(
            f"{target} in module {module or '(root)'} gives a shape that the data decide: "
            "use static shapes instead (torch.where, or a fixed capacity with topk)"
        )
    return TensorSpec(dtype=dtype_name(value.dtype), shape=tuple(value.shape))


def base_name(target: torch._ops.OpOverload) -> str:
    """``add_`` for ``aten::add_.Tensor``."""
    return target._schema.name.partition("::")[2]


def named_arguments(node: Node) -> dict[str, Any]:
    """All arguments that the node gives, by the schema's names."""
    schema = node.target._schema  # type: ignore[union-attr]
    named = {declared.name: value for declared, value in zip(schema.arguments, node.args, strict=False)}
    return named | dict(node.kwargs)


def user_line(node: Node) -> str:
    """The innermost line of code outside of PyTorch that made the node: ``, net.py line 12: y = det(x)`` (or nothing)."""
    frames = re.findall(r'File "([^"]+)", line (\d+), in [^\n]*(?:\n +([^\n]*))?', str(node.meta.get("stack_trace") or ""))
    own = [frame for frame in frames if not Path(frame[0]).is_relative_to(_TORCH)]
    if not own:
        return ""
    file, line, code = own[-1]
    return f", {Path(file).name} line {line}" + (f": {code.strip()[:80]}" if code.strip() else "")


#: What to do about operators that can't be in a graph.
_WORKAROUNDS = {
    "transformers.grouped_mm_fallback.default": 'build the model with experts_implementation="batched_mm"',
    "aten.masked_select.default": "use torch.where, or a fixed number of elements with topk",
    "aten.nonzero.default": "use torch.where with three arguments, or a fixed number of elements with topk",
}


def check_allowed(target: str, where: str, node: Node) -> None:
    """Refuse what the allow-list does not have.

    Raises:
        CaptureError: with the operator, the module path, the line of code and the remedy.
    """
    try:
        check_target(target)
    except GraphError as error:
        remedy = _WORKAROUNDS.get(target, "write it with other torch operators")
        raise CaptureError(
            f"module {where or '(root)'} uses {target}, which is not on the operator allow-list (in the forward"
            f"{user_line(node)}): {remedy} [{error}]"
        ) from error


def normalise(node: Node) -> Call:
    """The node's call without devices and with memory formats as keywords."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    by_keyword = False
    for declared, value in zip(target._schema.arguments, node.args, strict=False):
        if declared.name in _PLACED or isinstance(value, torch.memory_format):
            by_keyword = True
            if isinstance(value, torch.memory_format):
                kwargs[declared.name] = value
        elif by_keyword:
            kwargs[declared.name] = value
        else:
            args.append(value)
    kwargs |= {key: value for key, value in node.kwargs.items() if key not in _PLACED and value is not None}
    if (filled := _UNSET.get(str(target))) is not None:
        if "strided" in str(target):
            args = args[: -1 if "stride" not in kwargs else None]
            kwargs.pop("stride", None)
        if "zeros_like" not in filled:
            kwargs.pop("memory_format", None)
        return Call(filled, tuple(args), kwargs)
    return Call(OPAQUE.get(str(target), str(target)), tuple(args), kwargs, _draws(node))


def _draws(node: Node) -> int:
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    given = named_arguments(node)
    base = base_name(target).rstrip("_")
    if base in RECURRENT:  # dropout between the layers
        return given["num_layers"] - 1 if given["train"] and 0.0 < given["dropout"] < 1.0 else 0
    if torch.Tag.nondeterministic_seeded not in target.tags:
        return 0
    if base in _DROPOUTS:
        return int(bool(given["train"]) and 0.0 < given["p"] < 1.0)
    if base == "scaled_dot_product_attention":
        return int(given.get("dropout_p", 0.0) > 0.0)
    return int(given.get("training", False)) if base == "rrelu" else 1


def inactive(node: Node) -> bool:
    """Whether PyTorch returns the argument itself: a dropout that drops nothing, a flatten of one dimension."""
    base = base_name(node.target).rstrip("_")  # type: ignore[arg-type]
    given = named_arguments(node)
    if base in _DROPOUTS:
        return not given["train"] or given["p"] == 0.0
    if base == "flatten" and str(node.target) == "aten.flatten.using_ints":
        rank = given["self"].meta["val"].dim()
        return bool(rank and given.get("start_dim", 0) % rank == given.get("end_dim", -1) % rank)
    if base in ("contiguous", "resolve_conj", "resolve_neg", "real"):
        value = given["self"].meta["val"]
        return not value.is_complex() and (base != "contiguous" or value.is_contiguous(memory_format=_format(given)))
    return False


def _format(given: Mapping[str, Any]) -> torch.memory_format:
    found = given.get("memory_format")
    return found if isinstance(found, torch.memory_format) else torch.contiguous_format


def recast(node: Node) -> Call | None:
    """For casts and moves: what remains of them without devices (``same``: nothing, the argument itself); else None."""
    if base_name(node.target) not in _CASTS:  # type: ignore[arg-type]
        return None
    source = node.args[0]
    assert isinstance(source, Node)
    before, after = source.meta["val"], node.meta["val"]
    given = named_arguments(node)
    memory = given.get("memory_format")
    kwargs = {} if memory in (None, torch.preserve_format) else {"memory_format": memory}
    if before.dtype != after.dtype:
        return Call("aten.to.dtype", (source, after.dtype), kwargs)
    copies = base_name(node.target) == "_to_copy" or given.get("copy", False)  # type: ignore[arg-type]
    # PyTorch compares formats, not strides: a transposed tensor is in the contiguous format, and is not copied
    moves = bool(kwargs) and memory != suggest_memory_format(before)
    return Call("aten.clone.default", (source,), kwargs) if copies or moves else Call("same", (source,), {})


_SpecialCase = Callable[[Node, Mapping[str, Any], torch.Tensor], Call]


def _copy(node: Node, given: Mapping[str, Any], old: torch.Tensor) -> Call:
    source = given.get("src", given.get("value"))
    assert isinstance(source, Node)
    if source.meta["val"].shape != old.shape:
        return Call("aten.expand.default", (source, list(old.shape)), {})
    return Call("aten.clone.default", (source,), {})


_SPECIAL: dict[str, _SpecialCase] = {
    "aten.copy_.default": _copy,
    "aten.fill_.Tensor": _copy,
    "aten.fill_.Scalar": lambda node, given, _: Call("aten.full_like.default", (node.args[0], given["value"]), {}),
    "aten.zero_.default": lambda node, given, _: Call("aten.zeros_like.default", (node.args[0],), {}),
    "aten.bernoulli_.float": lambda node, given, _: Call("aten.bernoulli.p", (node.args[0], given.get("p", 0.5)), {}, 1),
    "aten.normal_.default": lambda node, given, _: Call(
        "aten.normal_functional.default", (node.args[0], given.get("mean", 0.0), given.get("std", 1.0)), {}, 1
    ),
}


def out_of_place(node: Node, where: str) -> tuple[Call, torch.Tensor, torch.dtype | None]:
    """The functional form of an in-place call, its fake value, and the element type to cast it to (None: it fits).

    Raises:
        CaptureError: the operator has no functional form.
    """
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    written = written_argument(node)
    assert isinstance(written, Node)
    old: torch.Tensor = written.meta["val"]
    if "out" in node.kwargs:
        return _without_out(node, where, old)
    if (special := _SPECIAL.get(str(target))) is not None:
        call = special(node, named_arguments(node), old)
        source = call.args[0].meta["val"].dtype
        return call, old.to(source), None if source == old.dtype else old.dtype
    packet = getattr(torch.ops.aten, base_name(target).removesuffix("_"), None)
    functional = getattr(packet, target._overloadname, None)
    mutable = [declared for declared in target._schema.arguments if declared.alias_info and declared.alias_info.is_write]
    if target.namespace != "aten" or functional is None or functional._schema.is_mutable or len(mutable) != 1:
        raise _no_form(node, where)
    args, kwargs = map_arg((node.args, dict(node.kwargs)), lambda item: item.meta["val"])
    with old.fake_mode:  # type: ignore[attr-defined]
        value = functional(*args, **kwargs)
    call = normalise(node)
    call = Call(str(functional), call.args, call.kwargs, call.draws)
    return call, value, None if value.dtype == old.dtype else old.dtype


def written_argument(node: Node) -> Any:
    """What a writing call writes to: its ``out``, or its first argument."""
    return node.kwargs.get("out", node.args[0] if node.args else None)


def _no_form(node: Node, where: str) -> CaptureError:
    return CaptureError(
        f"module {where or '(root)'} calls {node.target} (in the forward{user_line(node)}), which writes into a tensor and has "
        "no functional form: compute a new tensor instead"
    )


def _without_out(node: Node, where: str, old: torch.Tensor) -> tuple[Call, torch.Tensor, torch.dtype | None]:
    """``out_of_place`` of a call with ``out=``: the overload that takes the same arguments without it."""
    target = node.target
    assert isinstance(target, torch._ops.OpOverload)
    packet = getattr(torch.ops.aten, base_name(target))
    taken = [(item.name, str(item.type)) for item in target._schema.arguments if item.name != "out"]
    for name in packet.overloads():
        functional = getattr(packet, name)
        if [(item.name, str(item.type)) for item in functional._schema.arguments] == taken:
            break
    else:
        raise _no_form(node, where)
    kwargs = {key: value for key, value in node.kwargs.items() if key != "out"}
    args, given = map_arg((node.args, kwargs), lambda item: item.meta["val"])
    with old.fake_mode:  # type: ignore[attr-defined]
        value = functional(*args, **given)
    if not isinstance(value, torch.Tensor) or value.shape != old.shape:
        raise _no_form(node, where)
    return Call(str(functional), node.args, kwargs), value, None if value.dtype == old.dtype else old.dtype
