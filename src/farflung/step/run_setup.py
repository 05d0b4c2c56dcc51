"""What every worker knows of a run, and what a step asks of its surroundings."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from functools import cached_property
from typing import Literal, Protocol

from farflung.engines.base import Array
from farflung.engines.state_file import DiskSpace
from farflung.graph.cut import SubGraph, cut
from farflung.graph.ir import Graph
from farflung.job.spec import JobSpec
from farflung.memory_budget import MemoryBudget
from farflung.messages.commands import CopyRounds
from farflung.messages.conversions.step_reports import StepReport
from farflung.messages.data import ValueKey
from farflung.plan.evaluation_cuts import derive_bounds
from farflung.plan.link_memory import Route, routes_of
from farflung.plan.model import Plan
from farflung.telemetry.trace import Span

__all__ = ["Committed", "Phase", "RunHooks", "RunSetup", "attempt_name", "data_key", "most_value_bytes", "sender_of"]


def attempt_name(run: str, attempt: int) -> str:
    """Return the name of plan number ``attempt`` of ``run`` between workers: frames of an older plan are ignored."""
    return run if attempt == 1 else f"{run}~{attempt}"


class Phase(StrEnum):
    """What a forward is for."""

    TRAIN = "train"
    #: The second forward of a step without a backward (``step.zeroth_order``).
    PROBE = "probe"
    EVAL = "eval"
    GENERATE = "generate"
    #: Batches of a served model.
    SERVE = "serve"


def data_key(phase: Phase) -> Literal["data", "eval"]:
    """Return the beginning of the key of a batch that the submitter sends: training and evaluation have keys of their own."""
    return "eval" if phase is Phase.EVAL else "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """What the states of a checkpoint consist of: applied ``steps`` (not those that were skipped or rolled back).

    ``rested``: samples of such steps, since the attempt's first, that nobody computed because replicas took no part
    (``sync.pacing``). ``left_out``: those that this worker's replica computed and left out alone, because they overflowed.
    """

    steps: int
    rested: int = 0
    left_out: int = 0


@dataclass(frozen=True, kw_only=True)
class RunSetup:
    """A run as every worker sees it; ``device`` is this worker's name in the plan, ``run`` the run's ``attempt_name``.

    ``graphs``: training graphs by number of samples in the micro-batch (they differ in shapes only). ``eval_graph`` and
    ``generate_graph`` read the same states by the same names. ``first_step`` is where a resumed run continues; ``committed`` is
    how many steps before it were applied. ``recovered``: the run continues after a loss. ``survives``: a later attempt may
    continue from the states that this one leaves. ``checkpoint_step`` and ``checkpoint_committed``: the same
    of the newest checkpoint, if the run does not begin with that one. ``rounds``: which workers store copies of whose states.
    ``secrets``: of the workers whose units this one may verify (``plan.verification``). ``budget``: of this process's memory.
    ``submitter``: the process that submitted the run. ``disk``: what this worker offers for optimizer states (None: nothing).
    """

    run: str
    device: str
    job: JobSpec
    plan: Plan
    graphs: Mapping[int, Graph]
    eval_graph: Graph | None = None
    generate_graph: Graph | None = None
    first_step: int = 0
    committed: int = 0
    recovered: bool = False
    survives: bool = False
    checkpoint_step: int | None = None
    checkpoint_committed: int | None = None
    rounds: CopyRounds = field(default_factory=CopyRounds)
    secrets: Mapping[str, str] = field(default_factory=dict)
    submitter: str = ""
    budget: MemoryBudget = field(default_factory=MemoryBudget)
    disk: DiskSpace | None = None

    @cached_property
    def graph(self) -> Graph:
        """The training graph of the largest micro-batch, on which the plan stands."""
        return self.graphs[max(self.graphs)]

    @cached_property
    def subgraphs(self) -> tuple[SubGraph, ...]:
        """The plan's stages as sub-graphs of ``graph``."""
        return cut(self.graph, self.plan.bounds)

    @cached_property
    def routes(self) -> Mapping[Route, int]:
        """The routes of values that have a sample cache, and the bytes of the cache for one sample."""
        return routes_of(self.plan, self.subgraphs)

    @cached_property
    def own_stages(self) -> tuple[int, ...]:
        """Indices of the stages of which this device holds a replica."""
        return tuple(stage.index for stage in self.plan.stages if self.device in stage.devices)

    @cached_property
    def places(self) -> tuple[tuple[str, ...], ...]:
        """``places[stage][micro_batch]``: the device that computes it."""
        replicas = (self.plan.replicas_of(stage.index) for stage in self.plan.stages)
        return tuple(tuple(replica.device for replica in held for _ in replica.micro_batches) for held in replicas)

    @cached_property
    def primary_stages(self) -> frozenset[int]:
        """The own stages whose primary this device is: it writes their checkpoints, gives their norms, and evaluates."""
        return frozenset(index for index in self.own_stages if self.primary(index) == self.device)

    @cached_property
    def loss_stage(self) -> int:
        """The stage that makes the loss (of a served model: the logits); its primary leads the run."""
        position = self.graph.position[self.graph.result.op]
        return next(stage.index for stage in self.plan.stages if stage.start <= position < stage.stop)

    @property
    def leader(self) -> str:
        """The device that knows the loss and decides whether a step is applied."""
        return self.plan.stages[self.loss_stage].device

    @cached_property
    def peers(self) -> tuple[str, ...]:
        """The other devices of the plan."""
        return tuple(device for device in self.plan.devices if device != self.device)

    @cached_property
    def number(self) -> int:
        """With a sync strategy: which pipeline this device belongs to."""
        return next((stage.devices.index(self.device) for stage in self.plan.stages if self.device in stage.devices), 0)

    @cached_property
    def pipeline(self) -> tuple[str, ...]:
        """With a sync strategy: the devices of this device's pipeline, by stage."""
        return tuple(stage.devices[self.number] for stage in self.plan.stages)

    @cached_property
    def update_group(self) -> tuple[str, ...]:
        """The other devices whose gradients belong to the same updates: with a sync strategy those of the pipeline, else all."""
        if self.plan.sync is None:
            return self.peers
        return tuple(device for device in self.peers if device in self.pipeline)

    @cached_property
    def part(self) -> float:
        """The share of the step's loss that this device's updates stand for: 1, or with a sync strategy the pipeline's."""
        if self.plan.sync is None:
            return 1.0
        replica = self.plan.replicas_of(0)[self.number]
        return sum(self.job.weight(index) for index in replica.micro_batches)

    def keeps(self, step: int) -> bool:
        """Return whether the job wants a checkpoint after ``step`` steps; the checkpoint of the end does not count."""
        every = self.job.checkpoint.every
        return bool(every and step and step % every == 0)

    def evaluates(self, step: int) -> bool:
        """Return whether the job wants an evaluation after ``step`` steps; the evaluation of the end does not count.

        An evaluation for each so many micro-batches comes after the step that reads the last one of them.
        """
        asked = self.job.evaluate
        unit, every = (self.job.micro_batches, asked.every_batches) if asked.every_batches else (1, asked.every)
        return bool(every) and 0 < step < self.job.steps and unit * step // every > unit * (step - 1) // every

    def owner(self, state: str) -> int:
        """Return the stage that writes ``state`` into checkpoints and norms: the first that reads it."""
        return next(piece.stage for piece in self.subgraphs if state in piece.states)

    def primary(self, stage: int) -> str:
        """Return the primary of ``stage``: the device of its first replica."""
        return self.plan.stages[stage].device

    @property
    def most_keys(self) -> int:
        """More than the keys that can ever wait in a worker's inbox: a bound for a faulty peer.

        A worker is at most a step behind, so values of two steps wait (counted twice over, for other graphs than training's),
        the uses of parameters that come from other stages and replicas, and a few messages of each peer.
        """
        pieces = self.subgraphs
        values = sum(len(p.requires_activations) + len(p.requires_gradients) + len(p.placeholders) for p in pieces)
        uses = sum(map(len, self.graph.uses.values())) * (len(pieces) + len(self.job.virtual_ends) + len(self.peers))
        messages = 16 * (len(self.peers) + 1) + self.job.evaluate.batches + _most_parts(self)
        messages += 0 if self.plan.sync is None else 4 * max(self.plan.sync.local_steps, default=0)  # who rests is behind
        return 1000 + 4 * ((self.job.micro_batches + 8) * values + uses) + messages

    def side_cut(self, graph: Graph) -> tuple[tuple[int, SubGraph], ...]:
        """Evaluation or generation ``graph`` cut so that every state is read where training keeps it: (stage, sub-graph).

        A state that training does not read may be read anywhere: see ``unread_states``.
        """
        homes = {stage.stage: frozenset(stage.states) - self.graph.unread for stage in self.subgraphs}
        parts = derive_bounds(graph, [homes[index] for index in range(len(self.subgraphs))])
        pieces = cut(graph, [(start, stop) for _, start, stop in parts])
        return tuple((stage, piece) for (stage, _, _), piece in zip(parts, pieces, strict=True))

    def unread_states(self, stage: int, piece: SubGraph) -> tuple[str, ...]:
        """Return the states that ``piece`` of a ``side_cut`` reads in ``stage`` and that training reads nowhere."""
        if stage == 0:
            return ()
        return tuple(name for name in piece.states if name in self.graph.unread and name in piece.graph.uses)


