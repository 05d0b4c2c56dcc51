"""What a serving process and the workers of its model send each other on the data plane (``step.evaluation.serving``).

``run`` is the name of the attempt, as in ``messages.data``.
"""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from farflung.messages.data import RunMessage
from farflung.messages.schema import Amount, Channel, Count, Index, Item

__all__ = ["MOST_LOGPROBS", "MOST_TOKENS", "DrawItem", "ServedBatch", "ServedTokens", "TokenItem"]

#: Tokens of a batch, and log probabilities beside each drawn token.
MOST_TOKENS, MOST_LOGPROBS = 65_536, 20

_Token = Annotated[int, Meta(ge=0, le=2**31 - 1)]


class DrawItem(Item):
    """Draw the token that follows the one at ``place`` of the batch.

    ``temperature`` 0: the most likely token. ``top_k`` 0: from all tokens. The random number is a function of ``seed`` and
    ``index``, the number of tokens that the request has drawn before. ``logprobs``: how many of the most likely tokens to report.
    """

    place: Index
    temperature: Amount
    top_k: Index
    top_p: Annotated[float, Meta(gt=0.0, le=1.0)]
    seed: Count
    index: Count
    logprobs: Annotated[int, Meta(ge=0, le=MOST_LOGPROBS)]


class ServedBatch(RunMessage, kind="serve", on=Channel.DATA):
    """Tokens of several requests for one forward, for every worker of the model. ``number`` counts the batches of an attempt.

    ``rows``: which graph computes them, by its number of tokens. ``positions`` and ``slots``: see ``farflung.cached_attention``.
    """

    number: Count
    rows: Index
    tokens: Annotated[tuple[_Token, ...], Meta(min_length=1, max_length=MOST_TOKENS)]
    positions: Annotated[tuple[Index, ...], Meta(max_length=MOST_TOKENS)]
    slots: Annotated[tuple[Index, ...], Meta(max_length=MOST_TOKENS)]
    draws: Annotated[tuple[DrawItem, ...], Meta(max_length=MOST_TOKENS)]


class TokenItem(Item):
    """A drawn token with the natural logarithm of its probability; ``likely``: the most likely tokens with theirs."""

    token: _Token
    logprob: float
    likely: Annotated[tuple[tuple[_Token, float], ...], Meta(max_length=MOST_LOGPROBS)]


class ServedTokens(RunMessage, kind="served-tokens", on=Channel.DATA):
    """The drawn tokens of batch ``number``, one for each of its draws (a chunk of a prompt has none), to the serving process."""

    number: Count
    drawn: Annotated[tuple[TokenItem, ...], Meta(max_length=MOST_TOKENS)]
