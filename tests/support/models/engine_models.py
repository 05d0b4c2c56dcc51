"""Small models of all families, each as (module, batch function); batches depend on (step, micro_batch) only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

Batch = tuple[torch.Tensor, ...]
Made = tuple[nn.Module, Callable[[int, int], Batch]]
VOCABULARY, LENGTH = 67, 12


def generator(step: int, index: int) -> torch.Generator:
    return torch.Generator().manual_seed(1000 * step + index + 1)


def text_batch(step: int, index: int) -> Batch:
    x = torch.randint(0, VOCABULARY, (2, LENGTH), generator=generator(step, index))
    return x, torch.roll(x, -1, 1)


def image_batch(step: int, index: int) -> Batch:
    g = generator(step, index)
    return torch.randn(3, 3, 16, 16, generator=g), torch.randint(0, 7, (3,), generator=g)


class WithLoss(nn.Module):
    """A classifier of the last axis with its cross-entropy."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        out = self.body(x)
        logits = out if isinstance(out, torch.Tensor) else out.logits
        return F.cross_entropy(logits.flatten(0, -2), y.flatten())


def gpt2(layers: int = 2, width: int = 32, **options: Any) -> Made:
    from transformers import GPT2Config, GPT2LMHeadModel

    config = GPT2Config(
        n_layer=layers,
        n_embd=width,
        n_head=2,
        vocab_size=VOCABULARY,
        n_positions=LENGTH,
        bos_token_id=0,
        eos_token_id=0,
        **options,
    )
    return WithLoss(GPT2LMHeadModel(config)), text_batch


LLAMA_SIZES: dict[str, Any] = {
    "num_hidden_layers": 2,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": LENGTH,
    "bos_token_id": 0,
    "eos_token_id": 0,
}


def llama() -> Made:
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(**LLAMA_SIZES)
    return WithLoss(LlamaForCausalLM(config)), text_batch


def mixtral() -> Made:
    """Rows are sorted by expert, and one product multiplies them with the experts' weights."""
    from transformers import MixtralConfig, MixtralForCausalLM

    config = MixtralConfig(**LLAMA_SIZES, num_local_experts=4, num_experts_per_tok=2)
    return WithLoss(MixtralForCausalLM(config)), text_batch


def bert() -> Made:
    from transformers import BertConfig, BertForMaskedLM

    config = BertConfig(
        num_hidden_layers=2,
        hidden_size=32,
        intermediate_size=48,
        num_attention_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        pad_token_id=0,
    )
    return WithLoss(BertForMaskedLM(config)), text_batch


def albert() -> Made:
    from transformers import AlbertConfig, AlbertForMaskedLM

    config = AlbertConfig(
        num_hidden_layers=3,
        hidden_size=32,
        embedding_size=16,
        intermediate_size=48,
        num_attention_heads=2,
        vocab_size=VOCABULARY,
        max_position_embeddings=LENGTH,
        pad_token_id=0,
        bos_token_id=0,
        eos_token_id=0,
        hidden_dropout_prob=0.1,
    )
    return WithLoss(AlbertForMaskedLM(config)), text_batch


class Block(nn.Module):
    """ResNet's basic block."""

    def __init__(self, inner: int, outer: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inner, outer, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outer)
        self.conv2 = nn.Conv2d(outer, outer, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outer)
        self.relu = nn.ReLU(inplace=True)
        self.down = (
            nn.Sequential(nn.Conv2d(inner, outer, 1, stride, bias=False), nn.BatchNorm2d(outer))
            if stride != 1 or inner != outer
            else nn.Identity()
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.relu(self.bn1(self.conv1(x)))
        y = self.bn2(self.conv2(y))
        y += self.down(x)
        return self.relu(y)


def resnet18(width: int = 4) -> Made:
    stages: list[nn.Module] = []
    inner = width
    for number, outer in enumerate((width, 2 * width, 4 * width, 8 * width)):
        stages += [Block(inner, outer, 1 if number == 0 else 2), Block(outer, outer, 1)]
        inner = outer
    stem = [nn.Conv2d(3, width, 7, 2, 3, bias=False), nn.BatchNorm2d(width), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    body = nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inner, 7))
    return WithLoss(body), image_batch


class Gate(nn.Module):
    """A user's own module: channels gated by their mean, one linear layer used twice."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.linear = nn.Linear(width, width)
        self.bias = nn.Parameter(torch.full((1, width, 1, 1), 0.1))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        gate = torch.sigmoid(self.linear(self.linear(x.mean((2, 3))).tanh()))
        return x * gate[:, :, None, None] + self.bias


def user_cnn() -> Made:
    body = nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.GroupNorm(2, 8),
        nn.GELU(),
        nn.Dropout2d(0.2),
        Gate(8),
        nn.Conv2d(8, 8, 3, stride=2),
        nn.LeakyReLU(),
        nn.Dropout(0.3),
        nn.Flatten(),
        nn.Linear(8 * 49, 7),
    )
    return WithLoss(body), image_batch


class Experts(nn.Module):
    """A mixture of experts with static shapes: two of four experts per token, all computed, weights scattered."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate = nn.Linear(width, 4)
        self.inner = nn.Parameter(torch.randn(4, width, 2 * width) / width**0.5)
        self.outer = nn.Parameter(torch.randn(4, 2 * width, width) / width**0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        weights, chosen = torch.topk(self.gate(x).softmax(-1), 2)
        weights = weights / weights.sum(-1, keepdim=True)
        full = torch.zeros_like(self.gate(x)).scatter(-1, chosen, weights)
        hidden = F.gelu(torch.einsum("btd,edh->bteh", x, self.inner))
        return x + torch.einsum("bteh,ehd,bte->btd", hidden, self.outer, full)


def moe() -> Made:
    body = nn.Sequential(
        nn.Embedding(VOCABULARY, 16), Experts(16), nn.LayerNorm(16), Experts(16), nn.Dropout(0.1), nn.Linear(16, VOCABULARY)
    )
    return WithLoss(body), text_batch


MODELS: dict[str, Callable[[], Made]] = {
    "gpt2": gpt2,
    "llama": llama,
    "bert": bert,
    "albert": albert,
    "resnet18": resnet18,
    "user_cnn": user_cnn,
    "moe": moe,
}

#: A model for the tests that are about mixtures of experts.
SORTED: dict[str, Callable[[], Made]] = {"mixtral": mixtral}