def _most_parts(setup: RunSetup) -> int:
    """Return how many pieces of sums may wait, of two steps, where replicas sum in any order."""
    most = 0
    for index in setup.own_stages:
        stage, trained = setup.plan.stages[index], setup.subgraphs[index].states
        if stage.adds is not None:
            uses = sum(len(setup.graph.uses.get(name, ())) * setup.graph.state[name].spec.nbytes for name in trained)
            most += 2 * len(stage.devices) * stage.adds.count(len(stage.devices), uses)
    return most


def sender_of(setup: RunSetup, key: Hashable) -> str:
    """Return the device that sends what waits under ``key`` in an inbox (empty: none, or several may)."""
    if isinstance(key, ValueKey):
        stage, trains = key.target if key.gradient else key.source, key.phase in (Phase.TRAIN.value, Phase.PROBE.value)
        return setup.places[stage][key.micro_batch] if trains else setup.primary(stage)
    parts = key if isinstance(key, tuple) else ()
    named = [str(part) for part in parts[1:] if part in setup.peers]
    return named[0] if named else setup.leader if parts[:1] == ("verdict",) else ""


class RunHooks(Protocol):
    """A worker's surroundings, as the executor sees them. Called from the compute thread."""

    def provide(self, phase: Phase, step: int, micro_batch: int, names: Sequence[str]) -> Mapping[str, Array]:
        """The data of placeholders ``names`` for one micro-batch."""

    def first_states(self, names: Sequence[str]) -> Mapping[str, Array] | None:
        """Values of the states to begin with; None: replay the recorded initializers. Missing names are initialized."""

    def first_optimizer(self, parameters: Sequence[str]) -> Mapping[str, Array]:
        """Optimizer state to go on from (empty: none)."""

    def stop_requested(self) -> bool:
        """Asked on the leader after each step's losses, and after each micro-batch of an evaluation and each generated token:
        whether the run shall end there."""

    def save_requested(self) -> bool:
        """Return, on the leader after each step's losses, whether a checkpoint to recover from is written after the step."""

    def leave_requested(self) -> bool:
        """Return, on the leader after each step's losses but the last one's, whether the attempt ends after the step, with a
        checkpoint from which another one continues."""

    def ends_after(self, phase: Phase, step: int) -> bool | None:
        """Return, on every worker after training step ``step`` (``TRAIN``) and after an evaluation when ``step`` steps are done
        (``EVAL``), whether the run ends here. All workers must get the same answer. None: not known yet; the executor asks
        again when its inbox is poked, under the inbox's lock."""

    def on_step(self, report: StepReport) -> None:
        """Report a step that was applied (or skipped)."""

    def on_checkpoint(self, step: int, committed: Committed, states: Mapping[str, Array], optimizer: Mapping[str, Array]) -> None:
        """Store this worker's share of the checkpoint after ``step`` steps; the arrays are valid until this returns."""

    def on_copy(self, step: int, device: str, states: Mapping[str, Array], optimizer: Mapping[str, Array]) -> None:
        """Report what ``device`` must write into the checkpoint after ``step`` steps: this worker has the same states.

        Called before ``on_checkpoint``.
        """

    def on_copied(self, step: int, hashes: Mapping[str, str]) -> None:
        """Report the hashes of own states after ``step`` steps, of which others get a copy (any thread)."""

    def on_evaluation(self, step: int, outputs: Mapping[str, float]) -> None:
        """Report means over the evaluation's micro-batches (on the worker that makes the outputs)."""

    def on_text(self, tokens: Sequence[int]) -> None:
        """Report generated tokens, the prompt included (on the worker that makes the logits)."""

    def on_trace(self, spans: Sequence[Span], lost: int) -> None:
        """Report the spans of the trace since the last call, and how many were dropped (any thread)."""

    def on_note(self, text: str, *, detail: bool = False) -> None:
        """Report a line for people, from one worker only (any thread). ``detail``: for experts only."""

    def on_helper_gone(self, text: str) -> None:
        """Report on this machine that a helper has gone (any thread)."""


def most_value_bytes(setup: RunSetup) -> int:
    """Return the bytes of memory that one value of a run, or its gradient, can span at its receiver.

    A view brings the gaps of its storage, which is a value or a state of a graph. No graph names the complex array whose real
    part is a gradient (of ``fft_rfft``): hence twice as many.
    """
    graphs = [*setup.graphs.values(), *(graph for graph in (setup.eval_graph, setup.generate_graph) if graph is not None)]
    values = (spec.nbytes for graph in graphs for op in graph.ops for spec in op.outputs)
    states = (state.spec.nbytes for graph in graphs for state in graph.states)
    return 2 * max(1, *values, *states)
