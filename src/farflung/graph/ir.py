"""The OP-DAG as data (FusionLLM section 3): operators, the states they read, and what a run returns.

The order of ``Graph.ops`` is the job's order of addition (docs/architecture.md, invariant 1): a topological order, in
which each placeholder stands directly before its first reader. A *position* is an index into ``Graph.ops``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from itertools import accumulate

from farflung.errors import GraphError
from farflung.graph.document import read_fields, write
from farflung.graph.nodes import (
    DTYPES,
    Arg,
    DTypeArg,
    InitStep,
    LocalRef,
    Op,
    OpKind,
    State,
    StateKind,
    StateRef,
    TensorSpec,
    Use,
    ValueRef,
    iter_refs,
)
from farflung.graph.opset import OPSET
from farflung.graph.validate import DEFAULT_LIMITS, Limits, validate
from farflung.ids import content_hash

__all__ = [
    "DTYPES",
    "Arg",
    "DTypeArg",
    "Graph",
    "InitStep",
    "LocalRef",
    "Op",
    "OpKind",
    "State",
    "StateKind",
    "StateRef",
    "TensorSpec",
    "Use",
    "ValueRef",
    "iter_refs",
]


@dataclass(frozen=True, kw_only=True)
class Graph:
    """An immutable OP-DAG.

    ``outputs`` maps names to values; ``"loss"`` (a scalar) is there whenever the graph can train.
    ``state_updates``: after a forward of a micro-batch, state ``name`` takes that value (batch-norm statistics).
    """

    name: str
    mode: str = "train"
    ops: tuple[Op, ...]
    states: tuple[State, ...]
    outputs: tuple[tuple[str, ValueRef], ...]
    state_updates: tuple[tuple[str, ValueRef], ...] = ()
    meta: tuple[tuple[str, str], ...] = field(default=())

    @cached_property
    def position(self) -> Mapping[str, int]:
        """Operator name -> position."""
        return {op.name: index for index, op in enumerate(self.ops)}

    @cached_property
    def state(self) -> Mapping[str, State]:
        """State name -> state."""
        return {state.name: state for state in self.states}

    def op(self, name: str) -> Op:
        """The operator called ``name``.

        Raises:
            GraphError: there is none.
        """
        try:
            return self.ops[self.position[name]]
        except KeyError:
            raise GraphError(f"graph {self.name!r} has no operator {name!r}") from None

    def spec(self, value: ValueRef) -> TensorSpec:
        """Shape and element type of ``value``."""
        return self.op(value.op).outputs[value.index]

    @cached_property
    def reads(self) -> tuple[tuple[tuple[str, ...], tuple[ValueRef, ...]], ...]:
        """For each position the names of the states and the values that its operator reads, as ``Op`` has them."""
        return tuple((tuple(op.states()), tuple(op.values())) for op in self.ops)

    @cached_property
    def users(self) -> Mapping[ValueRef, tuple[int, ...]]:
        """Value -> ascending positions of the operators that read it."""
        table: dict[ValueRef, list[int]] = {}
        for index, (_, values) in enumerate(self.reads):
            for value in dict.fromkeys(values):
                table.setdefault(value, []).append(index)
        return {value: tuple(positions) for value, positions in table.items()}

    @cached_property
    def uses(self) -> Mapping[str, tuple[Use, ...]]:
        """Parameter name -> its uses in program order (more than one: tied or shared)."""
        table: dict[str, list[Use]] = {}
        for op, (states, _) in zip(self.ops, self.reads, strict=True):
            for name in dict.fromkeys(states):
                table.setdefault(name, []).append(Use(name, op.name))
        return {name: tuple(uses) for name, uses in table.items()}

    @cached_property
    def needs_grad(self) -> frozenset[ValueRef]:
        """Values through which a gradient flows to a trainable parameter."""
        trainable = {state.name for state in self.states if state.trainable}
        found: set[ValueRef] = set()
        for op, (states, values) in zip(self.ops, self.reads, strict=True):
            known = OPSET.get(op.target)
            if op.no_grad or (known is not None and not known.differentiable):
                continue
            if not (any(name in trainable for name in states) or any(value in found for value in values)):
                continue
            carrying = range(len(op.outputs)) if known is None or known.grad_outputs is None else known.grad_outputs
            found.update(ValueRef(op.name, i) for i in carrying if op.outputs[i].continuous)
        return frozenset(found)

    @cached_property
    def grad_ops(self) -> frozenset[str]:
        """Operators through which the loss sends a gradient back (empty unless the graph can train)."""
        if self.mode != "train":
            return frozenset()
        found = {self.loss.op} if self.loss in self.needs_grad else set()
        for op, (_, values) in zip(reversed(self.ops), reversed(self.reads), strict=True):
            if op.name in found:
                found.update(value.op for value in values if value in self.needs_grad)
        return frozenset(found)

    @cached_property
    def gradient_uses(self) -> Mapping[str, tuple[Use, ...]]:
        """Trainable state -> the uses through which the loss sends a gradient to it, in program order.

        The tuple is empty for a parameter that no operator reads, or that only operators without a gradient read. Such a
        parameter behaves as in PyTorch, where its ``grad`` stays ``None``: no optimizer changes it.
        """
        return {
            state.name: tuple(use for use in self.uses.get(state.name, ()) if use.op in self.grad_ops)
            for state in self.states
            if state.trainable
        }

    @cached_property
    def trained(self) -> frozenset[str]:
        """The names of the trainable states that get a gradient."""
        return frozenset(name for name, uses in self.gradient_uses.items() if uses)

    @cached_property
    def unread(self) -> frozenset[str]:
        """The names of the states that no operator reads or updates; training leaves them as they are."""
        return frozenset(self.state) - self.uses.keys() - {name for name, _ in self.state_updates}

    @cached_property
    def gradient_sums(self) -> tuple[int, ...]:
        """Bytes of gradients that the operators before each position make: one for each use of a trainable parameter."""
        made = [0] * (len(self.ops) + 1)
        for name, uses in self.gradient_uses.items():
            for use in uses:
                made[self.position[use.op] + 1] += self.state[name].spec.nbytes
        return tuple(accumulate(made))

    @cached_property
    def made_gradients(self) -> Mapping[str, tuple[tuple[int, int], ...]]:
        """Trainable state -> position and bytes of each gradient that is made of it, one for each use that makes one."""
        return {
            name: tuple((self.position[use.op], self.state[name].spec.nbytes) for use in uses)
            for name, uses in self.gradient_uses.items()
        }

    @cached_property
    def tied(self) -> tuple[tuple[int, tuple[tuple[int, bool], ...]], ...]:
        """Trainable parameters with several uses: their bytes, and the position of each use with whether it makes a gradient."""
        uses = {state.name: self.uses.get(state.name, ()) for state in self.states if state.trainable}
        return tuple(
            (self.state[name].spec.nbytes, tuple((self.position[use.op], use.op in self.grad_ops) for use in own))
            for name, own in uses.items()
            if len(own) > 1
        )

    @cached_property
    def hash(self) -> str:
        """SHA-256 of the canonical document: equal for equal graphs, on every machine."""
        return content_hash(self.to_json().encode("ascii"))

    def to_json(self) -> str:
        """The canonical document (sorted keys, compact, ASCII; keyword arguments sorted by name)."""
        return write(self)

    @classmethod
    def from_json(cls, text: str | bytes, limits: Limits = DEFAULT_LIMITS) -> Graph:
        """Read and validate a document that nobody vouches for.

        Raises:
            GraphError: corrupt, too large, or against a rule; the text names the operator and the rule.
            VersionError: written by another version of the format.
        """
        graph = cls(**read_fields(text, limits))
        validate(graph, limits)
        return graph

    @property
    def serves(self) -> bool:
        """Whether this is a served language model: it gives logits, and no loss."""
        names = {name for name, _ in self.outputs}
        return "logits" in names and "loss" not in names

    @property
    def result(self) -> ValueRef:
        """The loss, or of a served model the logits.

        Raises:
            GraphError: the graph has neither.
        """
        return dict(self.outputs)["logits"] if self.serves else self.loss

    @property
    def loss(self) -> ValueRef:
        """The scalar that training minimizes.

        Raises:
            GraphError: the graph has no output called ``loss``.
        """
        for name, value in self.outputs:
            if name == "loss":
                return value
        raise GraphError(
            f"graph {self.name!r} has no output called 'loss': capture a module whose forward returns the scalar loss"
        )

    @property
    def placeholders(self) -> tuple[Op, ...]:
        """The inputs of one micro-batch, in program order (``meta["inputs"]`` has the call's order, comma-separated)."""
        return tuple(op for op in self.ops if op.kind is OpKind.PLACEHOLDER)

    @property
    def parameters(self) -> tuple[State, ...]:
        """The parameters in the module's order (the order in which clipping stacks norms)."""
        return tuple(state for state in self.states if state.kind is StateKind.PARAMETER)
