"""What a checked request asks for can be sent to the workers."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from farflung.messages.schema import Channel
from farflung.messages.serving import DrawItem, ServedBatch
from farflung.messages.wire_form import decode, encode
from farflung.serving.openai import CompletionRequest


def test_the_largest_seed_gives_all_choices_seeds_that_workers_accept() -> None:
    body = CompletionRequest(model="tiny", prompt="x", seed=2**53 - 1, n=64)
    draws = [body.draws(choice) for choice in range(body.n)]
    items = tuple(DrawItem(place=0, temperature=1.0, top_k=0, top_p=1.0, seed=one.seed, index=0, logprobs=0) for one in draws)
    sent = ServedBatch(run="serve-1", number=0, rows=1, tokens=(1,), positions=(0,), slots=(0,), draws=items)
    assert decode(encode(sent), Channel.DATA) == sent
    assert len({one.seed for one in draws}) == 64


def test_stops_are_short_and_few() -> None:
    """Every drawn token is compared with the beginnings of all stops: a long one would hold up all requests."""
    accepted = CompletionRequest(model="tiny", prompt="x", stop=["a" * 500] * 16)
    assert len(accepted.stop) == 16
    for stop, text in (("a" * 501, "at most 500 characters"), (["a"] * 17, "at most 16 items")):
        with pytest.raises(ValidationError, match=text):
            CompletionRequest(model="tiny", prompt="x", stop=stop)
