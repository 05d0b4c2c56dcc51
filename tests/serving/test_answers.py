"""What an answer says of its tokens: texts, places, probabilities and bytes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from farflung.messages.serving import TokenItem
from farflung.serving.answers import Answer
from farflung.serving.generation import Piece

#: Both parts of a character that is cut have the same text.
TEXTS = ("one", " two", "\N{REPLACEMENT CHARACTER}", "\N{REPLACEMENT CHARACTER}", "é")


def answer(kind: Literal["completion", "chat"]) -> Answer:
    return Answer(kind=kind, name="x", created=0, model="tiny", shows=True, numbers=False, spell=TEXTS.__getitem__)


def piece(token: int, likely: Sequence[tuple[int, float]] = ()) -> Piece:
    return Piece(token=TokenItem(token=token, logprob=-1.0, likely=tuple(likely)))


def shown(body: dict[str, Any]) -> Any:
    return body["choices"][0]["logprobs"]


def test_places_of_tokens_continue_over_the_pieces_of_a_stream() -> None:
    tokens = (0, 1, 4, 0)
    whole = shown(answer("completion").whole([[piece(token) for token in tokens]], 1))["text_offset"]
    assert whole == [0, 3, 7, 8]
    one = answer("completion")
    parts = [shown(one.part(index, piece(token)))["text_offset"] for token in tokens for index in (0, 1)]
    assert parts == [[place] for place in whole for _ in (0, 1)], "each choice has places of its own"


def test_likely_tokens_of_one_text_are_all_shown() -> None:
    body = answer("completion").part(0, piece(2, [(2, -0.5), (0, -1.0), (3, -2.0)]))
    assert shown(body)["top_logprobs"] == [{TEXTS[2]: -0.5, "one": -1.0, "token_id:3": -2.0}]


def test_parts_of_a_character_have_no_bytes() -> None:
    first, second = (shown(answer("chat").part(0, piece(token)))["content"][0] for token in (2, 4))
    assert (first["token"], first["bytes"]) == (TEXTS[2], None)
    assert (second["token"], second["bytes"]) == ("é", [0xC3, 0xA9])
