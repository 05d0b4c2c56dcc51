"""Forward-only passes of evaluation and generation through the stages that train, with the very states that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from farflung.engines.base import Array, EngineSettings, StageRunner
from farflung.engines.encoded_value import EncodedValue, array_of
from farflung.graph.cut import Edge, SubGraph
from farflung.graph.ir import Graph
from farflung.messages.data import SideKey, StateKey
from farflung.schedules.base import Action, ActionKind
from farflung.step.actions import ActionResult
from farflung.step.context import StepContext
from farflung.step.ready_loop import QueuedActions, run_actions
from farflung.step.run_setup import Phase
from farflung.step.stages.local_stages import LocalStages
from farflung.step.step_meter import StepMeter

__all__ = ["ForwardGraph", "open_graph", "run_forward"]


@dataclass(frozen=True, kw_only=True)
class ForwardGraph:
    """A forward-only graph, cut along the training stages. ``pieces``: (training stage, sub-graph). ``own``: pieces run here."""

    graph: Graph
    phase: Phase
    pieces: tuple[tuple[int, SubGraph], ...]
    own: tuple[tuple[SubGraph, StageRunner], ...]

    @property
    def local(self) -> tuple[SubGraph, ...]:
        """The pieces that run here."""
        return tuple(piece for piece, _ in self.own)

    def maker(self, output: str) -> int:
        """Return the number of the piece that makes the graph's ``output``."""
        op = dict(self.graph.outputs)[output].op
        position = self.graph.position[op]
        return next(i for i, (_, piece) in enumerate(self.pieces) if piece.start <= position < piece.stop)


def open_graph(context: StepContext, stages: LocalStages, graph: Graph, phase: Phase) -> ForwardGraph:
    """Open ``graph`` once for a run: its runners share the memory of the training's states."""
    setup, job = context.setup, context.setup.job
    pieces = setup.side_cut(graph)
    settings = EngineSettings(device=context.device, seed=job.seed, precision=job.precision, training=False)
    own = tuple(
        (piece, context.engine.open(piece, settings, share=stages.base(stage)))
        for stage, piece in pieces
        if setup.primary(stage) == setup.device
    )
    _share_unread(context, stages, phase, (pieces, {piece.stage: runner for piece, runner in own}))
    return ForwardGraph(graph=graph, phase=phase, pieces=pieces, own=own)


def _share_unread(
    context: StepContext,
    stages: LocalStages,
    phase: Phase,
    opened: tuple[Sequence[tuple[int, SubGraph]], Mapping[int, StageRunner]],
) -> None:
    """Copy states that training reads nowhere from stage 0, which stores them, to the pieces that read them.

    Training never changes these states, so one copy serves the whole run. ``opened``: all pieces, and the own runners.
    """
    setup, (pieces, own) = context.setup, opened
    source, reading = setup.primary(0), [(stage, piece, setup.unread_states(stage, piece)) for stage, piece in pieces]
    # Send everything before waiting for anything: this worker may send to itself, too.
    if setup.device == source:
        for stage, piece, names in reading:
            for name, value in stages.base(0).states(names).items():
                context.transfer.send_arrays(setup.primary(stage), {_state_key(phase, piece, name): value})
    for _, piece, names in reading:
        if names and piece.stage in own:
            own[piece.stage].load({name: context.inbox.take(_state_key(phase, piece, name)) for name in names})


def _state_key(phase: Phase, piece: SubGraph, name: str) -> StateKey:
    return StateKey(phase=phase.value, stage=piece.stage, name=name)


def run_forward(
    context: StepContext, opened: ForwardGraph, at: tuple[int, int], feed: Mapping[str, Array] | None = None
) -> dict[str, Array]:
    """Compute one micro-batch through the own pieces; return the graph outputs made here.

    ``at``: step and micro-batch. ``feed``: the values of placeholders (None: the hooks give them).
    """
    source = _ForwardPieces(context, opened, at, feed)
    run_actions(source, context, StepMeter())
    return source.outputs


class _SideRoutes:
    """Keys and destinations of one pass; a stage number is the number of a piece."""

    def __init__(self, context: StepContext, opened: ForwardGraph, step: int) -> None:
        self._context, self._opened, self._step = context, opened, step

    def key(self, micro_batch: int, edge: Edge, *, gradient: bool) -> SideKey:
        """See ``Routes``."""
        assert not gradient
        return SideKey(
            phase=self._opened.phase.value,
            step=self._step,
            number=micro_batch,
            value=str(edge.value),
            source=edge.source,
            target=edge.target,
        )

    def send(self, micro_batch: int, results: Sequence[tuple[Edge, Array | EncodedValue]], *, gradient: bool) -> None:
        """See ``Routes``. A worker gets all its values in one frame."""
        found: dict[str, dict[SideKey | StateKey, Array]] = {}
        for edge, value in results:
            peer = self._context.setup.primary(self._opened.pieces[edge.target][0])
            found.setdefault(peer, {})[self.key(micro_batch, edge, gradient=gradient)] = array_of(value)
        for peer, arrays in found.items():
            self._context.transfer.send_arrays(peer, arrays)


class _ForwardPieces(QueuedActions):
    """The own pieces, one after the other."""

    def __init__(self, context: StepContext, opened: ForwardGraph, at: tuple[int, int], feed: Mapping[str, Array] | None) -> None:
        step, micro_batch = at
        super().__init__(context.inbox, _SideRoutes(context, opened, step), step, training=False)
        self._context, self._phase, self._feed = context, opened.phase, feed
        self._own = dict(enumerate(opened.own))
        self._queue = [Action(number, ActionKind.FORWARD, micro_batch) for number in self._own]
        self.outputs: dict[str, Array] = {}

    def heads(self) -> Sequence[Action]:
        return self._queue[:1]  # in program order: a piece may read what an earlier one made here

    def piece(self, action: Action) -> SubGraph:
        return self._own[action.stage][0]

    def runner(self, action: Action) -> StageRunner:
        return self._own[action.stage][1]

    def data(self, action: Action) -> Mapping[str, Array]:
        piece = self.piece(action)
        if self._feed is None:
            return self._context.data(piece, self._phase, self.step, action.micro_batch)
        return {name: self._feed[name] for name in piece.placeholders}

    def completed(self, action: Action, result: ActionResult) -> None:
        self._queue.pop(0)
        self.outputs |= result.outputs
