"""A served model: batches of tokens through the stages, with a key-value cache per stage, until somebody stops the run.

The serving process sends each batch to every worker. A stage computes the batches in the order of their numbers, so the
caches of all stages change in the same order. The worker that makes the logits draws the tokens, and only the
tokens travel back. The caches are states of the graphs (``frontends.recipes.serving``).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

import numpy as np

from farflung.engines.base import Array
from farflung.errors import WireError
from farflung.ids import derive_seed
from farflung.messages.serving import DrawItem, ServedBatch, ServedTokens, TokenItem
from farflung.step.context import StepContext
from farflung.step.evaluation.forward_pass import ForwardGraph, open_graph, run_forward
from farflung.step.evaluation.sampling import draw_token, likeliest, log_probabilities
from farflung.step.run_setup import Phase
from farflung.step.stages.local_stages import LocalStages
from farflung.step.transfer.outbox import OutgoingMessage
from farflung.transports.base import Urgency

__all__ = ["Serving"]

#: Batches that may wait on a worker; the serving process has fewer under way.
_MOST_WAITING = 256
#: In place of infinite logits.
_WIDE = 1e30
#: How often a worker without a batch looks whether the run is stopped.
_POLL_SECONDS = 0.2


class Serving:
    """One worker's part in serving a model. The compute thread calls ``run``, transport threads call ``receive``."""

    def __init__(self, context: StepContext, stages: LocalStages) -> None:
        self._context, self._stages = context, stages
        #: By tokens in a row; opened by ``run``.
        self._graphs: dict[int, ForwardGraph] = {}
        self._next = 0

    def run(self) -> None:
        """Compute batches until the run is stopped.

        Raises:
            WireError: a batch does not fit the model.
            BaseException: the error that ended the run meanwhile.
        """
        context, setup = self._context, self._context.setup
        self._graphs = {
            rows: open_graph(context, self._stages, graph, Phase.SERVE) for rows, graph in sorted(setup.graphs.items())
        }
        context.outbox.add_guest(setup.submitter, context.inbox.abort)
        while (batch := self._wait()) is not None:
            if (opened := self._graphs.get(batch.rows)) is None:
                raise WireError(f"a batch for {batch.rows} tokens: the model has graphs for {sorted(self._graphs)}")
            feed = _feed(batch, opened)
            outputs = run_forward(context, opened, (0, batch.number), feed)
            if "logits" in outputs:  # also without draws: the serving process counts the batches that are under way
                drawn = tuple(_drawn(draw, outputs["logits"][index]) for index, draw in enumerate(batch.draws))
                answer = ServedTokens(run=setup.run, number=batch.number, drawn=drawn)
                context.outbox.post(setup.submitter, OutgoingMessage(make=partial(_same, answer), urgency=Urgency.CONTROL))

    def receive(self, _: str, batch: ServedBatch) -> None:
        """Store a batch (transport thread).

        Raises:
            WireError: too many wait.
        """
        if batch.number >= self._next + _MOST_WAITING:
            raise WireError(f"batch {batch.number} came while batch {self._next} is computed: at most {_MOST_WAITING} may wait")
        self._context.inbox.put(_key(batch.number), batch)

    def _wait(self) -> ServedBatch | None:
        """Take the next batch (``None``: the run is stopped)."""
        inbox, key = self._context.inbox, _key(self._next)
        while not inbox.wait_for(key, _POLL_SECONDS):
            if self._context.hooks.stop_requested():
                return None
        self._next += 1
        found: ServedBatch = inbox.take(key)
        return found


def _same(answer: ServedTokens) -> ServedTokens:
    return answer


def _key(number: int) -> tuple[str, int]:
    return ("serve", number)


def _feed(batch: ServedBatch, opened: ForwardGraph) -> Mapping[str, Array]:
    """The inputs of the graph. Places without a token have no slot.

    Raises:
        WireError: the batch is larger than its graph, or its parts do not agree.
    """
    count, draws = len(batch.tokens), [draw.place for draw in batch.draws]
    results = opened.graph.op("wanted").outputs[0].shape[0]
    if not count == len(batch.positions) == len(batch.slots) or count > batch.rows:
        raise WireError(f"a batch has {count} tokens, {len(batch.positions)} positions and {len(batch.slots)} slots")
    if len(draws) > results or any(place >= count for place in draws):
        raise WireError(f"a batch of {count} tokens draws after {draws!s:.80}: its graph has {results} results")
    rest = [0] * (batch.rows - count)
    return {
        "tokens": np.asarray([[*batch.tokens, *rest]], np.int64),
        "positions": np.asarray([[*batch.positions, *rest]], np.int64),
        "slots": np.asarray([*batch.slots, *(-1 for _ in rest)], np.int64),
        "wanted": np.asarray([*draws, *(0 for _ in range(results - len(draws)))], np.int64),
    }


def _drawn(draw: DrawItem, row: Array) -> TokenItem:
    logits = row if row.dtype in (np.float32, np.float64) else row.astype(np.float32)
    if not np.isfinite(logits).all():  # JSON has only finite numbers
        logits = np.nan_to_num(logits, nan=-_WIDE, posinf=_WIDE, neginf=-_WIDE)
    random = np.random.default_rng(derive_seed("serve", draw.seed, draw.index))
    token = draw_token(logits, random, temperature=draw.temperature, top_k=draw.top_k, top_p=draw.top_p)
    likely = [int(one) for one in likeliest(logits, draw.logprobs)]
    logprob, *others = log_probabilities(logits, [token, *likely])
    return TokenItem(token=token, logprob=logprob, likely=tuple(zip(likely, others, strict=True)))
