"""A small GPT written plainly: pre-norm blocks, learned positions, attention as one operator (Radford et al., 2019)."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung.errors import InputError
from farflung.frontends.recipes.base import CacheShape, Form, Recipe, language_recipe
from farflung.frontends.recipes.serving import attend, serving_form
from farflung.frontends.recipes.waist import Waist
from farflung.known_names import known_names

__all__ = ["GPT", "gpt"]


class Block(nn.Module):
    """Attention and feed-forward, each behind a norm and beside a residual."""

    def __init__(self, width: int, heads: int, dropout: float) -> None:
        super().__init__()
        self.heads = heads
        self.dropout = dropout
        self.norm_1 = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.mix_out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.up = nn.Linear(width, 4 * width)
        self.down = nn.Linear(4 * width, width)
        self.drop = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = (
            part.view(batch, length, self.heads, width // self.heads).transpose(1, 2)
            for part in self.mix(self.norm_1(x)).split(width, dim=2)
        )
        mixed = self.attend(query, key, value)
        x = x + self.drop(self.mix_out(mixed.transpose(1, 2).reshape(batch, length, width)))
        result: Tensor = x + self.drop(self.down(functional.gelu(self.up(self.norm_2(x)))))
        return result

    def attend(self, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
        """Causal attention; all are ``(batch, heads, sequence, dims)``."""
        dropout = self.dropout if self.training else 0.0
        return functional.scaled_dot_product_attention(query, key, value, dropout_p=dropout, is_causal=True)


class GPT(nn.Module):
    """``forward(tokens, targets)``, both ``int64 (batch, sequence)`` -> mean cross-entropy of the next token.

    Without targets: logits ``(batch, sequence, vocab)``. ``waist``: how many waists there are between the blocks, of how many
    dims, and whether they are learned.
    """

    def __init__(
        self,
        config: tuple[int, int, int, int, int],
        *,
        dropout: float = 0.0,
        tied: bool = True,
        waist: tuple[int, int, bool] = (0, 1, True),
    ) -> None:
        super().__init__()
        vocab, sequence, layers, width, heads = config
        self.token = nn.Embedding(vocab, width)
        self.place = nn.Embedding(sequence, width)
        self.drop = nn.Dropout(dropout)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)
        if tied:
            self.head.weight = self.token.weight
        self._initialize(layers)
        count, dims, learned = waist
        self.waists = nn.ModuleDict(
            {str((index + 1) * layers // (count + 1)): Waist(width, dims, learned=learned) for index in range(count)}
        )

    def _initialize(self, layers: int) -> None:
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            narrow = name.endswith(("mix_out.weight", "down.weight"))
            nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * layers) if narrow else 0.02)
        for part in self.modules():
            if isinstance(part, nn.Linear) and part.bias is not None:
                nn.init.zeros_(part.bias)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        logits: Tensor = self.head(self.last(tokens, torch.arange(tokens.shape[1], device=tokens.device)))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())

    def last(self, tokens: Tensor, places: Tensor) -> Tensor:
        """What the head reads, ``(batch, sequence, width)``; ``places``: the position of each token."""
        x = self.drop(self.token(tokens) + self.place(places))
        for number, block in enumerate(self.blocks):
            if str(number) in self.waists:
                x = self.waists[str(number)](x)
            x = block(x)
        normed: Tensor = self.norm(x)
        return normed


def gpt(
    *, vocab: int = 256, sequence: int = 128, layers: int = 4, width: int = 128, heads: int = 4, **more: bool | float
) -> Recipe:
    """A byte-level GPT; ``tied`` (default true) shares embedding and head, ``dropout`` (default 0) is on in training only.

    ``waist`` (default 0: none): dims of a subspace that values go through at ``waists`` (default 1) places between the blocks;
    ``waist_learned`` (default true): its matrices are trained, else random. It changes the model (``recipes.waist``).

    Raises:
        InputError: the width does not divide by the heads, a waist is as wide as the model, or an argument is unknown.
    """
    if width % heads:
        raise InputError(f"gpt: width {width} must be a multiple of heads {heads}")
    known = ("vocab", "sequence", "layers", "width", "heads", "dropout", "tied", "waist", "waists", "waist_learned")
    if unknown := min(more.keys() - set(known), default=""):
        raise InputError(f"gpt: unknown argument {unknown!r}: {known_names(unknown, known)}")
    if "waist" not in more and (stray := sorted(more.keys() & {"waists", "waist_learned"})):
        raise InputError(
            f"gpt: {stray[0]} = {more[stray[0]]!r} without waist, the dims that values go through: give it, or remove {stray[0]}"
        )
    if not isinstance(more.get("waist_learned", True), bool):
        raise InputError(f"gpt: waist_learned must be true or false, got {more['waist_learned']!r}")
    dims, count = int(more.get("waist", 0)), int(more.get("waists", 1))
    if dims and (not 0 < dims < width or not 1 <= count < layers):
        raise InputError(
            f"gpt: waist = {dims} at {count} places: it needs fewer dims than the width, {width}, and fewer places than there "
            f"are layers, {layers}"
        )
    config = (vocab, sequence, layers, width, heads)
    dropout, tied = float(more.get("dropout", 0.0)), bool(more.get("tied", True))

    waist = (count if dims else 0, max(1, dims), bool(more.get("waist_learned", True)))

    def make() -> GPT:
        return GPT(config, dropout=dropout, tied=tied, waist=waist)

    return replace(language_recipe("gpt", make, sequence), positions=sequence, serve=partial(_served, make))


def _served(make: Callable[[], GPT], shape: CacheShape) -> Form:
    """The form with key-value caches."""

    def cached() -> GPT:
        model = make().eval()
        for block in model.blocks:
            assert isinstance(block, Block)
            block.attend = partial(attend, block)  # type: ignore[method-assign]
        return model

    def empty() -> GPT:
        with torch.device("meta"):
            return cached()

    return serving_form(cached, empty, _run, shape)


def _run(model: GPT, tokens: Tensor, positions: Tensor, wanted: Tensor) -> Tensor:
    logits: Tensor = model.head(model.last(tokens, positions)[:, wanted])
    return logits
