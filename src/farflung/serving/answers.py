"""Bodies of answers of the OpenAI API: completions and chats, whole or in pieces."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any, Literal

from farflung.messages.serving import TokenItem
from farflung.serving.generation import Piece

__all__ = ["Answer", "error_body"]

_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


def error_body(message: str, *, kind: str = "invalid_request_error", code: str | None = None) -> dict[str, Any]:
    """The body of an answer that reports an error."""
    return {"error": {"message": message, "type": kind, "param": None, "code": code}}


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The answer to one request. ``spell`` gives the text of a token.

    ``shows``: whether it reports probabilities; ``numbers``: and the numbers of tokens.
    """

    kind: Literal["completion", "chat"]
    name: str
    created: int
    model: str
    shows: bool
    numbers: bool
    spell: Callable[[int], str]
    #: By choice: how many characters its tokens have so far.
    _ends: dict[int, int] = field(default_factory=dict)

    def whole(self, choices: Sequence[Sequence[Piece]], prompt_tokens: int) -> dict[str, Any]:
        """All choices, each with all of its pieces."""
        bodies = []
        for index, pieces in enumerate(choices):
            text = "".join(piece.text for piece in pieces)
            content = {"text": text} if self.kind == "completion" else {"message": {"role": "assistant", "content": text}}
            bodies.append(self._choice(index, content, pieces))
        name = "text_completion" if self.kind == "completion" else "chat.completion"
        return {**self._head(name), "choices": bodies, "usage": self.usage(choices, prompt_tokens)}

    def part(self, index: int, piece: Piece, *, first: bool = False) -> dict[str, Any]:
        """One piece of choice ``index``."""
        if self.kind == "completion":
            return {**self._head("text_completion"), "choices": [self._choice(index, {"text": piece.text}, [piece])]}
        delta = {**({"role": "assistant"} if first else {}), **({"content": piece.text} if piece.text or first else {})}
        return {**self._head("chat.completion.chunk"), "choices": [self._choice(index, {"delta": delta}, [piece])]}

    def end(self, choices: Sequence[Sequence[Piece]], prompt_tokens: int) -> dict[str, Any]:
        """The last piece of a stream that reports numbers of tokens."""
        name = "text_completion" if self.kind == "completion" else "chat.completion.chunk"
        return {**self._head(name), "choices": [], "usage": self.usage(choices, prompt_tokens)}

    @staticmethod
    def usage(choices: Sequence[Sequence[Piece]], prompt_tokens: int) -> dict[str, int]:
        """Numbers of tokens."""
        written = sum(piece.token is not None for pieces in choices for piece in pieces)
        return {"prompt_tokens": prompt_tokens, "completion_tokens": written, "total_tokens": prompt_tokens + written}

    def _head(self, name: str) -> dict[str, Any]:
        return {"id": self.name, "object": name, "created": self.created, "model": self.model}

    def _choice(self, index: int, content: Mapping[str, Any], pieces: Sequence[Piece]) -> dict[str, Any]:
        cause = next((piece.cause for piece in pieces if piece.cause is not None), None)
        drawn = [piece.token for piece in pieces if piece.token is not None]
        shown = (
            None
            if not self.shows or not drawn
            else self._lists(index, drawn)
            if self.kind == "completion"
            else self._items(drawn)
        )
        numbers = {"token_ids": [one.token for one in drawn]} if self.numbers else {}
        return {"index": index, **content, **numbers, "logprobs": shown, "finish_reason": cause}

    def _lists(self, index: int, drawn: Sequence[TokenItem]) -> dict[str, Any]:
        tokens = [self.spell(one.token) for one in drawn]
        *begins, self._ends[index] = accumulate(map(len, tokens), initial=self._ends.get(index, 0))
        return {
            "tokens": tokens,
            "token_logprobs": [one.logprob for one in drawn],
            "top_logprobs": [self._likely(one) for one in drawn],
            "text_offset": begins,
        }

    def _likely(self, drawn: TokenItem) -> dict[str, float]:
        """By text. Of several tokens with one text, the likeliest has it as its key, and the others have their numbers."""
        found: dict[str, float] = {}
        for token, chance in drawn.likely:
            text = self.spell(token)
            found[f"token_id:{token}" if text in found else text] = chance
        return found

    def _items(self, drawn: Sequence[TokenItem]) -> dict[str, Any]:
        def item(token: int, chance: float) -> dict[str, Any]:
            text = self.spell(token)
            whole = _REPLACEMENT not in text  # else the token may be a part of a character
            return {"token": text, "logprob": chance, "bytes": list(text.encode()) if whole else None}

        found = [
            {**item(one.token, one.logprob), "top_logprobs": [item(token, chance) for token, chance in one.likely]}
            for one in drawn
        ]
        return {"content": found, "refusal": None}
