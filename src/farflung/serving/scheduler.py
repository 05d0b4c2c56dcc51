"""Continuous batching: which tokens of which requests go into the next batch. A pure state machine.

A request has a slot of the key-value caches. Its tokens are sent in order: the prompt in chunks, then each drawn token. A batch
takes one token of every request that has just drawn one, and fills the rest of its row with chunks of prompts. So a long prompt
delays other requests by one chunk at a time. Several batches are under way at once, because a stage that waits for its next batch
would stand idle. How many is measured (``batch_groups``). After the loss of a worker, ``restart`` sends all prefixes again.

The policy is that of Sarathi-Serve (Agrawal et al., 2024) without its time budget: https://arxiv.org/abs/2403.02310.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from farflung.serving.batch_groups import BatchGroups

__all__ = ["Batch", "Draws", "Scheduler", "Settings", "TokenSequence"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Draws:
    """How tokens are drawn: see ``messages.serving.DrawItem``."""

    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    seed: int = 0
    logprobs: int = 0


@dataclass(eq=False, slots=True, kw_only=True)
class TokenSequence:
    """The tokens of a request. ``tokens`` begins with the ``prompt`` tokens of the prompt; ``most``: tokens to draw at most."""

    tokens: list[int]
    prompt: int
    most: int
    draws: Draws
    #: Of the caches (-1: it waits for one).
    slot: int = -1
    #: How many tokens are in the caches or on their way there.
    sent: int = 0
    #: Whether a token is being drawn.
    drawing: bool = False
    #: When the last token was drawn, if no prompt was in its batch (seconds).
    drew: float | None = None

    @property
    def drawn(self) -> int:
        """How many tokens have been drawn."""
        return len(self.tokens) - self.prompt


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """``sizes``: rows of the model's graphs, ascending. ``slots``: of the caches."""

    sizes: tuple[int, ...]
    slots: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Tokens for one forward, with their positions and slots. ``draws``: places in the row, and the sequences that draw there."""

    number: int
    rows: int
    tokens: tuple[int, ...]
    positions: tuple[int, ...]
    slots: tuple[int, ...]
    draws: tuple[tuple[int, TokenSequence], ...]


@dataclass(slots=True)
class _Row:
    """A batch that is being made."""

    tokens: list[int] = field(default_factory=list)
    positions: list[int] = field(default_factory=list)
    slots: list[int] = field(default_factory=list)
    draws: list[tuple[int, TokenSequence]] = field(default_factory=list)

    def add(self, sequence: TokenSequence, room: int) -> None:
        """Add the next tokens of ``sequence``, at most ``room``; after the last one a token is drawn."""
        stop = min(len(sequence.tokens), sequence.sent + room)
        self.tokens += sequence.tokens[sequence.sent : stop]
        self.positions += range(sequence.sent, stop)
        self.slots += [sequence.slot] * (stop - sequence.sent)
        sequence.sent = stop
        if stop == len(sequence.tokens):
            sequence.drawing = True
            self.draws.append((len(self.tokens) - 1, sequence))


class Scheduler:
    """Not thread-safe."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._waiting: deque[TokenSequence] = deque()
        #: Those with a slot, in the order in which they got it.
        self._active: list[TokenSequence] = []
        self._free = list(range(settings.slots))
        self._under_way: dict[int, Batch] = {}
        self._next, self._most = 0, 1
        self._groups = BatchGroups(1)

    @property
    def waiting(self) -> int:
        """How many requests wait for a slot."""
        return len(self._waiting)

    @property
    def active(self) -> int:
        """How many requests have a slot."""
        return len(self._active)

    @property
    def idle(self) -> bool:
        """Whether no batch is under way."""
        return not self._under_way

    def add(self, sequence: TokenSequence) -> None:
        """Take a new request."""
        self._waiting.append(sequence)

    def remove(self, sequence: TokenSequence) -> None:
        """``sequence`` has ended, or nobody wants it any more; its slot is free. A token that is being drawn is ignored."""
        if sequence in self._active:
            self._active.remove(sequence)
            self._free.append(sequence.slot)
        elif sequence in self._waiting:
            self._waiting.remove(sequence)

    def restart(self, under_way: int) -> None:
        """All caches are lost: batches that were under way are void, and each request sends its tokens again.

        ``under_way``: how many batches may be under way at the same time from now on.
        """
        self._most, self._groups = under_way, BatchGroups(under_way)
        self._under_way.clear()
        self._next = 0
        for sequence in self._active:
            sequence.sent, sequence.drawing, sequence.drew = 0, False, None

    def next_batch(self) -> Batch | None:
        """Return the next batch (``None``: as many as allowed are under way, or no request has a token to send)."""
        settings = self._settings
        while self._waiting and self._free:
            sequence = self._waiting.popleft()
            sequence.slot = self._free.pop(0)
            self._active.append(sequence)
        ready = [one for one in self._active if not one.drawing]
        prompts = any(len(one.tokens) - one.sent > 1 for one in ready)
        groups = self._most if prompts else self._groups.number(len(self._active))
        if len(self._under_way) >= groups:
            return None
        if not prompts:
            # those that have waited longest first, so that nobody is left behind when groups change
            ready = sorted(ready, key=lambda one: one.drew or 0.0)[: -(-len(self._active) // groups)]
        row, most = _Row(), settings.sizes[-1]
        for sequence in sorted(ready, key=lambda one: len(one.tokens) - one.sent > 1):  # stable: next tokens before prompts
            if len(row.tokens) < most:
                row.add(sequence, most - len(row.tokens))
        if not row.tokens:
            return None
        batch = Batch(
            number=self._next,
            rows=next(size for size in settings.sizes if size >= len(row.tokens)),
            tokens=tuple(row.tokens),
            positions=tuple(row.positions),
            slots=tuple(row.slots),
            draws=tuple(row.draws),
        )
        self._next += 1
        self._under_way[batch.number] = batch
        return batch

    def take(self, number: int, tokens: Sequence[int], now: float = 0.0) -> list[tuple[TokenSequence, int]]:
        """Batch ``number`` has drawn ``tokens``: return the requests that go on, each with the index of its token.

        ``now``: seconds of a clock.

        Raises:
            ValueError: no such batch is under way, or it has other draws.
        """
        batch = self._under_way.get(number)
        if batch is None or len(tokens) != len(batch.draws):
            raise ValueError(f"{len(tokens)} tokens for batch {number}, which is not under way with as many draws")
        del self._under_way[number]
        alone = len(batch.draws) == len(batch.tokens)  # chunks of prompts take longer
        found = []
        for index, ((_, sequence), token) in enumerate(zip(batch.draws, tokens, strict=True)):
            if sequence in self._active:
                sequence.drawing = False
                sequence.tokens.append(token)
                if alone and sequence.drew is not None:
                    self._groups.drew(len(self._active), now - sequence.drew)
                sequence.drew = now if alone else None
                found.append((sequence, index))
        return found
