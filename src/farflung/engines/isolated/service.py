"""The process that computes for one attempt: it holds an engine and its runners, and answers the worker's calls one by one."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from farflung import errors
from farflung.defects import defect_text
from farflung.engines.base import Array, Engine, EngineSettings, StageRunner
from farflung.engines.encoded_value import EncodedValue, SentValues
from farflung.engines.isolated.arena import Arena, Slot
from farflung.engines.isolated.control import (
    Arrays,
    Call,
    Done,
    EngineCall,
    Message,
    OpenStage,
    Order,
    Reached,
    Refused,
    Resume,
    receive_with_files,
    send,
)
from farflung.engines.isolated.encoded import write_encoded
from farflung.engines.registry import rank_engine
from farflung.engines.state_file import StateFile
from farflung.errors import FarflungError
from farflung.graph.cut import SubGraph
from farflung.graph.ir import Graph, Use, ValueRef
from farflung.job.spec import OptimizerSpec
from farflung.memory_budget import MemoryBudget

__all__ = ["Service", "error_of", "read_use", "write_use"]


def write_use(use: Use) -> str:
    """``use`` as a name: state and operator."""
    return f"{use.state}\0{use.op}"


def read_use(name: str) -> Use:
    """Read what ``write_use`` wrote."""
    state, _, op = name.partition("\0")
    return Use(state, op)


def error_of(kind: str, text: str) -> FarflungError:
    """The error of farflung called ``kind``, or a ``TrainingError`` that names the kind."""
    found = getattr(errors, kind, None) if kind in errors.__all__ else None
    return errors.TrainingError(f"{kind}: {text}") if found is None else found(text)


class Service:
    """Answers calls until the worker closes the channel. One thread."""

    def __init__(self, engine: Engine, channel: socket.socket, arena: Arena) -> None:
        self._engine, self._channel, self._arena = engine, channel, arena
        self._runners: dict[int, StageRunner] = {}
        self._graph: Graph | None = None
        #: What came along with the present message.
        self._files: list[int] = []
        #: All runners share this process's memory.
        self._budget = MemoryBudget()

    def serve(self) -> None:
        """Answer until the channel is closed."""
        self._serve_until(None)

    def _serve_until(self, end: type[Message] | None) -> None:
        while True:
            order, self._files = receive_with_files(self._channel, Order, 1, self._arena)
            if order is None:
                break
            if end is not None and isinstance(order, end):
                return
            self._arena.begin()
            try:
                answer: Message = self._answer(order)
            except Exception as error:  # noqa: BLE001 - the worker's caller gets it, whatever the engine raises
                text = str(error) or type(error).__name__
                if not isinstance(error, errors.FarflungError):
                    text = defect_text(error).partition(": ")[2]
                answer = Refused(kind=type(error).__name__, text=text[:3000])
                del error
            send(self._channel, answer, self._arena)
            del answer, order
        raise SystemExit(0)

    def _answer(self, order: object) -> Done:
        match order:
            case OpenStage():
                return self._open(order)
            case EngineCall():
                return self._ask_engine(order)
            case Call(method="close"):
                self._runners.pop(order.runner, None)
                return Done()
            case Call():
                return self._methods[order.method](self, self._runners[order.runner], order)
        raise errors.WireError(f"unexpected {type(order).__name__}")

    # -- the engine ---------------------------------------------------------------------------------------------------

    def _read_graph(self, at: Slot | None) -> Graph:
        if at is not None:
            self._graph = Graph.from_json(self._arena.read_bytes(at))
        assert self._graph is not None
        return self._graph

    def _open(self, order: OpenStage) -> Done:
        given, piece = order.settings, order.piece
        self._budget.resize(given.memory)
        settings = EngineSettings(
            device=given.device,
            seed=given.seed,
            precision=given.precision,
            recompute=given.recompute,
            split_backward=given.split_backward,
            training=given.training,
            optimizer=OptimizerSpec.model_validate_json(given.optimizer),
            budget=self._budget,
            any_order=given.any_order,
            offload=StateFile(self._files.pop(), given.offload) if given.offload else None,
            sharded=given.sharded,
            tensor=given.tensor,
            part_ends=given.part_ends,
            codings=given.codings,
        )
        subgraph = SubGraph(
            graph=self._read_graph(order.graph),
            stage=piece.stage,
            start=piece.start,
            stop=piece.stop,
            positions=piece.positions,
            states=piece.states,
            placeholders=piece.placeholders,
            requires_activations=piece.requires_activations,
            sends_activations=piece.sends_activations,
        )
        share = None if order.share is None else self._runners[order.share]
        self._runners[order.runner] = self._engine.open(subgraph, settings, share=share)
        return Done()

    def _ask_engine(self, order: EngineCall) -> Done:
        engine = self._engine
        match order.method:
            case "verify":
                engine.verify(self._read_graph(order.graph))
            case "initial_states":
                found = engine.initial_states(self._read_graph(order.graph), order.seed, order.names)
                return Done(values=self._written(found))
            case "clip_scale":
                assert order.limit is not None
                return Done(values=self._written({"scale": engine.clip_scale(order.numbers, order.limit)}))
            case "set_threads":
                engine.set_threads(order.threads)
            case "devices":
                return Done(devices=tuple(engine.devices()))
            case "support":
                return Done(support=engine.support(order.device))
            case "measure":
                return Done(report=engine.measure(order.device, order.limit))
            case "connect":
                self._engine = rank_engine(int(order.numbers[0]), order.names, os.environ["TMPDIR"])
            case "share":
                return Done(numbers={"share": engine.share(order.device, order.numbers[0])})
        return Done()

    # -- arrays -------------------------------------------------------------------------------------------------------

    def _written(self, arrays: Mapping[str, Array]) -> Arrays:
        return {name: (self._arena.write(array),) for name, array in arrays.items()}

    def _one(self, arrays: Arrays) -> dict[str, Array]:
        return {name: self._arena.view(slots[0]) for name, slots in arrays.items()}

    def _by_use(self, arrays: Arrays) -> dict[Use, Array]:
        return {read_use(name): array for name, array in self._one(arrays).items()}

    # -- the methods of runners ---------------------------------------------------------------------------------------

    def _initialize(self, runner: StageRunner, call: Call) -> Done:
        runner.initialize(call.names or ())
        return Done()

    def _load(self, runner: StageRunner, call: Call) -> Done:
        runner.load(self._one(call.values))
        return Done()

    def _forward(self, runner: StageRunner, call: Call) -> Done:
        values = {ValueRef.parse(name): array for name, array in self._one(call.values).items()}
        found = runner.forward(call.key, values, self._one(call.data))
        return self._sent(found.values, found.outputs)

    def _backward(self, runner: StageRunner, call: Call) -> Done:
        gradients = {ValueRef.parse(n): tuple(self._arena.view(slot) for slot in slots) for n, slots in call.values.items()}
        if call.folds:
            runner.gradients_of_blocks.expect(call.folds)  # type: ignore[attr-defined]
        found = runner.backward(call.key, gradients, call.weight)
        return self._sent(found, {})

    def _sent(self, values: SentValues, outputs: Mapping[str, Array]) -> Done:
        arrays = {str(name): value for name, value in values.items() if not isinstance(value, EncodedValue)}
        encoded = {str(name): value for name, value in values.items() if isinstance(value, EncodedValue)}
        return Done(
            values=self._written(arrays),
            encoded={name: write_encoded(self._arena, value) for name, value in encoded.items()},
            outputs=self._written(outputs),
        )

    def _backward_weights(self, runner: StageRunner, call: Call) -> Done:
        runner.backward_weights(call.key)
        return Done()

    def _watch(self, runner: StageRunner, call: Call) -> Done:
        def ready(index: int) -> None:
            send(self._channel, Reached(index=index))
            self._serve_until(Resume)

        runner.watch(call.groups, ready)
        return Done()

    def _update(self, runner: StageRunner, call: Call) -> Done:
        scale = None if call.scale is None else np.array(self._arena.view(call.scale))
        runner.update(call.rates, scale, call.names)
        return Done()

    def _close_part(self, runner: StageRunner, call: Call) -> Done:
        runner.close_part(last=call.last)
        return Done()

    def _finish(self, runner: StageRunner, call: Call) -> Done:
        runner.finish_gradients(self._by_use(call.values))
        return Done()

    def _put(self, runner: StageRunner, call: Call) -> Done:
        runner.put_gradients(self._by_use(call.values))
        return Done()

    def _uses(self, found: Mapping[Use, Array]) -> Done:
        return Done(values=self._written({write_use(use): array for use, array in found.items()}))

    def _set_gradients(self, runner: StageRunner, call: Call) -> Done:
        runner.set_gradients(self._one(call.values))
        return Done()

    def _fold(self, runner: StageRunner, call: Call) -> Done:
        runner.fold(call.folds, whole=call.last)  # type: ignore[attr-defined]
        return Done()

    def _assist(self, runner: StageRunner, call: Call) -> Done:
        runner.gradients_of_blocks.expect(call.folds)  # type: ignore[attr-defined]
        runner.assist(back=call.method == "assist_backward")  # type: ignore[attr-defined]
        return Done()

    def _load_optimizer(self, runner: StageRunner, call: Call) -> Done:
        runner.load_optimizer(self._one(call.values), more=call.more)
        return Done()

    def _discard(self, runner: StageRunner, call: Call) -> Done:
        del call
        runner.discard()
        return Done()

    _methods: Mapping[str, Callable[[Any, StageRunner, Call], Done]] = {
        "initialize": _initialize,
        "load": _load,
        "forward": _forward,
        "backward": _backward,
        "backward_weights": _backward_weights,
        "watch": _watch,
        "update": _update,
        "close_part": _close_part,
        "finish_gradients": _finish,
        "put_gradients": _put,
        "take_gradients": lambda self, runner, _: self._uses(runner.take_gradients()),
        "use_gradients": lambda self, runner, _: self._uses(runner.use_gradients()),
        "gradients": lambda self, runner, _: Done(values=self._written(runner.gradients())),
        "gradient_views": lambda self, runner, call: Done(values=self._written(runner.gradient_views(call.names or ()))),
        "set_gradients": _set_gradients,
        "gradient_norms": lambda self, runner, _: Done(numbers=dict(runner.gradient_norms())),
        "spoilt_gradients": lambda self, runner, _: Done(names=runner.spoilt_gradients()),
        "discard": _discard,
        "states": lambda self, runner, call: Done(values=self._written(runner.states(call.names, copy=False))),
        "optimizer_states": lambda self, runner, call: Done(
            values=self._written(runner.optimizer_states(call.names, copy=False))
        ),
        "load_optimizer": _load_optimizer,
        "fold": _fold,
        "assist_forward": _assist,
        "assist_backward": _assist,
    }
