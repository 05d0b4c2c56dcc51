"""What a server and a helper send each other of a stage: its states, tasks with what they need, and answers.

Arrays stand in an order that both sides derive from plan and graph; shapes, or sizes, are checked before memory is taken. Values
of slices have the codecs of ``slice_codecs``. States and gradients of parameters are not compressed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import TypeVar

from farflung.engines.base import Array, MicroBatch, StageRunner, gradient_parts
from farflung.engines.encoded_value import arrays_of
from farflung.errors import WireError
from farflung.graph.cut import Edge, SubGraph, cut
from farflung.graph.ir import StateKind, TensorSpec, ValueRef
from farflung.messages.arrays import PackedArray, all_arrays, decode_array, decode_exact, encode_array, pack_arrays, pack_encoded
from farflung.messages.hybrid import HelperStates, SliceAnswer, SliceTask, When
from farflung.messages.schema import kind_of
from farflung.plan.buckets import trained_uses
from farflung.protocol.pool.pool_events import Task, TaskKind
from farflung.schedules.base import ActionKind
from farflung.step import actions
from farflung.step.actions import ActionInputs, ActionResult
from farflung.step.hybrid.slice_codecs import SliceCodecs
from farflung.step.run_setup import RunSetup, most_value_bytes

__all__ = ["AHEAD", "HELD", "NOW", "Order", "StageSlices", "compute"]

#: Whether states are for the step that begins, for the next one, or there already.
NOW: When = "now"
AHEAD: When = "ahead"
HELD: When = "held"

SliceT = TypeVar("SliceT", SliceTask, SliceAnswer)


@dataclass(frozen=True, kw_only=True)
class Order:
    """A task on its way, with what it needs."""

    task: Task
    work: ActionInputs


def compute(runner: StageRunner, task: Task, work: ActionInputs) -> ActionResult:
    """Compute ``task`` on ``runner``, which holds no gradients; return those of a backward, too."""
    backward = task.kind is TaskKind.BACKWARD
    kind = ActionKind.BACKWARD if backward else ActionKind.FORWARD
    result = actions.compute(runner, MicroBatch(task.step, task.index), work, kind)
    return replace(result, gradients=runner.take_gradients()) if backward else result


class StageSlices:
    """The slices of one stage of a run, and their messages."""

    def __init__(self, setup: RunSetup, stage: int) -> None:
        self._setup, self.stage = setup, stage
        self._codecs = SliceCodecs(setup)
        #: The stage's sub-graph by samples in the slice.
        self.pieces: Mapping[int, SubGraph] = {rows: cut(g, setup.plan.bounds)[stage] for rows, g in setup.graphs.items()}
        self.uses = tuple(trained_uses(setup.graph, setup.subgraphs[stage], setup.job.optimizer))
        graph = setup.graph
        self._specs: Mapping[str, TensorSpec] = {
            name: graph.state[name].spec
            for name in setup.subgraphs[stage].states
            if graph.state[name].kind is not StateKind.CONSTANT
        }
        self._trained = tuple(name for name in self._specs if name in graph.trained)

    def rows(self, index: int) -> int:
        """Samples of slice ``index``."""
        return self._setup.job.micro_batch_sizes[index]

    def names(self, *, every: bool) -> tuple[str, ...]:
        """States that a helper needs: ``every`` one that it can't make itself, or those that an update changes."""
        return tuple(self._specs) if every else self._trained

    @cached_property
    def _largest(self) -> int:
        return most_value_bytes(self._setup)

    # -- messages -----------------------------------------------------------------------------------------------------

    def states_message(self, step: int, names: Sequence[str], states: Mapping[str, Array], when: When = NOW) -> HelperStates:
        """The states ``names`` as they are in ``step``, which begins (``AHEAD``: will begin next; ``HELD``: they came ahead)."""
        head = partial(HelperStates, run=self._setup.run, step=step, names=tuple(names), when=when)
        return pack_arrays(head, [states[name] for name in names], None)

    def read_states(self, message: HelperStates) -> dict[str, Array]:
        """The states in a message of ``states_message``.

        Raises:
            WireError: they are not those of this stage.
        """
        names = message.names
        unknown = [name for name in names if name not in self._specs]
        if unknown:
            raise WireError(f"stage {self.stage} has no state {unknown[0]!r:.80}")
        specs = [self._specs[name] for name in names]
        arrays = decode_exact(all_arrays(message, len(names)), specs, names, self._setup.budget)
        return {name: array for name, array in zip(names, arrays, strict=True) if array is not None}

    def task_message(self, task: Task, work: ActionInputs) -> SliceTask:
        """``task`` with what it needs."""
        piece = self.pieces[self.rows(task.index)]
        pack = self._codecs.for_helper
        packed: list[PackedArray | None] = []
        if work.values is not None:
            packed += [
                pack(task, _edges(piece.takes, edge.value), work.values[edge.value], gradient=False) for edge in _inputs(piece)
            ]
            packed += [encode_array(work.data[name], None) for name in piece.placeholders]
        if task.kind is TaskKind.BACKWARD:
            for value, count in _returned(piece):
                edges, parts = _edges(piece.requires_gradients, value), work.gradients[value]
                assert len(parts) == count
                packed += [pack(task, edges, part, gradient=True) for part in parts]
        head = self._head(SliceTask, task)
        return pack_encoded(partial(head, weight=work.weight, inputs=work.values is not None), packed)

    def read_task(self, message: SliceTask) -> Order:
        """What ``task_message`` wrote.

        Raises:
            WireError: it is not of this stage, or its arrays are not those that the task needs.
        """
        task = self._task(message)
        piece = self.pieces[self.rows(task.index)]
        edges, back = _inputs(piece), _returned(piece) if task.kind is TaskKind.BACKWARD else []
        limits = [edge.spec.nbytes for edge in edges] if message.inputs else []
        limits += [piece.graph.op(name).outputs[0].nbytes for name in piece.placeholders] if message.inputs else []
        parts = {edge.value: edge.spec.nbytes for edge in piece.requires_gradients}
        limits += [parts[value] * _MOST_PARTS for value, count in back for _ in range(count)]
        arrays = iter(self._bounded(all_arrays(message, len(limits)), limits))
        values = {edge.value: next(arrays) for edge in edges} if message.inputs else None
        data = {name: next(arrays) for name in piece.placeholders} if message.inputs else {}
        gradients = {value: [next(arrays) for _ in range(count)] for value, count in back}
        return Order(task=task, work=ActionInputs(values=values, data=data, gradients=gradients, weight=message.weight))

    def answer_message(self, task: Task, answer: ActionResult) -> SliceAnswer:
        """What ``task`` gave."""
        piece = self.pieces[self.rows(task.index)]
        pack, values = self._codecs.for_server, arrays_of(answer.values)
        packed: list[PackedArray | None] = []
        if task.kind is TaskKind.FORWARD:
            packed += [
                pack(task, _edges(piece.gives, edge.value), values[edge.value], gradient=False) for edge in _outputs(piece)
            ]
        else:
            packed += [
                pack(task, _edges(piece.sends_gradients, value), values[value], gradient=True) for value in _sent_back(piece)
            ]
            sums = (answer.gradients.get(use) for use in self.uses)
            packed += [None if array is None else encode_array(array, None) for array in sums]
        outputs = {} if answer.loss is None else {"loss": answer.loss}
        head = self._head(SliceAnswer, task)
        return pack_encoded(partial(head, seconds=answer.seconds, outputs=outputs), packed)

    def read_answer(self, message: SliceAnswer) -> tuple[Task, ActionResult]:
        """What ``answer_message`` wrote.

        Raises:
            WireError: it is not of this stage, or its arrays are not those that the task gives.
        """
        task, seconds = self._task(message), message.seconds
        piece = self.pieces[self.rows(task.index)]
        if task.kind is TaskKind.FORWARD:
            sent = _outputs(piece)
            arrays = self._bounded(all_arrays(message, len(sent)), [edge.spec.nbytes for edge in sent])
            loss = message.outputs.get("loss")
            makes_loss = piece.start <= piece.graph.position[piece.graph.loss.op] < piece.stop
            if (loss is not None) != makes_loss:
                raise WireError(f"a forward of stage {self.stage} {'makes' if makes_loss else 'makes no'} loss")
            return task, ActionResult(values=dict(zip((e.value for e in sent), arrays, strict=True)), loss=loss, seconds=seconds)
        back = _sent_back(piece)
        spec = {edge.value: edge.spec.nbytes for edge in piece.sends_gradients}
        limits = [spec[value] * gradient_parts(piece, value) for value in back]
        count = len(back)
        packed = all_arrays(message, count + len(self.uses))
        arrays = self._bounded(packed[:count], limits)
        state, names = self._setup.graph.state, [use.state for use in self.uses]
        sums = decode_exact(packed[count:], [state[name].spec for name in names], names, self._setup.budget)
        gradients = {use: array for use, array in zip(self.uses, sums, strict=True) if array is not None}
        return task, ActionResult(values=dict(zip(back, arrays, strict=True)), gradients=gradients, seconds=seconds)

    def _head(self, message: type[SliceT], task: Task) -> partial[SliceT]:
        return partial(message, run=self._setup.run, step=task.step, stage=self.stage, kind=task.kind.value, index=task.index)

    def _task(self, message: SliceTask | SliceAnswer) -> Task:
        count = self._setup.job.micro_batches
        if message.stage != self.stage or message.index >= count:
            place = f"slice {message.index} of stage {message.stage}"
            raise WireError(f"{kind_of(message)!r} messages here are of the {count} slices of stage {self.stage}, got {place}")
        return Task(step=message.step, kind=TaskKind(message.kind), index=message.index)

    def _bounded(self, packed: Sequence[PackedArray | None], limits: Sequence[int]) -> list[Array]:
        """Arrays of which each may have so many bytes (with gaps as many as ``most_value_bytes``)."""
        found = []
        for one, limit in zip(packed, limits, strict=True):
            if one is None:
                raise WireError(f"an array of a slice of stage {self.stage} is missing")
            meta = one.array.meta
            if meta.nbytes > limit:
                raise WireError(f"oversized: {meta.dtype} {list(meta.shape)} has more than the {limit} bytes of the plan")
            found.append(decode_array(one, max(self._largest, limit), self._setup.budget))
        return found


#: A gradient that comes back may hold one array for each reader (``gradient_parts`` of the stage that read it).
_MOST_PARTS = 64


def _edges(edges: Sequence[Edge], value: ValueRef) -> list[Edge]:
    """The edges of ``value``."""
    return [edge for edge in edges if edge.value == value]


def _inputs(piece: SubGraph) -> list[Edge]:
    """What comes from other stages, once."""
    return list({edge.value: edge for edge in piece.takes}.values())


def _outputs(piece: SubGraph) -> list[Edge]:
    """What goes to other stages, once."""
    return list({edge.value: edge for edge in piece.gives}.values())


def _returned(piece: SubGraph) -> list[tuple[ValueRef, int]]:
    """The values whose gradients come back, and from how many stages."""
    counts: dict[ValueRef, int] = {}
    for edge in piece.requires_gradients:
        counts[edge.value] = counts.get(edge.value, 0) + 1
    return list(counts.items())


def _sent_back(piece: SubGraph) -> list[ValueRef]:
    """The values whose gradients go back, once."""
    return list(dict.fromkeys(edge.value for edge in piece.sends_gradients))
