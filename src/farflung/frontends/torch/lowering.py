"""From the nodes of ``torch.export`` to draft operators: one pass, in program order, that brings the graph into SSA form.

Memory: a node whose fake value shares its storage with one of its arguments is a *view* of it. A write to a value replaces
it; a write to a view is scattered back into what it looks at, and other views are taken again when they are next read.
Writes to buffers become state updates. No-op casts and inactive dropout return their argument in eager mode too, so they
vanish: a reader of the cast is a reader of the value itself, which matters for the order in which gradients are added.
"""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.fx import GraphModule, Node

from farflung.errors import CaptureError
from farflung.frontends.torch.arguments import (
    Call,
    Ready,
    check_allowed,
    dtype_name,
    inactive,
    normalise,
    out_of_place,
    recast,
    tensor_spec,
    user_line,
    written_argument,
)
from farflung.frontends.torch.composites import decomposed
from farflung.frontends.torch.drafts import Draft
from farflung.frontends.torch.functions import Backward
from farflung.frontends.torch.gradients import gradient_call
from farflung.frontends.torch.opaque import BRANCH, GRADIENT
from farflung.frontends.torch.scatter import scatter_call
from farflung.graph.ir import Arg, DTypeArg, LocalRef, StateRef, ValueRef
from farflung.graph.opset import OPSET

__all__ = ["Lowering"]

_DROPPED = frozenset(
    {
        "_assert_tensor_metadata",
        "_assert_async",
        "_assert_scalar",
        "sym_constrain_range",
        "sym_constrain_range_for_size",
        "_functional_assert_async",
    }
)
_FRESH = frozenset({"lift_fresh_copy", "lift_fresh", "lift"})


@dataclass(slots=True)
class _Where:
    module: str = ""
    module_type: str = ""
    occurrence: int = 0
    no_grad: bool = False


@dataclass(slots=True)
class _View:
    parent: Node
    where: _Where
    version: int


