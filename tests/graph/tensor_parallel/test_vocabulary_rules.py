"""Which embeddings, heads and losses ranks divide by words."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional

from farflung.engines.torch.verify import verify_graph
from farflung.frontends.torch.capture import capture
from farflung.graph.cut import cut
from farflung.graph.ir import ValueRef
from farflung.graph.tensor_parallel import Division, Split, divide
from farflung.graph.tensor_parallel.vocabulary_rules import is_vocabulary
from tests.support.engines.engine_drive import captured

WORDS, WIDTH = 67, 8


class Words(nn.Module):
    """An embedding, a head and a loss."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.table, self.head = nn.Embedding(WORDS, WIDTH), nn.Linear(WIDTH, WORDS)
        if how == "by frequency":
            self.table.scale_grad_by_freq = True
        if how == "tied":
            self.head.weight = self.table.weight

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
        logits = self.head(self.table(x).tanh())
        if self.how == "softcap":
            logits = 30.0 * torch.tanh(logits / 30.0)
        if self.how == "shifted":
            logits, y = logits[:, :-1].contiguous(), y[:, 1:].contiguous()
        if self.how == "words second":
            return functional.cross_entropy(logits.transpose(1, 2), y, label_smoothing=0.1)
        if self.how == "weighted":
            return functional.cross_entropy(logits.flatten(0, 1), y.flatten(), weight=torch.ones(WORDS))
        if self.how == "chances":
            return functional.cross_entropy(logits.flatten(0, 1), functional.one_hot(y, WORDS).flatten(0, 1).float())
        if self.how == "softmax":
            return logits.softmax(-1).square().mean()
        if self.how == "normed":
            logits = functional.layer_norm(logits, (WORDS,))
        loss = functional.cross_entropy(logits.float().reshape(-1, WORDS), y.reshape(-1))
        return (loss, logits) if self.how == "returned" else loss


def of(how: str, ranks: int = 2, **options: Any) -> Division:
    batch = torch.zeros(2, 5, dtype=torch.int64)
    graph = capture(Words(how), (batch, batch), name="words", **options)
    found = divide(cut(graph, [(0, len(graph.ops))])[0], ranks)
    verify_graph(found.local.graph)
    return found


@pytest.mark.parametrize("how", ["plain", "softcap", "shifted", "words second"])
def test_the_embedding_and_the_head_are_divided_by_words(how: str) -> None:
    found = of(how)
    assert found.states == {
        "table.weight": Split(0, (WORDS,)),
        "head.weight": Split(0, (WORDS,)),
        "head.bias": Split(0, (WORDS,)),
    }
    assert found.summed == {"embedding", "cross_entropy_loss"}
    assert found.divides
    assert found.local.graph.spec(ValueRef("linear")).shape == (2, 5, 34), "the second rank has 33 words and padding"
    rows = 2 * 4 if how == "shifted" else 2 * 5
    numbers = 3 if how == "words second" else 2
    assert sorted(found.added_ahead) == sorted([4.0 * rows, 4.0 * numbers * rows, 4.0 * 10 * WIDTH])


@pytest.mark.parametrize("how", ["weighted", "chances", "softmax", "normed"])
def test_a_head_whose_loss_needs_all_words_is_whole(how: str) -> None:
    found = of(how)
    assert found.states == {"table.weight": Split(0, (WORDS,))}
    assert not found.divides, "ranks that look up words only would do the rest of the work twice"


def test_a_shared_weight_is_divided_by_all_its_operators_or_by_none() -> None:
    found = of("tied")
    assert found.states.keys() == {"table.weight", "head.bias"}
    assert found.summed == {"embedding", "cross_entropy_loss"}
    graph = captured("gpt2")
    assert "body.transformer.wte.weight" in divide(cut(graph, [(0, len(graph.ops))])[0], 2).states


def test_one_whole_use_of_a_shared_weight_makes_all_uses_whole() -> None:
    class Shared(Words):
        def forward(self, x: torch.Tensor, y: torch.Tensor) -> Any:
            return super().forward(x, y) + self.table.weight.square().mean()

    batch = torch.zeros(2, 5, dtype=torch.int64)
    graph = capture(Shared("tied"), (batch, batch), name="shared")
    found = divide(cut(graph, [(0, len(graph.ops))])[0], 2)
    assert (found.states, found.summed) == ({}, frozenset())


def test_a_table_whose_gradient_is_scaled_by_frequency_is_whole() -> None:
    assert of("by frequency").states.keys() == {"head.weight", "head.bias"}


def test_logits_that_are_results_have_parts() -> None:
    found = of("returned", outputs=("loss", "logits"))
    (value,) = (value for name, value in found.whole.graph.outputs if name != "loss")
    assert found.values[value] == Split(2, (WORDS,))


def test_few_classes_are_no_vocabulary() -> None:
    assert is_vocabulary((16, 8), Split(0, (16,)), 2)
    assert not is_vocabulary((15, 8), Split(0, (15,)), 2)
    assert not is_vocabulary((5, 2), Split(0, (5,)), 4), "the fourth rank would have no word"
