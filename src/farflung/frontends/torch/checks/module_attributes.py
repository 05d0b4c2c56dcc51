"""Refuse a forward that changes plain attributes or parts of its module, where a change would alter the next step.

A graph is traced once, so a counter in the forward (``self.n += 1``) would keep its first value forever. The attributes are
compared before and after the trace. If the forward changed an attribute, the module is traced once more with the changed
attributes. The forward is accepted only if the second trace changes nothing further and gives the same graph, as for a forward
that stores the size of its input, or that replaces a part at the start of the first step. The module is as before afterwards.
"""

from __future__ import annotations

import functools
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any
from unittest.mock import patch

import torch
from torch import nn

from farflung.errors import CaptureError
from farflung.foreign_code import translated
from farflung.graph.ir import Graph

__all__ = ["refuse_changed_attributes"]

#: What PyTorch itself stores in every module.
_OWN = frozenset(vars(nn.Module()))
_SCALARS = (bool, int, float, complex, str, bytes, type(None))
_CONTAINERS = (list, tuple, dict, set, frozenset, deque)

_Name = tuple[str, str]


def refuse_changed_attributes(module: nn.Module, trace: Callable[[], Graph]) -> Graph:
    """Return the graph that ``trace`` (of ``module``) returns, and restore the attributes of ``module``.

    Raises:
        CaptureError: the forward changes a plain attribute, and the next forward would differ.
    """
    before = _Attributes(module)
    try:
        first, middle = _observed(module, trace)
        replaced = before.replaced(middle)
        changed = [*replaced, *before.changed(middle, identity=True)]
        if not changed:
            return first
        middle.restore(module, stand_ins=True)
        report = functools.partial(_report_part if replaced else _report, *changed[0])
        with translated(lambda error: CaptureError(report())):  # a forward that fails now depends on its attributes
            second, after = _observed(module, trace)
        further = [*middle.replaced(after), *middle.changed(after, identity=False)]
        if further and not replaced:
            raise CaptureError(_report(*further[0]))
        # compare texts: a constant may be NaN, which is not equal to itself
        if further or _computation(first).hash != _computation(second).hash:
            raise CaptureError(report())
        return second
    finally:
        before.restore(module)


def _computation(graph: Graph) -> Graph:
    """``graph`` without the names of the parts that its operators come from: a part that a forward makes has no name yet."""
    return replace(graph, ops=tuple(replace(op, module="", module_type="", occurrence=0) for op in graph.ops))


def _observed(module: nn.Module, trace: Callable[[], Graph]) -> tuple[Graph, _Attributes]:
    """The result of ``trace``, and the attributes at the end of the forward (``torch.export`` restores some later)."""
    forward, found = module.forward, []

    @functools.wraps(forward)
    def observed(*args: Any, **kwargs: Any) -> Any:
        result = forward(*args, **kwargs)
        found.append(_Attributes(module))
        return result

    with patch.object(module, "forward", observed):
        result = trace()
    return result, found[-1]


def _report_part(path: str, name: str) -> str:
    return (
        f"the forward of module {path or '(root)'} replaces self.{name}, and its first step differs from those after it: "
        "call the module once on a batch, and pass it afterwards"
    )


def _report(path: str, name: str) -> str:
    return (
        f"the forward of module {path or '(root)'} changes self.{name}, and every step would use its first value: "
        f"use a registered buffer (self.register_buffer({name!r}, torch.tensor(...)), changed in place)"
    )


@dataclass(frozen=True, slots=True)
class _Attribute:
    """One attribute: its object, and its content at one time."""

    value: Any
    content: Any


class _Attributes:
    """The parts of a module, and their attributes that hold plain values, tensors, or containers."""

    def __init__(self, module: nn.Module) -> None:
        self._found: dict[_Name, _Attribute] = {
            (path, name): _Attribute(value, _content(value)) for path, name, value in _watched(module)
        }
        self._children = [(path, part, dict(part._modules)) for path, part in module.named_modules()]

    def replaced(self, later: _Attributes) -> list[_Name]:
        """The names of parts that are other ones in ``later``."""
        mine, others = ({(path, name): child for path, _, children in side._children for name, child in children.items()}
                        for side in (self, later))  # fmt: skip
        return [name for name in dict.fromkeys([*mine, *others]) if mine.get(name) is not others.get(name)]

    def changed(self, later: _Attributes, *, identity: bool) -> list[_Name]:
        """The names whose content differs in ``later``; ``identity``: another tensor counts as a change."""
        names = dict.fromkeys([*self._found, *later._found])
        return [name for name in names if self._key(name, identity) != later._key(name, identity)]

    def restore(self, module: nn.Module, *, stand_ins: bool = False) -> None:
        """Give ``module`` these parts and attributes.

        ``stand_ins``: other tensors, whose values nothing else has, replace tensors.
        """
        for _, part, children in self._children:
            if part._modules != children:
                part._modules.clear()
                part._modules.update(children)
        parts = dict(module.named_modules())
        for path, name, _ in list(_watched(module)):
            if (path, name) not in self._found:
                del parts[path].__dict__[name]
        for (path, name), attribute in self._found.items():
            if path in parts:
                parts[path].__dict__[name] = _rebuilt(attribute.value, attribute.content, stand_ins)

    def _key(self, name: _Name, identity: bool) -> Any:
        return _key(self._found[name].content, identity) if name in self._found else None


def _watched(module: nn.Module) -> Iterator[tuple[str, str, Any]]:
    for path, part in module.named_modules():
        for name, value in vars(part).items():
            if name not in _OWN and isinstance(value, (*_SCALARS, *_CONTAINERS, torch.Tensor)):
                yield path, name, value


def _content(value: Any, above: tuple[int, ...] = ()) -> Any:
    """What ``value`` holds now: a list of (item, its content) for a container, the value itself otherwise."""
    if not isinstance(value, _CONTAINERS) or id(value) in above:
        return value
    inside = (*above, id(value))
    # equal sets can be in different orders, as a set is after it was filled again
    ordered = sorted(value, key=repr) if isinstance(value, (set, frozenset)) else value
    items = value.items() if isinstance(value, dict) else ((None, item) for item in ordered)
    return [(key, item, _content(item, inside)) for key, item in items]


def _key(content: Any, identity: bool) -> Any:
    """Something comparable that differs if the content does."""
    if isinstance(content, list):
        return [(repr(key), type(item).__name__, _key(inner, identity)) for key, item, inner in content]
    if isinstance(content, torch.Tensor):
        return "tensor", id(content) if identity else tuple(content.shape)
    return (type(content).__name__, repr(content)) if isinstance(content, _SCALARS) else "object"


def _rebuilt(value: Any, content: Any, stand_ins: bool) -> Any:
    """``value`` with its earlier content; containers are changed in place, because others may refer to them."""
    if stand_ins and isinstance(value, torch.Tensor):
        return torch.full(tuple(value.shape), torch.nan, dtype=value.dtype if value.is_floating_point() else torch.float32)
    if not isinstance(value, _CONTAINERS) or not isinstance(content, list):
        return value
    items = [(key, _rebuilt(item, inner, stand_ins)) for key, item, inner in content]
    if isinstance(value, dict):
        if len(value) == len(items) and all(key in value and value[key] is item for key, item in items):
            return value  # it may allow no change, as configurations of diffusers
        value.clear()
        value.update(items)
    elif isinstance(value, set):
        value.clear()
        value.update(item for _, item in items)
    elif isinstance(value, (list, deque)):
        value.clear()
        value.extend(item for _, item in items)
    return value