@dataclass
class Lowering:
    """State of the pass.

    ``env``: node -> current reference; the caller puts the placeholders there (or links twins by ``same``).
    ``masks``: those of branches, by number (``mask_branches``).
    ``owners``: placeholder nodes of states -> name; those in ``buffers`` may be written.
    """

    owners: Mapping[Node, str]
    buffers: frozenset[str]
    drafts: list[Draft] = field(default_factory=list)
    env: dict[Node, Any] = field(default_factory=dict)
    same: dict[Node, Node] = field(default_factory=dict)
    views: dict[Node, _View] = field(default_factory=dict)
    versions: dict[Node, int] = field(default_factory=dict)
    updates: dict[str, ValueRef] = field(default_factory=dict)
    backwards: Sequence[Backward] = ()
    masks: dict[int, Any] = field(default_factory=dict)
    _calls: dict[str, list[tuple[str, ...]]] = field(default_factory=dict)

    def run(self, module: GraphModule, *, no_grad: bool = False) -> tuple[Any, ...]:
        """Lower all nodes of ``module`` (its placeholders are in ``env`` or ``same``); returns the output's references."""
        for node in module.graph.nodes:
            if node.op in ("placeholder", "get_attr"):
                continue
            if node.op == "output":
                return tuple(node.args[0])
            if node.op != "call_function":
                raise CaptureError(f"unknown node {node.op} {node.target}: the module can't be captured")
            self._call(module, node, no_grad)
        raise CaptureError("the exported graph has no output")

    # -- reading ---------------------------------------------------------------------------------------------------

    def _home(self, node: Node) -> Node:
        while node in self.same:
            node = self.same[node]
        return node

    def _root(self, node: Node) -> Node:
        node = self._home(node)
        while node in self.views:
            node = self._home(self.views[node].parent)
        return node

    def read(self, node: Node) -> Any:
        """The current reference of ``node`` (a tuple for several outputs); takes a stale view again."""
        node = self._home(node)
        view = self.views.get(node)
        current = self.versions.get(self._root(node), 0)
        if view is not None and view.version != current:
            if node.target is operator.getitem:
                self.env[node] = self.read(view.parent)[node.args[1]]
            else:
                self.env[node] = self._emit(node, normalise(node), view.where)
            view.version = current
        return self.env[node]

    def arg(self, value: Any) -> Arg:
        """Turn an fx argument into a graph argument."""
        if isinstance(value, Node):
            return self.read(value)  # type: ignore[no-any-return]
        if isinstance(value, Ready):
            return value.ref  # type: ignore[no-any-return]
        if isinstance(value, LocalRef):
            return value
        if isinstance(value, torch.dtype):
            return DTypeArg(dtype_name(value))
        if isinstance(value, (list, tuple)):
            return tuple(self.arg(item) for item in value)
        if isinstance(value, torch.memory_format):
            return str(value).removeprefix("torch.")
        if value is None or isinstance(value, (bool, int, float, str)):
            return value
        raise CaptureError(f"an operator takes a {type(value).__name__} ({value}), which a graph can't hold")

    # -- calls -----------------------------------------------------------------------------------------------------

    def _where(self, node: Node, *, no_grad: bool) -> _Where:
        stack = node.meta.get("nn_module_stack") or {}
        entries = [(key, path, kind) for key, (path, kind) in stack.items() if key.startswith("L__self__")]
        if not entries:
            return _Where(no_grad=no_grad)
        _, path, kind = entries[-1]
        kind = kind if isinstance(kind, str) else kind.__qualname__
        path = path.partition("@")[0]
        calls = self._calls.setdefault(path, [])
        keys = tuple(key for key, _, _ in entries)
        if keys not in calls:
            calls.append(keys)
        return _Where(path, kind.rpartition(".")[2], calls.index(keys), no_grad)

    def _call(self, module: GraphModule, node: Node, no_grad: bool) -> None:
        target = node.target
        if node in self.same:
            return
        if target is operator.getitem:
            self._getitem(node)
        elif isinstance(target, torch._ops.HigherOrderOperator):
            self._higher_order(module, node, no_grad)
        elif str(target) == BRANCH:
            self.masks[node.args[1]] = self.read(node.args[0])  # type: ignore[index,arg-type]
        elif isinstance(target, torch._ops.OpOverload):
            self._operator(node, target, no_grad)
        else:
            name = getattr(target, "__name__", str(target))
            path = self._where(node, no_grad=False).module or "(root)"
            raise CaptureError(
                f"the forward computes with sizes that the data decide ({name}, in module {path}{user_line(node)}): "
                "use static shapes (a fixed capacity, torch.where) instead"
            )

    def _getitem(self, node: Node) -> None:
        source, index = node.args
        assert isinstance(source, Node)
        self.env[node] = self.read(source)[index]
        source = self._home(source)
        if source in self.views:
            self.views[node] = _View(source, self.views[source].where, self.versions.get(self._root(source), 0))

    def _higher_order(self, module: GraphModule, node: Node, no_grad: bool) -> None:
        name = node.target.__name__  # type: ignore[union-attr]
        if name == "wrap_with_autocast":
            raise CaptureError(
                f"module {self._where(node, no_grad=False).module or '(root)'} uses torch.autocast: "
                'take it out and set precision="bf16" of train or of the job instead'
            )
        if name != "wrap_with_set_grad_enabled":
            raise CaptureError(f"the forward uses the control-flow operator {name}: write it with ordinary torch operators")
        enabled, body_node, *operands = node.args
        body = getattr(module, body_node.target)  # type: ignore[union-attr,arg-type]
        inner = [item for item in body.graph.nodes if item.op == "placeholder"]
        for placeholder, operand in zip(inner, operands, strict=True):
            self.same[placeholder] = operand  # type: ignore[assignment]
        self.env[node] = results = self.run(body, no_grad=not enabled)
        for user in list(node.users):
            if user.target is operator.getitem:
                self.same[user] = results[user.args[1]]  # type: ignore[index]

    def _operator(self, node: Node, target: torch._ops.OpOverload, no_grad: bool) -> None:
        base = target._schema.name.partition("::")[2]
        if base in _DROPPED:
            return
        if base in _FRESH:
            self.env[node] = self.read(node.args[0])  # type: ignore[arg-type]
            return
        call = recast(node) or normalise(node)
        if call.target == "same" or inactive(node):
            self.same[node] = node.args[0]  # type: ignore[assignment]
            return
        where = self._where(node, no_grad=no_grad)
        if str(target) == GRADIENT:
            self._gradient(node, where)
            return
        if base == "batch_norm" and self._batch_norm(node, where):
            return
        if target._schema.is_mutable:
            self._in_place(node, where)
            return
        if call.target not in OPSET and (parts := decomposed(node)) is not None:
            try:
                self._inline(node, parts, no_grad=no_grad)
            except CaptureError:
                check_allowed(call.target, where.module, node)  # name the operator that the user called
                raise
            return
        self.env[node] = self._emit(node, call, where)
        parent = _viewed(node)
        if parent is not None:
            self.views[node] = _View(parent, where, self.versions.get(self._root(parent), 0))

    def _gradient(self, node: Node, where: _Where) -> None:
        """``farflung.gradient``: a custom function's results with its own backward (see ``gradients``)."""
        inputs, outputs, saved, number = node.args
        backward = self.backwards[number]  # type: ignore[index]
        call = gradient_call(backward, inputs, outputs, saved, Lowering(owners={}, buffers=frozenset()))  # type: ignore[arg-type]
        constant = {draft.name for draft in self.drafts if draft.no_grad}
        places = {self.read(item): place for place, item in enumerate(inputs)}  # type: ignore[arg-type]

        def once(item: Node) -> Any:
            """Something that the operator only looks at: no gradient may flow through this read."""
            ref = self.read(item)
            if ref in places:
                return places[ref]
            if isinstance(ref, ValueRef) and ref.op in constant:
                return Ready(ref)
            return Ready(self._emit(item, Call("aten.detach.default", (item,), {}), where))

        args = (call.args[0], [once(item) for item in call.args[1]], [once(item) for item in call.args[2]], call.args[3])
        self.env[node] = self._emit(node, Call(call.target, args, {}), where)

    def _inline(self, node: Node, parts: GraphModule, *, no_grad: bool) -> None:
        """Lower the operators that a composite one is made of, in its place."""
        inner = [item for item in parts.graph.nodes if item.op == "placeholder"]
        for placeholder, operand in zip(inner, node.all_input_nodes, strict=True):
            self.same[placeholder] = operand
        results = self.run(parts, no_grad=no_grad)
        if isinstance(node.meta["val"], torch.Tensor):
            self.same[node] = results[0]
            return
        self.env[node] = results
        for user in list(node.users):
            if user.target is operator.getitem:
                self.same[user] = results[user.args[1]]  # type: ignore[index]

    def _emit(self, node: Node, call: Call, where: _Where, value: Any = None) -> Any:
        value = node.meta["val"] if value is None else value
        several = isinstance(value, (list, tuple))
        items = tuple(value) if several else (value,)
        check_allowed(call.target, where.module, node)
        outputs = tuple(tensor_spec(item, call.target, where.module) for item in items)
        draft = Draft(
            name=f"%{len(self.drafts)}",
            target=call.target,
            args=tuple(self.arg(item) for item in call.args),
            kwargs={key: self.arg(item) for key, item in call.kwargs.items()},
            outputs=outputs,
            module=where.module,
            module_type=where.module_type,
            occurrence=where.occurrence,
            no_grad=where.no_grad,
            draws=call.draws,
        )
        draft.name = f"%{len(self.drafts)}"  # reading arguments may have added operators
        self.drafts.append(draft)
        refs = tuple(ValueRef(draft.name, i) for i in range(len(outputs)))
        return refs if several else refs[0]

    # -- writes ----------------------------------------------------------------------------------------------------

    def _write(self, node: Node, ref: ValueRef, where: _Where) -> None:
        node = self._home(node)
        view = self.views.get(node)
        if view is None:
            if (name := self.owners.get(node)) is not None:
                self._update(name, ref, where)
            self.env[node] = ref
            self.versions[node] = self.versions.get(node, 0) + 1
            return
        parent = self._home(view.parent)
        if node.target is operator.getitem:
            parent = self._home(self.views[parent].parent)
        scattered = self._emit(parent, scatter_call(node, parent, Ready(ref), where.module), where)
        self._write(parent, scattered, where)
        self.env[node] = ref
        view.version = self.versions.get(self._root(node), 0)

    def _update(self, name: str, ref: ValueRef, where: _Where) -> None:
        if name not in self.buffers:
            raise CaptureError(
                f"module {where.module or '(root)'} changes {name} in place during the forward, and only buffers may change: "
                "register it as a buffer, or compute a new tensor"
            )
        self.updates[name] = ref

    def _in_place(self, node: Node, where: _Where) -> None:
        written = written_argument(node)
        if not isinstance(written, Node):
            raise CaptureError(f"{node.target} writes to something that is not a tensor of the graph")
        if isinstance(self.read(written), StateRef) and str(node.target) == "aten.detach_.default":
            self.same[node] = written
            return
        call, value, cast = out_of_place(node, where.module)
        ref = self._emit(node, call, where, value)
        if cast is not None:
            ref = self._emit(node, Call("aten.to.dtype", (Ready(ref), cast), {}), where)
        self._write(written, ref, where)
        self.same[node] = written

    def _batch_norm(self, node: Node, where: _Where) -> bool:
        x, weight, bias, mean, var, training, momentum, eps = node.args[:8]
        if not training or mean is None:
            return False
        if not isinstance(mean, Node) or not isinstance(var, Node):
            raise CaptureError(f"batch norm in module {where.module} has statistics that are not buffers")
        value = (node.meta["val"], mean.meta["val"], var.meta["val"])
        call = Call("farflung.batch_norm", (x, weight, bias, mean, var, momentum, eps), {})
        out, new_mean, new_var = self._emit(node, call, where, value)
        self.env[node] = out
        self._write(mean, new_mean, where)
        self._write(var, new_var, where)
        return True


def _viewed(node: Node) -> Node | None:
    value = node.meta["val"]
    first = value[0] if isinstance(value, (list, tuple)) and value else value
    if not isinstance(first, torch.Tensor):
        return None
    storage = first.untyped_storage()._cdata
    for source in node.all_input_nodes:
        other = source.meta.get("val")
        if isinstance(other, torch.Tensor) and other.untyped_storage()._cdata == storage:
            return source
    return None
