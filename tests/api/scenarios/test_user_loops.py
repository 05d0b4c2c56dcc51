"""The loop that users write, against ``train``: bit-equal, except where several operators read one parameter."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

from farflung import train
from farflung.engines.base import Array
from farflung.job.spec import OptimizerSpec
from farflung.testing.reference import PlainSettings, plain_loop

VOCABULARY, WIDTH, LENGTH = 64, 16, 8


@pytest.fixture(autouse=True)
def _one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.after = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, length, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, length, 3, 2, WIDTH // 2).permute(2, 0, 3, 1, 4)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2)
        x = x + self.out(mixed.reshape(rows, length, WIDTH))
        return x + self.down(functional.gelu(self.up(self.after(x))))


class Transformer(nn.Module):
    """``uses``: how many operators read the embedding's weight (2: tied to the head; 3: the head is applied twice)."""

    def __init__(self, uses: int) -> None:
        super().__init__()
        self.uses = uses
        self.embed, self.place = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        self.blocks = nn.ModuleList(Block() for _ in range(2))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        if uses > 1:
            self.head.weight = self.embed.weight

    def forward(self, tokens: Tensor, labels: Tensor) -> Tensor:
        x = early = self.embed(tokens) + self.place(torch.arange(LENGTH))
        for block in self.blocks:
            x = block(x)
        logits = self.head(self.norm(x))
        if self.uses > 2:
            logits = logits + self.head(early)
        return functional.cross_entropy(logits.flatten(0, 1), labels.flatten())


def transformer(uses: int) -> Transformer:
    torch.manual_seed(0)
    return Transformer(uses)


def batch(step: int, index: int) -> tuple[Tensor, Tensor]:
    random = torch.Generator().manual_seed(1000 * step + index)
    tokens = torch.randint(0, VOCABULARY, (3, LENGTH + 1), generator=random)
    return tokens[:, :-1], tokens[:, 1:]


STEPS = 6


def user_loop(uses: int, micro_batches: int) -> dict[str, Array]:
    model = transformer(uses)
    optimizer = torch.optim.AdamW(model.parameters())
    for step in range(STEPS):
        optimizer.zero_grad()
        for index in range(micro_batches):
            (model(*batch(step, index)) / micro_batches).backward()
        optimizer.step()
    return {name: value.numpy() for name, value in model.state_dict().items()}


def trained(uses: int, micro_batches: int, workers: int) -> dict[str, Array]:
    result = train(transformer(uses), batch, steps=STEPS, micro_batches=micro_batches, optimizer="adamw", workers=workers)
    return result.state_dict()


def differing(one: dict[str, Array], two: dict[str, Array]) -> list[str]:
    assert one.keys() == two.keys()
    return [name for name in one if one[name].tobytes() != two[name].tobytes()]


@pytest.mark.parametrize("workers", [1, 3])
@pytest.mark.parametrize(("uses", "micro_batches"), [(1, 1), (1, 3), (1, 4), (2, 1), (3, 1)])
def test_equal_where_a_parameter_has_one_use_or_a_step_one_micro_batch(uses: int, micro_batches: int, workers: int) -> None:
    assert differing(user_loop(uses, micro_batches), trained(uses, micro_batches, workers)) == []


@pytest.mark.parametrize("uses", [2, 3])
def test_with_shared_parameters_and_several_micro_batches_plain_loop_is_equal(uses: int) -> None:
    module, settings = transformer(uses), PlainSettings(optimizer=OptimizerSpec(name="adamw", lr=1e-3))
    plain_loop(module, batch, steps=STEPS, micro_batches=4, settings=settings)
    found = trained(uses, 4, 3)
    assert differing({name: value.numpy() for name, value in module.state_dict().items()}, found) == []
    assert differing(user_loop(uses, 4), found), "documented in the README: another order of addition"


def test_what_the_other_order_does_to_weights() -> None:
    """Only biases of keys differ by more than rounding: their exact gradient is zero, and AdamW divides rounding by its size."""
    one, two = user_loop(2, 4), trained(2, 4, 3)
    for name in one:
        gap = np.abs(one[name] - two[name])
        if name.endswith("qkv.bias"):
            gap = np.concatenate([gap[:WIDTH], gap[2 * WIDTH :]])
        assert gap.max() < 1e-6, name
