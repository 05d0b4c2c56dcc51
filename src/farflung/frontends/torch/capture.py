"""``capture``: from a PyTorch module to an OP-DAG.

The module runs once under fake tensors (``torch.export``, training form, nothing decomposed); the graph that comes out is
brought into SSA form (``lowering``), stripped of what nobody reads, numbered and named. Nothing of the module's code is kept.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from itertools import combinations
from operator import attrgetter
from typing import Any

import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensor, FakeTensorMode
from torch.export.graph_signature import InputKind, InputSpec, TensorArgument
from torch.fx import Node
from torch.utils import _pytree as pytree

from farflung.errors import CaptureError
from farflung.frontends.torch.arguments import tensor_spec
from farflung.frontends.torch.checks.module_attributes import refuse_changed_attributes
from farflung.frontends.torch.drafts import Draft, Ends, assemble
from farflung.frontends.torch.export import Exported, fake_states, read_example, run_export
from farflung.frontends.torch.lowering import Lowering
from farflung.frontends.torch.patches import PATCHES
from farflung.frontends.torch.programs import Programs, tensor_bytes
from farflung.frontends.torch.recorder import Recording, record
from farflung.frontends.torch.values.mask_branches import MaskBranches, sketch
from farflung.graph.ir import Graph, InitStep, State, StateKind, StateRef, ValueRef

__all__ = ["capture"]

_KINDS = {InputKind.PARAMETER: StateKind.PARAMETER, InputKind.BUFFER: StateKind.BUFFER}

ModuleOrFactory = nn.Module | Callable[[], nn.Module] | Recording


def capture(
    module_or_factory: ModuleOrFactory,
    example_inputs: Sequence[Any] | Mapping[str, Any],
    *,
    name: str | None = None,
    mode: str = "train",
    outputs: Sequence[str] | None = None,
) -> Graph:
    """Capture one micro-batch of ``module(*example_inputs)``. One thread of a process captures at a time.

    Args:
        module_or_factory: a module with real or meta weights, or a function that makes one (it runs under the recorder of
            initializers, no memory is taken, and the graph carries the initializer programs), or what ``record`` or
            ``record_initializers`` gave.
        example_inputs: a tuple of tensors or arrays (positional) or a dict (by keyword); values don't matter.
        name: the graph's name (default: the module's class).
        mode: ``"train"`` takes the module as it is (each part in its own train or eval state), ``"eval"`` switches all of it
            to evaluation for the capture.
        outputs: which results to keep, by name: for a forward that returns a dict (or a transformers output) the keys, for a
            tensor or tuple the names given in order. Default: ``("loss",)``, or what there is in eval mode.

    Raises:
        CaptureError: the module can't become a graph; the text says what to change.
    """
    if mode not in ("train", "eval"):
        raise CaptureError(f"mode must be 'train' or 'eval', got {mode!r}")
    recording = module_or_factory
    if not isinstance(recording, (nn.Module, Recording)):
        recording = record(recording)
    programs = Programs(recording) if isinstance(recording, Recording) else None
    module = recording.module if isinstance(recording, Recording) else recording
    fake_mode = recording.mode if isinstance(recording, Recording) else None
    fake_mode = fake_mode or FakeTensorMode(allow_non_fake_inputs=True)

    def build(branches: MaskBranches | None = None) -> _Build:
        with fake_states(module, fake_mode):
            exported = run_export(module, read_example(example_inputs, fake_mode), branches)
        return _Build(module, exported, programs).run(mode, outputs)

    def trace() -> Graph:
        return _of_both_branches(build).graph(name or type(module).__name__, mode)

    with PATCHES:
        training = {part: part.training for part in module.modules()}
        try:
            if mode == "eval":
                module.eval()
            return refuse_changed_attributes(module, trace)
        finally:
            for part, flag in training.items():
                part.training = flag


def _of_both_branches(build: Callable[[MaskBranches | None], _Build]) -> _Build:
    """The graph of the branches for masks that have an element, if it serves for empty masks too, else that without branches.

    Raises:
        CaptureError: the module can't be traced.
    """
    asked = MaskBranches()
    try:
        found = build(asked)
        masks = range(asked.count)
        sets = [empty for count in masks for empty in combinations(masks, count + 1)]
        if all(build(MaskBranches(empty)).sketch() == found.sketch(empty) for empty in sets):
            return found
    except CaptureError:
        if not asked.count:
            raise
    return build(None)


class _Build:
    """The steps from an exported program to a graph."""

    def __init__(self, module: nn.Module, exported: Exported, programs: Programs | None) -> None:
        self.module = module
        self.program = program = exported.program
        self.programs = programs
        self.born = programs.all() if programs is not None else {}
        self.nodes = {node.name: node for node in program.graph.nodes if node.op == "placeholder"}
        self.names = _state_names(module)
        self.constants: dict[str, State] = {}
        self.inputs: list[str] = []
        buffers = frozenset(key for key, _ in module.named_buffers())
        self.lowering = Lowering(owners={}, buffers=buffers, backwards=exported.backwards)
        self.ends = Ends(outputs={}, updates={}, inputs=self.inputs)

    def run(self, mode: str, outputs: Sequence[str] | None) -> _Build:
        """Lower the program."""
        lowering = self.lowering
        owners: dict[Node, str] = {}
        first: dict[str, Node] = {}
        for spec in self.program.graph_signature.input_specs:
            self._input(spec, lowering, owners, first)
        lowering.owners = owners
        results = lowering.run(self.program.graph_module)
        values = self._outputs(results, lowering, mode, outputs)
        self.ends = Ends(outputs=values, updates=lowering.updates if mode == "train" else {}, inputs=self.inputs)
        return self

    def graph(self, name: str, mode: str) -> Graph:
        """The graph of what has been lowered."""
        return assemble(name=name, mode=mode, drafts=self.lowering.drafts, states=self._states(), ends=self.ends)

    def sketch(self, empty: Sequence[int] = ()) -> list[Any]:
        """What has been lowered in a comparable form; ``empty``: numbers of masks that have no element."""
        masks = self.lowering.masks
        ends = [*self.ends.outputs.values(), *self.ends.updates.values(), *(masks[number] for number in sorted(masks))]
        constants = {name: (state.spec, state.init, state.data) for name, state in self.constants.items()}
        trained = {self.names[key] for key, parameter in self.module.named_parameters() if parameter.requires_grad}
        lines = sketch(self.lowering.drafts, ends, [masks[number] for number in empty], constants=constants, trained=trained)
        return [tuple(self.ends.outputs), tuple(self.ends.updates), *lines]

    def _input(self, spec: InputSpec, lowering: Lowering, owners: dict[Node, str], first: dict[str, Node]) -> None:
        if not isinstance(spec.arg, TensorArgument):
            return
        node = self.nodes[spec.arg.name]
        if spec.kind is InputKind.USER_INPUT:
            where = tensor_spec(node.meta["val"], "input", node.name)
            lowering.drafts.append(Draft.input(node.name, where))
            lowering.env[node] = ValueRef(node.name)
            self.inputs.append(node.name)
            return
        assert spec.target is not None
        if spec.kind in _KINDS:
            name = self.names[spec.target]
        elif spec.kind is InputKind.CONSTANT_TENSOR:
            name = self._constant(spec.target)
        else:
            raise CaptureError(f"the module holds {spec.target}, a {spec.kind.name.lower()}: keep only tensors in it")
        if name in first:
            lowering.same[node] = first[name]
            return
        first[name] = node
        owners[node] = name
        lowering.env[node] = StateRef(name)

    def _constant(self, target: str) -> str:
        value = self.program.constants[target]
        if not isinstance(value, torch.Tensor):
            raise CaptureError(f"the module holds {target}, a {type(value).__name__}: keep only tensors in it")
        spec = tensor_spec(value, "constant", target)
        born: tuple[InitStep, ...] | bytes
        if isinstance(value, FakeTensor) and self.programs is not None:
            born = self.programs.of(target, attrgetter(target)(self.module))
        else:
            born = tensor_bytes(value, target)
        self.constants[target] = State(name=target, kind=StateKind.CONSTANT, spec=spec, **_birth(born))
        return target

    def _outputs(
        self, results: Sequence[Any], lowering: Lowering, mode: str, wanted: Sequence[str] | None
    ) -> dict[str, ValueRef]:
        signature = self.program.graph_signature.output_specs
        user = [node for node, spec in zip(results, signature, strict=True) if spec.kind.name == "USER_OUTPUT"]
        tree = pytree.tree_unflatten(user, self.program.call_spec.out_spec)
        values = {}
        for name, node in _choose(tree, mode, wanted).items():
            ref = lowering.read(node)
            if not isinstance(ref, ValueRef):
                raise CaptureError(f"output {name!r} is a parameter or an input itself: return something computed from it")
            values[name] = ref
        if mode == "train":
            _check_loss(values, {draft.name: draft for draft in lowering.drafts})
        return values

    def _states(self) -> list[State]:
        parameters, buffers = dict(self.module.named_parameters()), dict(self.module.named_buffers())
        aliases: dict[str, list[str]] = {}
        for alias, name in self.names.items():
            if alias != name:
                aliases.setdefault(name, []).append(alias)
        temporary = {
            f"{path}.{key}" if path else key
            for path, part in self.module.named_modules()
            for key in part._non_persistent_buffers_set
        }
        found = []
        for name, tensor in (parameters | buffers).items():
            parameter = name in parameters
            if tensor.is_complex():
                raise CaptureError(
                    f"{name} holds complex numbers, and weights and buffers can't: keep real and imaginary parts, and use "
                    "torch.view_as_complex in the forward"
                )
            found.append(
                State(
                    name=name,
                    kind=StateKind.PARAMETER if parameter else StateKind.BUFFER,
                    spec=tensor_spec(tensor, "state", name),
                    trainable=parameter and tensor.requires_grad,
                    persistent=name not in temporary,
                    aliases=tuple(aliases.get(name, ())),
                    **_birth(self.born.get(name, ())),
                )
            )
        return [*found, *self.constants.values()]


def _state_names(module: nn.Module) -> dict[str, str]:
    """Each fully qualified name of a parameter or buffer -> the first name of the same tensor."""
    first: dict[int, str] = {}
    names: dict[str, str] = {}
    for pairs in (module.named_parameters(remove_duplicate=False), module.named_buffers(remove_duplicate=False)):
        for name, tensor in pairs:
            names[name] = first.setdefault(id(tensor), name)
    return names


def _birth(born: tuple[InitStep, ...] | bytes) -> dict[str, Any]:
    return {"data": born} if isinstance(born, bytes) else {"init": born}


def _choose(tree: Any, mode: str, wanted: Sequence[str] | None) -> dict[str, Node]:
    if isinstance(tree, Mapping):
        named = {str(key): value for key, value in tree.items()}
    elif isinstance(tree, (list, tuple)):
        labels = wanted or (["loss"] if mode == "train" else [f"output{i}" if i else "output" for i in range(len(tree))])
        named = dict(zip(labels, tree, strict=False))
    else:
        scalar = isinstance(tree, Node) and tree.meta["val"].dim() == 0 and tree.meta["val"].is_floating_point()
        named = {wanted[0] if wanted else "loss" if mode == "train" or scalar else "output": tree}
    tensors = {key: value for key, value in named.items() if isinstance(value, Node)}
    if wanted is None:
        wanted = ["loss"] if mode == "train" else list(tensors)
    missing = [key for key in wanted if key not in tensors]
    if missing or not wanted:
        known = ", ".join(tensors) or "none"
        raise CaptureError(
            f"the forward gives no output called {', '.join(missing) or 'anything'} (it gives {known}): "
            "return the scalar loss, or a dict with the key 'loss'"
        )
    return {key: tensors[key] for key in wanted}


def _check_loss(values: Mapping[str, ValueRef], drafts: Mapping[str, Draft]) -> None:
    if "loss" not in values:
        raise CaptureError(f"a training graph needs an output called 'loss', got {', '.join(values)}")
    spec = drafts[values["loss"].op].outputs[values["loss"].index]
    if spec.shape != () or not spec.floating:
        raise CaptureError(
            f"the loss must be a floating-point scalar, but the forward returns {spec.dtype} of shape {spec.shape}: "
            "return a scalar, such as loss.mean(); of several results, the first or the one under the key 'loss' is the loss"
        )
