"""One continuation of a prompt: its text as it grows, and why it ends."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from farflung.messages.serving import TokenItem
from farflung.serving.scheduler import TokenSequence
from farflung.serving.tokenizers import ServedTokenizer

__all__ = ["Cause", "Generation", "Piece"]

Cause = Literal["stop", "length"]
_REPLACEMENT = "\N{REPLACEMENT CHARACTER}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Piece:
    """What a drawn token adds: ``text`` that is certain by now, the ``token`` unless it ends the text, ``cause`` of the end."""

    text: str = ""
    token: TokenItem | None = None
    cause: Cause | None = None
    #: Why there is no more (``None``: nothing failed).
    error: str | None = None


@dataclass(eq=False, slots=True, kw_only=True)
class Generation:
    """A continuation of ``sequence``. ``listen`` gets its pieces, on any thread; ``stops``: texts before which it ends."""

    sequence: TokenSequence
    tokenizer: ServedTokenizer
    listen: Callable[[Piece], None]
    stops: tuple[str, ...] = ()
    ends: frozenset[int] = frozenset()
    #: The text so far that is not sent yet, because it may become a stop.
    _held: str = ""
    #: Tokens from ``_first`` on are decoded together; the text of those before ``_read`` is known.
    _first: int = field(default=0)
    _read: int = field(default=0)

    def is_last(self, drawn: TokenItem) -> bool:
        """Return whether ``drawn``, the newest token of the sequence, is its last one, whatever its text is."""
        return drawn.token in self.ends or self.sequence.drawn >= self.sequence.most

    def take(self, drawn: TokenItem) -> bool:
        """Take the newest token of the sequence; return whether the continuation has ended."""
        sequence, ends = self.sequence, drawn.token in self.ends
        last = self.is_last(drawn)
        self._held += self._news(sequence.tokens[sequence.prompt : -1 if ends else None], last=last)
        stop = min((at for one in self.stops if (at := self._held.find(one)) >= 0), default=-1)
        cause: Cause | None = "stop" if ends or stop >= 0 else "length" if last else None
        certain = stop if stop >= 0 else len(self._held) - (0 if last else _open_stop(self._held, self.stops))
        text, self._held = self._held[:certain], self._held[certain:]
        self.listen(Piece(text=text, token=None if ends else drawn, cause=cause))
        return cause is not None

    def _news(self, drawn: Sequence[int], *, last: bool) -> str:
        """The text that the newest of the ``drawn`` tokens add. A character whose bytes are incomplete waits for the next token.

        A token's text can depend on the tokens before it, so it is what decoding some of them together adds.
        """
        known = self.tokenizer.decode(drawn[self._first : self._read])
        text = self.tokenizer.decode(drawn[self._first :])
        if len(text) <= len(known) or (text.endswith(_REPLACEMENT) and not last):
            return ""
        self._first, self._read = self._read, len(drawn)
        return text[len(known) :]


def _open_stop(text: str, stops: Sequence[str]) -> int:
    """How many characters at the end of ``text`` may be the beginning of a stop."""
    longest = max((len(stop) - 1 for stop in stops), default=0)
    return next(
        (count for count in range(min(longest, len(text)), 0, -1) if any(stop.startswith(text[-count:]) for stop in stops)), 0
    )
