"""A language model with mixtures of experts in static shapes: every expert takes the same number of tokens.

Routing by expert's choice (Zhou et al., 2022): each expert takes the tokens that score highest for it, so no shape depends on
the data and no token count overflows. As in all expert-choice models, a token's output may depend on later tokens of the batch.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung.errors import InputError
from farflung.frontends.recipes.base import Recipe, language_recipe
from farflung.known_names import known_names

__all__ = ["Experts", "MixtureLM", "moe"]


class Experts(nn.Module):
    """``forward(x)``: ``(tokens, width)`` -> the same shape. Each of ``experts`` takes ``capacity * tokens / experts`` tokens."""

    def __init__(self, width: int, experts: int, capacity: float) -> None:
        super().__init__()
        self.experts = experts
        self.capacity = capacity
        self.router = nn.Linear(width, experts, bias=False)
        self.up = nn.Parameter(torch.empty(experts, width, 2 * width))
        self.down = nn.Parameter(torch.empty(experts, 2 * width, width))
        nn.init.normal_(self.up, std=0.02)
        nn.init.normal_(self.down, std=0.02)

    def forward(self, x: Tensor) -> Tensor:
        count, width = x.shape
        taken = max(1, min(count, int(self.capacity * count / self.experts)))
        weights, chosen = self.router(x).softmax(dim=-1).t().topk(taken, dim=1)
        inputs = x[chosen]
        outputs = torch.bmm(functional.gelu(torch.bmm(inputs, self.up)), self.down) * weights[:, :, None]
        result: Tensor = torch.zeros_like(x).index_add(0, chosen.flatten(), outputs.reshape(-1, width))
        return result


class Layer(nn.Module):
    """Causal attention, then a mixture of experts."""

    def __init__(self, width: int, heads: int, experts: int, capacity: float) -> None:
        super().__init__()
        self.heads = heads
        self.norm_1 = nn.LayerNorm(width)
        self.mix = nn.Linear(width, 3 * width)
        self.mix_out = nn.Linear(width, width)
        self.norm_2 = nn.LayerNorm(width)
        self.experts = Experts(width, experts, capacity)

    def forward(self, x: Tensor) -> Tensor:
        batch, length, width = x.shape
        query, key, value = self.mix(self.norm_1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.mix_out(mixed.transpose(1, 2).reshape(batch, length, width))
        mixture: Tensor = self.experts(self.norm_2(x).view(-1, width)).view(batch, length, width)
        return x + mixture


class MixtureLM(nn.Module):
    """``forward(tokens, targets)``, both ``int64 (batch, sequence)`` -> mean cross-entropy; without targets the logits."""

    def __init__(self, vocab: int, layers: int, width: int, heads: int, experts: tuple[int, float]) -> None:
        super().__init__()
        self.token = nn.Embedding(vocab, width)
        self.layers = nn.ModuleList(Layer(width, heads, *experts) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, vocab, bias=False)

    def forward(self, tokens: Tensor, targets: Tensor | None = None) -> Tensor:
        x = self.token(tokens)
        for layer in self.layers:
            x = layer(x)
        logits: Tensor = self.head(self.norm(x))
        if targets is None:
            return logits
        return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def moe(*, vocab: int = 256, sequence: int = 64, layers: int = 2, width: int = 64, heads: int = 4, **more: int | float) -> Recipe:
    """A small mixture of experts; ``experts`` (default 4) and ``capacity`` (default 2.0: mean experts per token).

    Raises:
        InputError: the width does not divide by the heads, or an argument is unknown.
    """
    if width % heads:
        raise InputError(f"moe: width {width} must be a multiple of heads {heads}")
    known = ("vocab", "sequence", "layers", "width", "heads", "experts", "capacity")
    if unknown := min(more.keys() - set(known), default=""):
        raise InputError(f"moe: unknown argument {unknown!r}: {known_names(unknown, known)}")
    experts = (int(more.get("experts", 4)), float(more.get("capacity", 2.0)))

    return language_recipe("moe", lambda: MixtureLM(vocab, layers, width, heads, experts), sequence)
