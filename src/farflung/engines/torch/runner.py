"""One stage on one device: forward, backward, accumulation, update."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import torch

from farflung.engines.base import Array, EngineSettings, Forward, MicroBatch, gradient_parts
from farflung.engines.encoded_value import EncodedValue, SentValues
from farflung.engines.present import PRESENT, label
from farflung.engines.stateful_runner import StatefulRunner, trained_states
from farflung.engines.torch.arrays import check_array, from_array, to_array
from farflung.engines.torch.backward.split import WeightWork, backward_inputs, backward_weights
from farflung.engines.torch.codecs import ValueEncoder
from farflung.engines.torch.heap import HEAP
from farflung.engines.torch.optimizers.offloaded_update import OffloadedOptimizer
from farflung.engines.torch.optimizers.wide_update import AnyOptimizer, stage_optimizer
from farflung.engines.torch.program import Program, Read, Source, compile_program
from farflung.engines.torch.states import StageStates
from farflung.errors import FarflungError, GraphError
from farflung.graph.cut import Edge, SubGraph
from farflung.graph.drift import drifting
from farflung.graph.ir import Use, ValueRef

__all__ = ["TorchRunner"]


#: What autocast multiplies in.
_AUTOCAST = {"bf16": torch.bfloat16, "fp16": torch.float16}


class _Receive(torch.autograd.Function):
    """Where a received value enters the autograd graph: its gradient goes to ``sink`` as it is (strides kept)."""

    @staticmethod
    def forward(
        ctx: Any, entry: torch.Tensor, value: torch.Tensor, sink: dict[Source, torch.Tensor], source: Source
    ) -> torch.Tensor:
        ctx.sink, ctx.source = sink, source
        return value.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[None, None, None, None]:
        ctx.sink[ctx.source] = gradient
        return None, None, None, None


@dataclass(slots=True)
class _Kept:
    """What a micro-batch's backward needs: the roots of its autograd graph, or (recompute) what makes them again.

    That is the inputs, and the states as they were that forwards change: by name, those only that reach a result.
    """

    inputs: dict[Source, torch.Tensor]
    roots: dict[ValueRef, torch.Tensor]
    sink: dict[Source, torch.Tensor]
    #: The leaf that every received value which returns a gradient depends on.
    entry: torch.Tensor
    states: dict[str, torch.Tensor] = field(default_factory=dict)


class TorchRunner(StatefulRunner[StageStates, AnyOptimizer | OffloadedOptimizer]):
    """Runs one stage (see ``farflung.engines.base.StageRunner``)."""

    def __init__(self, subgraph: SubGraph, settings: EngineSettings, device: torch.device, share: TorchRunner | None) -> None:
        super().__init__(subgraph, settings, self.make_states(subgraph, settings, device, None if share is None else share.state))
        self._device = device
        graph = subgraph.graph
        self._edges = {edge.value: edge for edge in subgraph.requires_activations}
        self._returns: dict[ValueRef, list[Source]] = {edge.value: [edge.value] for edge in subgraph.sends_gradients}
        parts = frozenset(edge.value for edge in subgraph.sends_gradients if gradient_parts(subgraph, edge.value) > 1)
        own = range(subgraph.start, subgraph.stop)
        self._outputs = {name: value for name, value in graph.outputs if graph.position[value.op] in own}
        self._sends = tuple(dict.fromkeys(edge.value for edge in subgraph.gives))
        self._updates = tuple((n, v) for n, v in graph.state_updates if graph.position[v.op] in subgraph.positions)
        self._roots = dict.fromkeys(edge.value for edge in subgraph.requires_gradients)
        self._loss = self._outputs.get("loss")
        keep = {*self._sends, *self._outputs.values(), *(value for _, value in self._updates), *self._roots}
        ops = [graph.ops[position] for position in subgraph.positions]
        self._drifting = drifting(subgraph) if settings.recompute else frozenset()
        recorded = frozenset(value.op for value in graph.needs_grad) if settings.training else frozenset()
        self._program = compile_program(ops, device, keep, parts, recorded)
        self._program.key.begin_run(settings.seed)
        self._encoder = ValueEncoder(settings)
        self._views = {e.value: self._view_program(e) for e in subgraph.requires_activations if e.alias_of is not None}
        for value in parts:
            reads = [source for source in self._program.sources if isinstance(source, Read) and source.value == value]
            reads.sort(key=lambda read: (-graph.position[read.op], read.occurrence))
            self._returns[value] = list(reads)
        self._base: list[Any] | None = None
        self._addresses: frozenset[int] = frozenset()
        self._kept: dict[MicroBatch, _Kept] = {}
        #: What ``backward_weights`` has to compute (``EngineSettings.split_backward``).
        self._late: dict[MicroBatch, WeightWork] = {}

    def _view_program(self, edge: Edge) -> Program:
        graph = self.subgraph.graph
        return compile_program([graph.ops[position] for position in edge.views], self._device, [edge.value])

    # States

    def make_states(
        self, subgraph: SubGraph, settings: EngineSettings, device: torch.device, share: StageStates | None
    ) -> StageStates:
        """The states of the stage; ``share``: those of a runner whose states are taken over."""
        return StageStates(subgraph, device, trained_states(subgraph, settings), settings.budget, share)

    def make_optimizer(self, names: Sequence[str]) -> AnyOptimizer | OffloadedOptimizer:
        """See ``StatefulRunner``."""
        settings, parameters = self._settings, {name: self.state.tensor(name) for name in names}
        if settings.offload is not None:
            return OffloadedOptimizer(settings.offload, settings.optimizer, parameters, settings.seed)
        return stage_optimizer(settings.optimizer, parameters, settings.seed)

    def exposed(self, names: Collection[str]) -> Mapping[str, Array]:
        """The memory of states, where it is the host's and has no gaps."""
        held = {name: self.state.tensor(name).detach() for name in names}
        flat = {name: tensor.view(-1) for name, tensor in held.items() if tensor.is_contiguous()}
        return {name: to_array(tensor) for name, tensor in flat.items() if tensor.device.type == "cpu"}

    # Forward

    def forward(self, key: MicroBatch, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> Forward:
        """Forward of one micro-batch (see ``StageRunner``).

        Raises:
            GraphError: a value, an input or a state is missing or has another shape; an operator fails.
        """
        settings = self._settings
        inputs = self._inputs(values, data)
        record = settings.training and not settings.recompute
        registers, kept = self._run(key, inputs, record=record)
        kept.states = {name: self.state.tensor(name).clone() for name in self._drifting} if settings.training else {}
        if settings.training:
            self._kept[key] = kept
            with torch.no_grad():
                for name, value in self._updates:
                    self.state.tensor(name).copy_(registers[self._program.slots[value]])
        slots = self._program.slots
        return Forward(
            values={
                value: self._encoder.encode(key, value, registers[slots[value]], gradient=False)
                or self._hand_out(registers[slots[value]], self._addresses)
                for value in self._sends
            },
            outputs={name: self._hand_out(registers[slots[value]], self._addresses) for name, value in self._outputs.items()},
        )

    def _inputs(self, values: Mapping[ValueRef, Array], data: Mapping[str, Array]) -> dict[Source, torch.Tensor]:
        found: dict[Source, torch.Tensor] = {}
        for value, edge in self._edges.items():
            if edge.alias_of is None:
                found[value] = self._received(f"value {value}", values.get(value), edge.spec.shape)
        for value, program in self._views.items():
            registers: list[Any] = [None] * program.size
            for source, slot in program.sources.items():
                registers[slot] = found[source]
            with torch.no_grad():
                program.run(registers)
            found[value] = registers[program.slots[value]]
        for name in self.subgraph.placeholders:
            spec = self.subgraph.graph.op(name).outputs[0]
            if name in data:
                check_array(f"input {name!r}", data[name], spec)
            found[name] = self._received(f"input {name!r}", data.get(name), spec.shape)
        return found

    def _received(self, what: str, array: Array | None, shape: tuple[int, ...]) -> torch.Tensor:
        if array is None:
            raise GraphError(f"{what} of stage {self.subgraph.stage} is missing")
        if array.shape != shape:
            raise GraphError(f"{what} is declared {list(shape)} but the given array is {list(array.shape)}")
        return from_array(array, self._device)

    def _run(
        self,
        key: MicroBatch,
        inputs: dict[Source, torch.Tensor],
        *,
        record: bool,
        states: Mapping[str, torch.Tensor] = MappingProxyType({}),
    ) -> tuple[list[Any], _Kept]:
        program = self._program
        if self._base is None:
            self._base = self._state_registers()
        registers = self._base.copy()
        sink: dict[Source, torch.Tensor] = {}
        entry = torch.empty(0, device=self._device, requires_grad=record)
        with torch.set_grad_enabled(record):
            for source, slot in program.sources.items():
                if isinstance(source, Use):
                    registers[slot] = states.get(source.state, registers[slot])
                    continue
                name = source.value if isinstance(source, Read) else source
                tensor = inputs[name]
                if record and name in self._returns:
                    tensor = _Receive.apply(entry, tensor, sink, source)  # type: ignore[no-untyped-call]
                registers[slot] = tensor
            program.key.begin(key.step, key.index)
            narrow = _AUTOCAST.get(self._settings.precision)
            with nullcontext() if narrow is None else torch.autocast(self._device.type, narrow):
                program.run(registers)
        roots = {value: registers[program.slots[value]] for value in self._roots} if record else {}
        if record and self._loss is not None:
            roots[self._loss] = registers[program.slots[self._loss]]
        return registers, _Kept({} if record else inputs, roots, sink, entry)

    def _state_registers(self) -> list[Any]:
        registers: list[Any] = [None] * self._program.size
        for source, slot in self._program.sources.items():
            if isinstance(source, Use):
                registers[slot] = self.state.leaf(source)
        self._addresses = self.state.addresses()
        return registers

    def _hand_out(self, tensor: torch.Tensor, changing: frozenset[int]) -> Array:
        """``tensor`` as an array; copied if its memory is among what will change."""
        return to_array(tensor, copy=tensor.untyped_storage().data_ptr() in changing)

    # Backward

    def backward(self, key: MicroBatch, gradients: Mapping[ValueRef, Sequence[Array]], weight: float) -> SentValues:
        """Backward of one micro-batch (see ``StageRunner``).

        Raises:
            GraphError: the micro-batch has no forward, a gradient is missing or has another shape, or PyTorch refuses.
        """
        kept = self._kept.pop(key, None)
        if kept is None:
            raise GraphError(f"stage {self.subgraph.stage} has no forward of {key} to go back from")
        if self._settings.recompute:
            _, kept = self._run(key, kept.inputs, record=True, states=kept.states)
        roots, seeds = [], []
        for value, root in kept.roots.items():
            if not root.requires_grad:
                continue
            seed = self._remote(value, root, gradients[value]) if value in self._roots else None
            if value == self._loss:
                own = torch.ones_like(root) * weight
                seed = own if seed is None else seed + own
            roots.append(root)
            seeds.append(seed)
        kept.roots.clear()
        work = WeightWork()
        if roots and self._settings.split_backward:
            with self._going_back():
                work = self._late[key] = backward_inputs(roots, seeds, kept.entry)
        elif roots:
            with self._going_back(), self._watched():
                torch.autograd.backward(roots, seeds)
        del roots, seeds
        HEAP.give_back()
        return self._sent_back(key, kept.sink, work.memory())

    def backward_weights(self, key: MicroBatch) -> None:
        """The rest of a split backward (see ``StageRunner``).

        Raises:
            GraphError: PyTorch refuses.
        """
        work = self._late.pop(key, None)
        if work is not None:
            with self._going_back(), self._watched():
                backward_weights(work)
        del work
        HEAP.give_back()

    @contextmanager
    def _going_back(self) -> Iterator[None]:
        PRESENT.memory[:] = label(f"the backward of stage {self.subgraph.stage}")
        try:
            yield
        except (FarflungError, torch.OutOfMemoryError):
            raise  # of a program that the graph carries, or of what watches the gradients
        except Exception as error:  # PyTorch's backwards can raise anything
            first = str(error).splitlines()[0] if str(error) else type(error).__name__
            raise GraphError(f"stage {self.subgraph.stage}: the backward failed: {first}") from error

    def _remote(self, value: ValueRef, root: torch.Tensor, arrays: Sequence[Array]) -> torch.Tensor:
        """The sum of what came back for ``value``, in the given order."""
        total: torch.Tensor | None = None
        for array in arrays:
            for part in array if array.ndim == root.ndim + 1 else (array,):
                if part.shape != tuple(root.shape):
                    raise GraphError(f"the gradient of {value} has shape {list(part.shape)}, its value {list(root.shape)}")
                tensor = from_array(part, self._device)
                total = tensor if total is None else total + tensor
        if total is None:
            raise GraphError(f"no gradient came back for {value} of stage {self.subgraph.stage}")
        return total

    def _sent_back(self, key: MicroBatch, sink: dict[Source, torch.Tensor], kept: frozenset[int]) -> SentValues:
        found: dict[ValueRef, Array | EncodedValue] = {}
        if not self._returns:
            return found
        changing = kept | frozenset(grad.untyped_storage().data_ptr() for grad in self.state.open_gradients())
        for value, sources in self._returns.items():
            parts = [sink[source] if source in sink else self._zeros(value) for source in sources]
            whole = parts[0] if len(parts) == 1 else torch.stack(parts)
            found[value] = self._encoder.encode(key, value, whole, gradient=True) or self._hand_out(whole, changing)
        return found

    def _zeros(self, value: ValueRef) -> torch.Tensor:
        spec = self._edges[value].spec
        dtype = _AUTOCAST.get(self._settings.precision, torch.float32)
        chosen = dtype if spec.dtype == "float32" else getattr(torch, spec.dtype)
        return torch.zeros(spec.shape, dtype=chosen, device=self._device)

    # Update

    def gradients(self) -> Mapping[str, Array]:
        """Copies of the finished gradients."""
        return {name: to_array(grad, copy=True) for name, grad in self.state.gradients().items()}

    def gradient_views(self, names: Collection[str]) -> Mapping[str, Array]:
        """Finished gradients, sharing memory where they lie on the host."""
        return {name: to_array(grad) for name, grad in self.state.gradients().items() if name in names}

    def gradient_norms(self) -> Mapping[str, float]:
        """Euclidean norms of the finished gradients."""
        return {name: float(torch.linalg.vector_norm(grad, 2.0)) for name, grad in self.state.gradients().items()}

    def spoilt_gradients(self) -> tuple[str, ...]:
        """The parameters whose finished gradient holds a NaN or an infinity."""
        found = self.state.gradients()
        # A sum is finite only if all it adds is; it may overflow without, so then each number is looked at.
        if not found or bool(torch.isfinite(torch.stack([grad.sum() for grad in found.values()])).all()):
            return ()
        return tuple(name for name, grad in found.items() if not bool(torch.isfinite(grad).all()))

    def _watched(self) -> ExitStack:
        """Hooks on the watched parameters, for the length of one backward."""
        stack = ExitStack()
        for names, index in self._watch:
            waiting = set(names)
            if not names or not names <= self.state.single():
                continue
            for name in names:
                stack.callback(self._hook(name, waiting, index).remove)
        self._watch = []
        return stack

    def _hook(self, name: str, waiting: set[str], index: int) -> Any:
        def done(_: torch.Tensor) -> None:
            waiting.discard(name)
            if not waiting and self._ready is not None:
                self._ready(index)

        return self.state.tensor(name).register_post_accumulate_grad_hook(done)  # type: ignore[no-untyped-call]

    def update(self, rates: Sequence[float], scale: Array | None, names: Collection[str] | None = None) -> None:
        """One optimizer step; see ``StageRunner``.

        Raises:
            InputError: not as many rates as groups.
        """
        if scale is not None:
            factor = torch.tensor(float(scale), dtype=torch.float32, device=self._device)
            for name, grad in self.state.gradients().items():
                if names is None or name in names:
                    grad.mul_(factor)
        with self.state.aside(names):
            self.optimizer().step(rates)
        if self._settings.offload is not None:
            HEAP.give_back()  # what was read from the disk

    def discard(self) -> None:
        """Clear gradients and kept activations."""
        self._kept.clear()
        self._late.clear()
        self.state.clear()
