"""Evaluation and text generation through the stages that train: forward only, with the very states that they hold."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from farflung.engines.base import Array, EngineSettings, MicroBatch, StageRunner
from farflung.errors import InputError
from farflung.graph.cut import Edge, SubGraph
from farflung.graph.ir import Graph
from farflung.ids import derive_seed
from farflung.step.run_setup import Phase

if TYPE_CHECKING:
    from farflung.step.executor import Executor

__all__ = ["Pass", "ends_here", "evaluate", "generate", "is_due"]

_AHEAD = 4


@dataclass(frozen=True, kw_only=True)
class Pass:
    """A forward-only graph, cut along the training stages; ``own`` are the pieces that run here."""

    graph: Graph
    phase: Phase
    pieces: tuple[tuple[int, SubGraph], ...]
    own: tuple[tuple[SubGraph, StageRunner], ...]

    @property
    def here(self) -> tuple[SubGraph, ...]:
        """The pieces that run here."""
        return tuple(piece for piece, _ in self.own)

    def device(self, executor: Executor, piece: int) -> str:
        """Where ``pieces[piece]`` runs."""
        return executor.setup.home(self.pieces[piece][0])

    def output_device(self, executor: Executor, output: str) -> str:
        """Where the graph's ``output`` is made."""
        op = dict(self.graph.outputs)[output].op
        position = self.graph.position[op]
        index = next(i for i, (_, piece) in enumerate(self.pieces) if piece.start <= position < piece.stop)
        return self.device(executor, index)


def _open(executor: Executor, graph: Graph, phase: Phase) -> Pass:
    """Opened once for a run: the runners share the memory of the training's states."""
    if phase in executor.opened:
        return executor.opened[phase]
    setup = executor.setup
    pieces = setup.side_cut(graph)
    own = []
    for stage, piece in pieces:
        if setup.home(stage) != setup.device:
            continue
        settings = EngineSettings(
            device=executor.compute_device, seed=setup.job.seed, precision=setup.job.precision, training=False
        )
        own.append((piece, executor.engine.open(piece, settings, share=executor.base(stage))))
    _lend(executor, phase, pieces, {piece.stage: runner for piece, runner in own})
    work = executor.opened[phase] = Pass(graph=graph, phase=phase, pieces=pieces, own=tuple(own))
    return work


def _lend(executor: Executor, phase: Phase, pieces: Sequence[tuple[int, SubGraph]], own: Mapping[int, StageRunner]) -> None:
    """Copy states that training reads nowhere from stage 0, which keeps them, to the pieces that read them.

    Training never changes these states, so one copy serves the whole run.
    """
    setup = executor.setup
    lender, reading = setup.home(0), [(stage, piece, setup.lent(stage, piece)) for stage, piece in pieces]
    if setup.device == lender:
        for stage, piece, names in reading:
            for name, value in executor.base(0).states(names).items():
                key = _lent_key(phase, piece, name)
                if setup.home(stage) == lender:
                    executor.mailbox.put(key, value)
                else:
                    executor.courier.send_array(setup.home(stage), key, value)
    for _, piece, names in reading:
        if names and piece.stage in own:
            own[piece.stage].load({name: executor.mailbox.take(_lent_key(phase, piece, name)) for name in names})


def _lent_key(phase: Phase, piece: SubGraph, name: str) -> tuple[str | int, ...]:
    return ("side", phase.value, "lent", piece.stage, name)


def _forward(executor: Executor, work: Pass, step: int, micro_batch: int, feed: Mapping[str, Array] | None) -> dict[str, Array]:
    """One micro-batch through the own pieces; the graph outputs made here."""
    outputs: dict[str, Array] = {}
    executor.mailbox.wait_until(lambda: True)  # raises if the run was aborted: a single worker waits nowhere else
    for piece, runner in work.own:
        values = {edge.value: executor.mailbox.take(_key(work, step, micro_batch, edge)) for edge in piece.takes}
        if feed is None:
            data = executor.data(piece, work.phase, step, micro_batch)
        else:
            data = {name: feed[name] for name in piece.placeholders}
        result = runner.forward(MicroBatch(step, micro_batch), values, data)
        outputs |= result.outputs
        for edge in piece.gives:
            key = _key(work, step, micro_batch, edge)
            peer = work.device(executor, edge.target)
            if peer == executor.setup.device:
                executor.mailbox.put(key, result.values[edge.value])
            else:
                executor.courier.send_array(peer, key, result.values[edge.value])
    return outputs


def _key(work: Pass, step: int, micro_batch: int, edge: Edge) -> tuple[str | int, ...]:
    return ("side", work.phase.value, step, micro_batch, str(edge.value), edge.source, edge.target)


class _Verdicts:
    """What the worker that makes the loss says after each micro-batch: whether the evaluation shall end."""

    def __init__(self, executor: Executor, leads: bool) -> None:
        self._executor, self._leads = executor, leads
        self._told: list[bool] = []

    def tell(self, index: int) -> None:
        """Micro-batch ``index`` is done (the leader tells all others)."""
        if not self._leads:
            return
        executor = self._executor
        self._told.append(executor.hooks.stop_requested())
        for peer in executor.setup.peers:
            executor.courier.post(peer, f"eval-done-{index}", executor.step, {"stop": self._told[index]})

    def ends(self, index: int) -> bool:
        """What was said after micro-batch ``index``; others than the leader wait for it. Ask in ascending order."""
        if not self._leads and index == len(self._told):
            message = self._executor.mailbox.take((f"eval-done-{index}", self._executor.step))
            self._told.append(bool(message["stop"]))
        return self._told[index]


