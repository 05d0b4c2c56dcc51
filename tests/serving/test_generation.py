"""The text of a continuation: whole characters, stops that are never shown, and why it ends."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from farflung.data.tokenizers import BytesTokenizer
from farflung.messages.serving import TokenItem
from farflung.serving.generation import Generation, Piece
from farflung.serving.scheduler import Draws, TokenSequence
from farflung.serving.tokenizers import PlainTokenizer


def pieces(text: str | bytes, *, most: int = 100, stops: Sequence[str] = (), ends: Sequence[int] = ()) -> list[Piece]:
    """What a continuation by the bytes of ``text`` gives, until it ends."""
    found: list[Piece] = []
    sequence = TokenSequence(tokens=[1], prompt=1, most=most, draws=Draws())
    one = Generation(
        sequence=sequence,
        tokenizer=PlainTokenizer(BytesTokenizer()),
        listen=found.append,
        stops=tuple(stops),
        ends=frozenset(ends),
    )
    for token in text.encode() if isinstance(text, str) else text:
        sequence.tokens.append(token)
        if one.take(TokenItem(token=token, logprob=-1.0, likely=())):
            break
    return found


def test_characters_come_whole() -> None:
    found = pieces("aé€b", most=7)
    assert [piece.text for piece in found] == ["a", "", "é", "", "", "€", "b"]
    assert [piece.cause for piece in found] == [None] * 6 + ["length"]


def test_bytes_that_never_become_a_character_are_shown_at_the_end() -> None:
    assert "".join(piece.text for piece in pieces(b"a\xe2\x82", most=3)) == "a\N{REPLACEMENT CHARACTER}"


@pytest.mark.parametrize(
    ("text", "stops", "shown"),
    [
        ("one two three", [" two"], "one"),
        ("one two three", ["three", "two"], "one "),
        ("aaab", ["aab"], "a"),
        ("abcabd", ["abd"], "abc"),
        ("é!", ["!"], "é"),
    ],
)
def test_a_stop_ends_the_text_before_it(text: str, stops: list[str], shown: str) -> None:
    found = pieces(text, stops=stops)
    assert "".join(piece.text for piece in found) == shown
    assert [piece.cause for piece in found if piece.cause] == ["stop"]


def test_what_may_become_a_stop_is_held_back_and_shown_when_it_does_not() -> None:
    found = pieces("ab", most=2, stops=["abc"])
    assert [piece.text for piece in found] == ["", "ab"]
    assert [piece.text for piece in pieces("abd", most=9, stops=["abc"])] == ["", "", "abd"]


def test_an_end_token_ends_the_text_and_is_no_part_of_it() -> None:
    found = pieces(b"hi\x00there", stops=["i!"], ends=[0])
    assert [(piece.text, piece.cause) for piece in found] == [("h", None), ("", None), ("i", "stop")]
    assert found[-1].token is None


def test_an_end_token_shows_the_text_that_waited_for_more_bytes() -> None:
    assert [piece.text for piece in pieces(b"a\xe2\x82\x00", ends=[0])] == ["a", "", "", "\N{REPLACEMENT CHARACTER}"]
