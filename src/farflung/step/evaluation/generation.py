"""Text generation after training: tokens from the job's prompt, one at a time, through the stages that train."""

from __future__ import annotations

import numpy as np

from farflung.engines.base import Array
from farflung.errors import InputError
from farflung.ids import derive_seed
from farflung.messages.data import Token
from farflung.step.context import StepContext
from farflung.step.evaluation.forward_pass import ForwardGraph, open_graph, run_forward
from farflung.step.run_setup import Phase
from farflung.step.stages.local_stages import LocalStages

__all__ = ["generate"]


def generate(context: StepContext, stages: LocalStages, step: int) -> None:
    """Generate the job's tokens after ``step`` steps; ``hooks.on_text`` gets them where the logits are made.

    The graph has a fixed context length T: tokens int64[1, T] in, logits [1, T, V] out. The context slides over the last T
    tokens. A causal model never reads beyond a position, so the padding does not matter. The worker that makes the logits also
    decides after each token whether the run ends there.
    """
    setup = context.setup
    if setup.generate_graph is None:
        return
    job = setup.job
    work = open_graph(context, stages, setup.generate_graph, Phase.GENERATE)
    (placeholder,) = (op.name for op in work.graph.placeholders)
    length = work.graph.op(placeholder).outputs[0].shape[-1]
    leads = setup.primary(work.pieces[work.maker("logits")][0]) == setup.device
    tokens = _prompt(context, work, placeholder, leads=leads)
    random = np.random.default_rng(derive_seed("generate", job.seed))
    last = False
    for index in range(job.generate.tokens):
        window = tokens[-length:]
        fed = np.zeros((1, length), dtype=np.int64)
        fed[0, : len(window)] = window
        outputs = run_forward(context, work, (step, index), {placeholder: fed})
        if leads:
            token = _sample(outputs["logits"][0, len(window) - 1].astype(np.float64), job.generate.temperature, random)
            last = context.hooks.stop_requested() and index + 1 < job.generate.tokens
            for peer in setup.peers:
                context.transfer.post(peer, Token(run=setup.run, step=step, index=index, token=token, stop=last))
        else:
            message: Token = context.inbox.take(("token", step, index))
            token, last = message.token, message.stop
        tokens.append(token)
        if last:
            break
    if leads:
        if last:
            context.note(f"stopped: the text ends after {index + 1} of its {job.generate.tokens} tokens")
        context.hooks.on_text(tokens)


def _prompt(context: StepContext, work: ForwardGraph, placeholder: str, *, leads: bool) -> list[int]:
    """Return the prompt on the workers that read tokens or make them (empty on the others)."""
    setup = context.setup
    readers = {setup.primary(stage) for stage, piece in work.pieces if piece.placeholders}
    if not (leads or setup.device in readers):
        return []
    given = context.hooks.provide(Phase.GENERATE, 0, 0, [placeholder])[placeholder]
    tokens = [int(token) for token in given.reshape(-1)]
    if not tokens:
        raise InputError("the prompt is empty: give generate.prompt at least one character")
    return tokens


def _sample(logits: Array, temperature: float, random: np.random.Generator) -> int:
    if temperature == 0:
        return int(np.argmax(logits))
    scaled = (logits - logits.max()) / temperature
    weights = np.exp(scaled)
    return int(random.choice(len(weights), p=weights / weights.sum()))
