"""Branches on whether a mask has an element (``if mask.any():``), where both branches compute the same.

Code often drops a mask that masks nothing: ``if not mask.any(): mask = None``. A trace with shapes and without values takes the
branch of a mask that has an element. Further traces take the other branch, one for each set of masks that can be empty, and must
give the same operators except for ``masked_fill`` with these masks. For an empty mask, ``masked_fill`` returns its argument, and
its gradient is that of the result. The graph of the first trace therefore gives the bits of all branches. A fill with a value
that is trained counts as another operator: with an empty mask that value gets a gradient of zeros in one branch, and none in the
other one.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import torch
from torch._subclasses.fake_tensor import FakeTensor
from torch.overrides import TorchFunctionMode

from farflung.frontends.torch.drafts import Draft, alive, renamed
from farflung.graph.ir import Arg, StateRef, ValueRef
from farflung.graph.opset import OPSET

__all__ = ["MaskBranches", "sketch"]

#: One trace for each set of masks; more branches, such as those of ``while mask.any():``, fail as all branches on data do.
_MOST = 3
_ANY = (torch.Tensor.any, torch.any)
_RESHAPES = frozenset({"aten.view.default", "aten.reshape.default"})
_FILLS = frozenset({"aten.masked_fill.Scalar", "aten.masked_fill.Tensor"})


class MaskBranches(TorchFunctionMode):
    """Answers ``bool(mask.any())`` during a trace: true, except for the masks with the numbers ``empty``.

    The operator ``farflung_capture.branch`` marks each mask in the graph. ``count``: how many masks were asked for.
    """

    def __init__(self, empty: Collection[int] = ()) -> None:
        super().__init__()
        self.count = 0
        self._empty = empty
        #: The result of ``any`` by its id (kept alive, so that the id stays its own) and the mask.
        self._asked: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.__bool__ and id(args[0]) in self._asked and self.count < _MOST:
            number, self.count = self.count, self.count + 1
            torch.ops.farflung_capture.branch.default(self._asked[id(args[0])][1], number)
            return number not in self._empty
        result = func(*args, **(kwargs or {}))
        if func in _ANY and len(args) == 1 and not kwargs and isinstance(args[0], FakeTensor) and args[0].dtype is torch.bool:
            self._asked[id(result)] = (result, args[0])
        return result


def sketch(
    drafts: Sequence[Draft],
    ends: Sequence[Any],
    empty: Collection[Any] = (),
    *,
    constants: Mapping[str, Any] = MappingProxyType({}),
    trained: Collection[str] = (),
) -> list[Any]:
    """The operators behind the references ``ends`` in a form that two traces share.

    Without ``masked_fill`` by the masks ``empty``, which have no element, and without reshapes that a later one undoes.
    ``constants``: what they hold, by name, which says nothing. ``trained``: names of parameters.
    """
    env: dict[Any, Any] = {StateRef(name): content for name, content in constants.items()}
    learned: set[Any] = {StateRef(name) for name in trained}
    specs = {ValueRef(draft.name, i): spec for draft in drafts for i, spec in enumerate(draft.outputs)}
    views = set(empty)
    bases: dict[Any, Any] = {}
    kept: list[Draft] = []
    for draft in drafts:
        result, source = ValueRef(draft.name), draft.args[0] if draft.args else None
        known = OPSET[draft.target]
        if not draft.no_grad and not learned.isdisjoint(draft.refs()):
            learned |= {ValueRef(draft.name, index) for index in range(len(draft.outputs))}
        if source in views and known.view:
            views.add(result)
        if draft.target in _FILLS and draft.args[1] in views and draft.args[2] not in learned and not draft.no_grad:
            env[result] = env.get(source, source)
            continue
        args = tuple(_mapped(arg, env) for arg in draft.args)
        if draft.target in _RESHAPES and isinstance(args[0], ValueRef) and not draft.no_grad:
            base = bases.setdefault(result, bases.get(args[0], args[0]))
            if specs[base].shape == draft.outputs[0].shape:
                env[result] = base
                continue
            args = (base, *args[1:])
        kwargs = {key: _mapped(arg, env) for key, arg in draft.kwargs.items()}
        kept.append(_changed(draft, args, kwargs))
    results = [_mapped(ref, env) for ref in ends]
    drawing = [ValueRef(draft.name) for draft in kept if draft.draws]
    left = alive(kept, [*(ref for ref in results if isinstance(ref, ValueRef)), *drawing])
    names = {draft.name: draft.name if draft.target == "farflung.input" else str(i) for i, draft in enumerate(left)}
    lines = [_line(draft, names) for draft in left]
    return [*lines, tuple(renamed(ref, names) for ref in results)]


def _mapped(arg: Arg, env: Mapping[Any, Any]) -> Arg:
    if isinstance(arg, tuple):
        return tuple(_mapped(item, env) for item in arg)
    found: Arg = env.get(arg, arg) if isinstance(arg, ValueRef | StateRef) else arg
    return found


def _changed(draft: Draft, args: tuple[Arg, ...], kwargs: dict[str, Arg]) -> Draft:
    return Draft(
        name=draft.name,
        target=draft.target,
        args=args,
        kwargs=kwargs,
        outputs=draft.outputs,
        no_grad=draft.no_grad,
        draws=draft.draws,
    )


def _line(draft: Draft, names: Mapping[str, str]) -> Any:
    args = tuple(renamed(arg, names) for arg in draft.args)
    kwargs = tuple((key, renamed(arg, names)) for key, arg in sorted(draft.kwargs.items()))
    return draft.target, args, kwargs, draft.outputs, draft.no_grad, draft.draws
