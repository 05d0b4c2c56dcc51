"""The last steps of a capture: number what is random, drop what nobody reads, place the inputs, name the operators."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate

from farflung.graph.ir import Arg, Graph, Op, OpKind, State, StateKind, StateRef, TensorSpec, ValueRef, iter_refs

__all__ = ["Draft", "Ends", "alive", "assemble", "renamed"]


@dataclass(slots=True, kw_only=True)
class Draft:
    """An operator under construction; ``name`` is temporary except for inputs. ``draws``: how often it draws random
    numbers."""

    name: str
    target: str
    args: tuple[Arg, ...] = ()
    kwargs: dict[str, Arg]
    outputs: tuple[TensorSpec, ...]
    module: str = ""
    module_type: str = ""
    occurrence: int = 0
    no_grad: bool = False
    draws: int = 0

    @classmethod
    def input(cls, name: str, spec: TensorSpec) -> Draft:
        """A placeholder."""
        return cls(name=name, target="farflung.input", kwargs={}, outputs=(spec,))

    def refs(self) -> list[ValueRef | StateRef]:
        """What it reads, in argument order."""
        found = iter_refs((self.args, tuple(self.kwargs.values())))
        return [ref for ref in found if isinstance(ref, (ValueRef, StateRef))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """What a graph gives and takes: ``outputs`` by name, ``updates`` of states, ``inputs``: all arguments in call order, read or
    not (``Graph.meta["inputs"]``)."""

    outputs: Mapping[str, ValueRef]
    updates: Mapping[str, ValueRef]
    inputs: Sequence[str]


def assemble(*, name: str, mode: str, drafts: Sequence[Draft], states: Sequence[State], ends: Ends) -> Graph:
    """Make the graph."""
    outputs, updates = ends.outputs, ends.updates
    drawn = accumulate((draft.draws for draft in drafts), initial=0)
    numbers = {draft.name: first for draft, first in zip(drafts, drawn, strict=False) if draft.draws}
    drawing = [ValueRef(draft.name) for draft in drafts if draft.draws]
    kept = _placed(alive(drafts, [*outputs.values(), *updates.values(), *drawing]))
    names = _names(kept)
    parameters = {state.name for state in states if state.kind is StateKind.PARAMETER}
    loss = outputs.get("loss")
    ops = tuple(
        Op(
            name=names[draft.name],
            kind=_kind(draft, parameters, is_loss=loss is not None and draft.name == loss.op),
            target=draft.target,
            args=tuple(renamed(arg, names) for arg in draft.args),
            kwargs=tuple((key, renamed(arg, names)) for key, arg in sorted(draft.kwargs.items())),
            outputs=draft.outputs,
            module=draft.module,
            module_type=draft.module_type,
            occurrence=draft.occurrence,
            no_grad=draft.no_grad,
            rng=numbers.get(draft.name),
        )
        for draft in kept
    )
    read = {state for op in ops for state in op.states()} | set(updates)

    def is_kept(state: State) -> bool:
        return state.name in read or (state.persistent and state.kind is not StateKind.CONSTANT)

    return Graph(
        name=name,
        mode=mode,
        ops=ops,
        states=tuple(filter(is_kept, states)),
        outputs=tuple((key, ValueRef(names[ref.op], ref.index)) for key, ref in outputs.items()),
        state_updates=tuple((key, ValueRef(names[ref.op], ref.index)) for key, ref in updates.items()),
        meta=(("inputs", ",".join(ends.inputs)),),
    )


def _kind(draft: Draft, parameters: set[str], *, is_loss: bool) -> OpKind:
    if draft.target == "farflung.input":
        return OpKind.PLACEHOLDER
    if is_loss:
        return OpKind.LOSS
    if any(isinstance(ref, StateRef) and ref.name in parameters for ref in draft.refs()):
        return OpKind.PARAMETRIC
    return OpKind.NON_PARAMETRIC


def alive(drafts: Sequence[Draft], roots: Sequence[ValueRef]) -> list[Draft]:
    """What the outputs and state updates need, and what draws random numbers (a plain loop draws them all)."""
    wanted = {ref.op for ref in roots}
    kept = []
    for draft in reversed(drafts):
        if draft.name in wanted:
            kept.append(draft)
            wanted.update(ref.op for ref in draft.refs() if isinstance(ref, ValueRef))
    return kept[::-1]


def _placed(drafts: Sequence[Draft]) -> list[Draft]:
    """Each placeholder directly before its first reader."""
    waiting = {draft.name: draft for draft in drafts if draft.target == "farflung.input"}
    placed: list[Draft] = []
    for draft in drafts:
        if draft.target == "farflung.input":
            continue
        placed += [waiting.pop(ref.op) for ref in draft.refs() if isinstance(ref, ValueRef) and ref.op in waiting]
        placed.append(draft)
    return placed + list(waiting.values())


def _names(drafts: Sequence[Draft]) -> dict[str, str]:
    """``linear``, ``linear_1`` ... by operator, in program order; inputs keep their names."""
    names = {draft.name: draft.name for draft in drafts if draft.target == "farflung.input"}
    taken = set(names.values())
    counts: Counter[str] = Counter()
    for draft in drafts:
        if draft.name in names:
            continue
        base = draft.target.split(".")[1].strip("_")
        while True:
            name = f"{base}_{counts[base]}" if counts[base] else base
            counts[base] += 1
            if name not in taken:
                break
        taken.add(name)
        names[draft.name] = name
    return names


def renamed(arg: Arg, names: Mapping[str, str]) -> Arg:
    """``arg`` with the new names of operators."""
    if isinstance(arg, tuple):
        return tuple(renamed(item, names) for item in arg)
    return ValueRef(names[arg.op], arg.index) if isinstance(arg, ValueRef) else arg