def ends_here(executor: Executor, phase: Phase) -> bool:
    """Whether the run ends after the training step (or evaluation) that is just done; waits until that is known."""
    answer = executor.hooks.ends_after(phase, executor.step)
    if answer is not None:
        return answer
    answers: list[bool] = []

    def known() -> bool:
        answer = executor.hooks.ends_after(phase, executor.step)
        answers.extend([] if answer is None else [answer])
        return answer is not None

    executor.mailbox.wait_until(known)
    return answers[-1]


def is_due(executor: Executor, header: Mapping[str, Any]) -> bool:
    """Whether a batch of the submitter may wait here: of the next step at most, and of the next few batches of an evaluation."""
    step, key = int(header["step"]), header.get("key")
    if isinstance(key, list) and len(key) == 4 and key[0] == "eval" and isinstance(key[2], int):
        return executor.step > step or (executor.step == step and key[2] <= executor.evaluated + _AHEAD)
    return executor.step + 1 >= step


def evaluate(executor: Executor) -> bool:
    """Mean of the evaluation graph's outputs over the job's evaluation micro-batches, given to ``hooks.on_evaluation``.

    Workers upstream run at most a few micro-batches ahead of the one that makes the loss, so memory stays bounded. That one
    also says whether somebody asked for the run's end; then all workers end after the same micro-batch (those under way are
    finished, nothing is reported of an evaluation that is not whole). Returns whether that happened.
    """
    setup = executor.setup
    if setup.eval_graph is None:
        return False
    work = _open(executor, setup.eval_graph, Phase.EVAL)
    batches, done = setup.job.evaluate.batches, 0
    leads = work.output_device(executor, "loss") == setup.device
    verdicts = _Verdicts(executor, leads)
    totals: dict[str, float] = {}
    while done < batches and not (done >= _AHEAD and verdicts.ends(done - _AHEAD)):
        for name, value in _forward(executor, work, executor.step, done, None).items():
            if value.size == 1:
                totals[name] = totals.get(name, 0.0) + float(value.reshape(()))
        verdicts.tell(done)
        done += 1
        executor.evaluated = done
        executor.mailbox.poke()  # the submitter's next batch may come
    executor.evaluated = 0  # before the batches of the next evaluation come
    last = [verdicts.ends(index) for index in range(max(0, done - _AHEAD), done)]  # takes all that was told
    if leads and done < batches:
        executor.hooks.event("note", text=f"stopped: the evaluation was left out after {done} of its {batches} micro-batches")
    elif leads:
        executor.hooks.on_evaluation(executor.step, {name: total / batches for name, total in totals.items()})
    return any(last)


def generate(executor: Executor) -> None:
    """Tokens from the job's prompt, one at a time, through the same stages; given to ``hooks.on_text`` where the logits are made.

    The graph has a fixed context length T: tokens int64[1, T] in, logits [1, T, V] out; the context slides over the last T
    tokens. A causal model never looks right of a position, so the padding does not matter. Where the logits are made it is
    also decided after each token whether the run shall end there.
    """
    setup = executor.setup
    if setup.generate_graph is None:
        return
    job = setup.job
    work = _open(executor, setup.generate_graph, Phase.GENERATE)
    (placeholder,) = (op.name for op in work.graph.placeholders)
    context = work.graph.op(placeholder).outputs[0].shape[-1]
    leader = work.output_device(executor, "logits")
    readers = {work.device(executor, index) for index, (_, piece) in enumerate(work.pieces) if piece.placeholders}
    if setup.device in readers | {leader}:
        given = executor.hooks.provide(Phase.GENERATE, 0, 0, [placeholder])[placeholder]
        tokens = [int(token) for token in given.reshape(-1)]
        if not tokens:
            raise InputError("the prompt is empty: give generate.prompt at least one character")
    else:
        tokens = []
    random = np.random.default_rng(derive_seed("generate", job.seed))
    last = False
    for index in range(job.generate.tokens):
        window = tokens[-context:]
        fed = np.zeros((1, context), dtype=np.int64)
        fed[0, : len(window)] = window
        outputs = _forward(executor, work, executor.step, index, {placeholder: fed})
        if leader == setup.device:
            token = _sample(outputs["logits"][0, len(window) - 1].astype(np.float64), job.generate.temperature, random)
            last = executor.hooks.stop_requested() and index + 1 < job.generate.tokens
            for peer in setup.peers:
                executor.courier.post(peer, f"token-{index}", executor.step, {"token": token, "stop": last})
        else:
            said = executor.mailbox.take((f"token-{index}", executor.step))
            token, last = int(said["token"]), bool(said["stop"])
        tokens.append(token)
        if last:
            break
    if leader == setup.device:
        if last:
            executor.hooks.event("note", text=f"stopped: the text ends after {index + 1} of its {job.generate.tokens} tokens")
        executor.hooks.on_text(tokens)


def _sample(logits: Array, temperature: float, random: np.random.Generator) -> int:
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = (logits - logits.max()) / temperature
    weights = np.exp(scaled)
    return int(random.choice(len(weights), p=weights / weights.sum()))
