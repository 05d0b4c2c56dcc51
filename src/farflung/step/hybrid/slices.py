"""What a server and a helper send each other of a stage: its states, tasks with what they need, and answers.

Arrays stand in an order that both sides derive from plan and graph; shapes, or sizes, are checked before memory is taken. Nothing
is compressed: helpers change no bit.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import msgspec

from farflung.engines.base import Array, MicroBatch, StageRunner, gradient_parts
from farflung.errors import WireError
from farflung.graph.cut import Edge, SubGraph, cut
from farflung.graph.ir import StateKind, TensorSpec, ValueRef
from farflung.messages.arrays import decode_array, pack_arrays, packed_arrays
from farflung.messages.fields import number, table, text, texts, whole
from farflung.plan.buckets import trained_uses
from farflung.protocol.pool.pool_events import Task, TaskKind
from farflung.step import actions
from farflung.step.actions import ActionInputs, ActionResult
from farflung.step.run_setup import RunSetup
from farflung.wire.arrays import DTYPES
from farflung.wire.frames import Frame

#: Whether states are for the step that begins, for the next one, or there already.
NOW, AHEAD, HELD = "now", "ahead", "held"

__all__ = ["AHEAD", "HELD", "NOW", "Order", "StageSlices", "compute"]


@dataclass(frozen=True, kw_only=True)
class Order:
    """A task on its way, with what it needs."""

    task: Task
    work: ActionInputs


def compute(runner: StageRunner, task: Task, work: ActionInputs) -> ActionResult:
    """Compute ``task`` on ``runner``, which holds no gradients; return those of a backward, too."""
    backward = task.kind is TaskKind.BACKWARD
    result = actions.compute(runner, MicroBatch(task.step, task.index), work, backward=backward)
    return replace(result, gradients=runner.take_gradients()) if backward else result


class StageSlices:
    """The slices of one stage of a run, and their frames."""

    def __init__(self, setup: RunSetup, stage: int) -> None:
        self._setup, self.stage = setup, stage
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
        graphs = self._setup.graphs.values()
        values = (spec.nbytes for graph in graphs for op in graph.ops for spec in op.outputs)
        return max(1, *values)

    # -- frames -------------------------------------------------------------------------------------------------------

    def states_frame(self, step: int, names: Sequence[str], states: Mapping[str, Array], when: str = NOW) -> Frame:
        """The states ``names`` as they are in ``step``, which begins (``AHEAD``: will begin next; ``HELD``: they came ahead)."""
        head = {"run": self._setup.run, "step": step, "names": list(names), "when": when}
        return pack_arrays("states", head, [states[name] for name in names], None)

    def read_states(self, frame: Frame) -> tuple[int, dict[str, Array]]:
        """Step and states of a frame of ``states_frame``.

        Raises:
            WireError: it is malformed, or not of this stage.
        """
        names = texts(frame.header, "names")
        unknown = [name for name in names if name not in self._specs]
        if unknown:
            raise WireError(f"stage {self.stage} has no state {unknown[0]!r:.80}")
        arrays = _exact(frame, [self._specs[name] for name in names])
        return whole(frame.header, "step"), {n: a for n, a in zip(names, arrays, strict=True) if a is not None}

    def task_frame(self, task: Task, work: ActionInputs) -> Frame:
        """``task`` with what it needs."""
        piece = self.pieces[self.rows(task.index)]
        arrays: list[Array | None] = []
        if work.values is not None:
            arrays += [work.values[edge.value] for edge in _inputs(piece)]
            arrays += [work.data[name] for name in piece.placeholders]
        if task.kind is TaskKind.BACKWARD:
            for value, count in _returned(piece):
                assert len(work.gradients[value]) == count
                arrays += work.gradients[value]
        head = {**self._head(task), "weight": work.weight, "inputs": work.values is not None}
        return pack_arrays("task", head, arrays, None)

    def read_task(self, frame: Frame) -> Order:
        """What ``task_frame`` wrote.

        Raises:
            WireError: it is malformed, or not of this stage.
        """
        task, header = self._task(frame), frame.header
        piece = self.pieces[self.rows(task.index)]
        with_inputs = header.get("inputs") is True
        edges, back = _inputs(piece), _returned(piece) if task.kind is TaskKind.BACKWARD else []
        limits = [edge.spec.nbytes for edge in edges] if with_inputs else []
        limits += [piece.graph.op(name).outputs[0].nbytes for name in piece.placeholders] if with_inputs else []
        parts = {edge.value: edge.spec.nbytes for edge in piece.requires_gradients}
        limits += [parts[value] * _MOST_PARTS for value, count in back for _ in range(count)]
        arrays = iter(self._bounded(frame, limits))
        values = {edge.value: next(arrays) for edge in edges} if with_inputs else None
        data = {name: next(arrays) for name in piece.placeholders} if with_inputs else {}
        gradients = {value: [next(arrays) for _ in range(count)] for value, count in back}
        weight = number(header, "weight")
        return Order(task=task, work=ActionInputs(values=values, data=data, gradients=gradients, weight=weight))

    def answer_frame(self, task: Task, answer: ActionResult) -> Frame:
        """What ``task`` gave."""
        piece = self.pieces[self.rows(task.index)]
        if task.kind is TaskKind.FORWARD:
            arrays: list[Array | None] = [answer.values[edge.value] for edge in _outputs(piece)]
        else:
            arrays = [answer.values[value] for value in _sent_back(piece)]
            arrays += [answer.gradients.get(use) for use in self.uses]
        outputs = {} if answer.loss is None else {"loss": answer.loss}
        return pack_arrays("answer", {**self._head(task), "seconds": answer.seconds, "outputs": outputs}, arrays, None)

    def read_answer(self, frame: Frame) -> tuple[Task, ActionResult]:
        """What ``answer_frame`` wrote.

        Raises:
            WireError: it is malformed, or not of this stage.
        """
        task, outputs = self._task(frame), table(frame.header, "outputs")
        piece = self.pieces[self.rows(task.index)]
        seconds = number(frame.header, "seconds", low=0.0)
        if task.kind is TaskKind.FORWARD:
            sent = _outputs(piece)
            arrays = self._bounded(frame, [edge.spec.nbytes for edge in sent])
            loss = number(outputs, "loss") if outputs else None
            makes_loss = piece.start <= piece.graph.position[piece.graph.loss.op] < piece.stop
            if (loss is not None) != makes_loss:
                raise WireError(f"a forward of stage {self.stage} {'makes' if makes_loss else 'makes no'} loss")
            return task, ActionResult(values=dict(zip((e.value for e in sent), arrays, strict=True)), loss=loss, seconds=seconds)
        back = _sent_back(piece)
        spec = {edge.value: edge.spec.nbytes for edge in piece.sends_gradients}
        limits = [spec[value] * gradient_parts(piece, value) for value in back]
        count = len(back)
        head, tail = _parted(frame, count, count + len(self.uses))
        arrays = self._bounded(head, limits)
        state = self._setup.graph.state
        sums = _exact(tail, [state[use.state].spec for use in self.uses])
        gradients = {use: array for use, array in zip(self.uses, sums, strict=True) if array is not None}
        return task, ActionResult(values=dict(zip(back, arrays, strict=True)), gradients=gradients, seconds=seconds)

    def _head(self, task: Task) -> dict[str, str | int]:
        return {"run": self._setup.run, "step": task.step, "stage": self.stage, "kind": task.kind.value, "index": task.index}

    def _task(self, frame: Frame) -> Task:
        header = frame.header
        kind = text(header, "kind", limit=1)
        if whole(header, "stage") != self.stage or kind not in list(TaskKind):
            raise WireError(f"a {frame.kind!r:.20} is a forward (F) or backward (B) of stage {self.stage}, got {kind!r:.20}")
        index = whole(header, "index", high=self._setup.job.micro_batches - 1)
        return Task(step=whole(header, "step"), kind=TaskKind(kind), index=index)

    def _bounded(self, frame: Frame, limits: Sequence[int]) -> list[Array]:
        """Arrays of which each may have so many bytes (its view into a larger one as many as the graph's largest)."""
        packed = packed_arrays(frame, len(limits))
        if len(packed) != len(limits):
            raise WireError(f"a {frame.kind!r:.20} of stage {self.stage} has {len(limits)} arrays, {len(packed)} came")
        found = []
        for one, limit in zip(packed, limits, strict=True):
            if one is None:
                raise WireError(f"an array of a {frame.kind!r:.20} of stage {self.stage} is missing")
            meta = one.array.meta
            if meta.numel * DTYPES[meta.dtype].itemsize > limit:
                raise WireError(f"oversized: {meta.dtype} {list(meta.shape)} has more than the {limit} bytes of the plan")
            found.append(decode_array(one, max(self._largest, limit)))
        return found


#: A gradient that comes back may hold one array for each reader (``gradient_parts`` of the stage that read it).
_MOST_PARTS = 64


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


def _parted(frame: Frame, first: int, most: int) -> tuple[Frame, Frame]:
    """The frame's ``first`` arrays, and the others, as two frames."""
    packed = packed_arrays(frame, most)
    if len(packed) != most:
        raise WireError(f"a {frame.kind!r:.20} with {most} arrays was expected, {len(packed)} came")
    halves = []
    for part in (packed[:first], packed[first:]):
        headers = [None if one is None else msgspec.to_builtins(one.item) for one in part]
        sections = tuple(section for one in part if one is not None for section in one.sections)
        halves.append(Frame(frame.kind, {**frame.header, "arrays": headers}, sections))
    return halves[0], halves[1]


def _exact(frame: Frame, specs: Sequence[TensorSpec]) -> list[Array | None]:
    """Arrays of exactly these shapes and element types, some of them missing."""
    packed = packed_arrays(frame, len(specs))
    if len(packed) != len(specs):
        raise WireError(f"a {frame.kind!r:.20} with {len(specs)} arrays was expected, {len(packed)} came")
    found: list[Array | None] = []
    for one, spec in zip(packed, specs, strict=True):
        if one is None:
            found.append(None)
            continue
        meta = one.array
        if meta.shape != spec.shape or meta.dtype != spec.dtype:
            raise WireError(f"{spec.dtype}{list(spec.shape)} was expected, {meta.dtype}{list(meta.shape)} came")
        found.append(decode_array(one, max(spec.nbytes, 1)))
    return found
