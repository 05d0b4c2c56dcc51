"""Which operators of captured models ranks divide. The shapes of a rank's graph are those that PyTorch gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from farflung.engines.torch.verify import verify_graph
from farflung.frontends.recipes import load_recipe
from farflung.frontends.torch.capture import capture
from farflung.graph.cut import cut
from farflung.graph.ir import Graph, StateRef, ValueRef
from farflung.graph.tensor_parallel import Division, Split, divide
from tests.support.engines.engine_drive import captured, equal_cuts
from tests.support.models.engine_models import WithLoss, image_batch


def divided(graph: Graph, ranks: int = 2, given: dict[str, Split] | None = None) -> Division:
    """The division of the whole graph; PyTorch has computed the shapes of the local one."""
    found = divide(cut(graph, [(0, len(graph.ops))])[0], ranks, given)
    verify_graph(found.local.graph)
    return found


def names(found: Division) -> set[str]:
    return {name.removeprefix("body.") for name in found.states}


def of_model(module: nn.Module, *batch: torch.Tensor) -> Division:
    return divided(capture(module, batch, name="model"))


class Loss(nn.Module):
    """The mean square of what ``body`` makes."""

    def __init__(self, body: nn.Module) -> None:
        super().__init__()
        self.body = body

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.body(x)
        return out.square().mean()


# -- models ---------------------------------------------------------------------------------------------------------------


def test_gpt2_has_queries_keys_and_values_in_one_weight() -> None:
    found = divided(captured("gpt2"))
    layer = {
        "attn.c_attn.weight",
        "attn.c_attn.bias",
        "attn.c_proj.weight",
        "mlp.c_fc.weight",
        "mlp.c_fc.bias",
        "mlp.c_proj.weight",
    }
    assert names(found) == {f"transformer.h.{number}.{name}" for number in (0, 1) for name in layer} | {"transformer.wte.weight"}
    first = "body.transformer.h.0"
    assert found.states[f"{first}.attn.c_attn.weight"] == Split(1, (32, 32, 32))
    assert found.states[f"{first}.attn.c_proj.weight"] == Split(0, (32,))
    assert found.summed == {"addmm_1", "addmm_3", "addmm_5", "addmm_7", "embedding", "cross_entropy_loss"}
    assert found.local.graph.spec(ValueRef("scaled_dot_product_attention")).shape == (2, 1, 12, 16)
    assert found.local.graph.spec(ValueRef("tanh")).shape == (2, 12, 64)
    assert found.local.graph.spec(ValueRef("addmm_1")).shape == (24, 32)


def test_llama_has_grouped_queries_and_a_gate() -> None:
    found = divided(captured("llama"))
    layer = {
        *(f"self_attn.{name}_proj.weight" for name in "qkvo"),
        *(f"mlp.{name}_proj.weight" for name in ("gate", "up", "down")),
    }
    words = {"model.embed_tokens.weight", "lm_head.weight"}
    assert names(found) == {f"model.layers.{number}.{name}" for number in (0, 1) for name in layer} | words
    assert found.states["body.model.layers.0.self_attn.k_proj.weight"] == Split(0, (16,))
    assert found.states["body.model.layers.0.mlp.down_proj.weight"] == Split(1, (48,))
    assert len(found.summed) == 6, "as many as in Megatron-LM: two in each layer, the embedding and the loss"
    tokens, width = 2 * 12, 32
    assert sorted(found.added_ahead) == [4 * tokens, 8 * tokens, *[4.0 * tokens * width] * 5]
    assert found.added_back == (4.0 * tokens * width,) * 5, "where values enter the layers and the head"


def test_bert_keeps_the_biases_that_are_added_after_a_sum_whole() -> None:
    found = divided(captured("bert"))
    layer = {f"attention.self.{name}.{kind}" for name in ("query", "key", "value") for kind in ("weight", "bias")}
    layer |= {"attention.output.dense.weight", "intermediate.dense.weight", "intermediate.dense.bias", "output.dense.weight"}
    words = {"bert.embeddings.word_embeddings.weight", "cls.predictions.bias"}
    assert names(found) == {f"bert.encoder.layer.{number}.{name}" for number in (0, 1) for name in layer} | words
    assert "body.cls.predictions.transform.dense.weight" not in found.states, "a norm over its features follows"


def test_vit_divides_its_layers() -> None:
    from transformers import ViTConfig, ViTForImageClassification

    config = ViTConfig(
        hidden_size=32,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=48,
        image_size=16,
        patch_size=8,
        num_labels=7,
    )
    module = WithLoss(ViTForImageClassification(config))
    found = of_model(module, *image_batch(0, 0))
    assert len(found.summed) == 2
    assert not any("embeddings" in name or "classifier" in name or "norm" in name for name in found.states)
    assert len(names(found)) == 10


def test_layers_that_share_their_weights_have_one_part_of_each() -> None:
    found = divided(captured("albert"))
    layer = "albert.encoder.albert_layer_groups.0.albert_layers.0"
    parts = {f"{layer}.attention.{name}.{kind}" for name in ("query", "key", "value") for kind in ("weight", "bias")}
    parts |= {f"{layer}.attention.dense.weight", f"{layer}.ffn.weight", f"{layer}.ffn.bias", f"{layer}.ffn_output.weight"}
    assert names(found) == parts | {"albert.embeddings.word_embeddings.weight", "predictions.bias"}
    assert len(found.summed) == 3 * 2 + 2


def test_experts_are_divided_by_features() -> None:
    """Each rank has half of the features of each expert, so routing does not decide how much a rank computes."""
    found = divided(captured("mixtral"))
    layer = "body.model.layers.0.mlp.experts"
    assert found.states[f"{layer}.gate_up_proj"] == Split(1, (48, 48)), "the gate and the other half"
    assert found.states[f"{layer}.down_proj"] == Split(2, (48,))
    assert {"grouped_mm_1", "grouped_mm_3"} < found.summed
    assert found.local.graph.spec(ValueRef("grouped_mm")).shape == (48, 48)
    assert found.local.graph.spec(ValueRef("mul_11")).shape == (48, 24)
    assert not any("gate.weight" in name for name in found.states), "all ranks route"
    assert not any("experts" in name for name in divided(captured("mixtral"), 4).states), "rows of 12 numbers fit no kernel"


def test_the_experts_of_the_recipe_are_divided() -> None:
    recipe = load_recipe("moe", {"vocab": 64, "sequence": 8, "layers": 1, "width": 16})
    found = divided(recipe.graph("train", 2))
    assert {name: split for name, split in found.states.items() if "experts" in name} == {
        "layers.0.experts.up": Split(2, (32,)),
        "layers.0.experts.down": Split(1, (32,)),
    }


@pytest.mark.parametrize("name", ["resnet18", "user_cnn"])
def test_what_is_not_recognized_stays_whole(name: str) -> None:
    """Convolutions, and classifiers with fewer classes than features."""
    found = divided(captured(name))
    assert not found.states
    assert not found.summed
    assert found.local.graph.ops == captured(name).ops


def test_three_ranks_divide_only_what_is_a_multiple_of_three() -> None:
    found = divided(captured("llama"), 3)
    assert {name.split(".")[3] for name in names(found) if "layers" in name} == {"mlp"}
    assert found.states["body.model.layers.1.mlp.up_proj.weight"].ranges(1, 3) == [(16, 32)]


@pytest.mark.parametrize("stages", [3, 7])
def test_a_stage_divides_what_begins_and_ends_in_it(stages: int) -> None:
    graph = captured("gpt2")
    whole = divided(graph)
    pieces = [divide(piece, 2) for piece in cut(graph, equal_cuts(graph, stages))]
    together = {name: split for piece in pieces for name, split in piece.states.items()}
    assert together.items() <= whole.states.items()
    for piece in pieces:
        verify_graph(piece.local.graph, piece.local.positions)
        sent = [edge.value for edge in (*piece.whole.sends_activations, *piece.whole.requires_activations)]
        assert not set(sent) & piece.values.keys()


# -- rules ----------------------------------------------------------------------------------------------------------------


class Attention(nn.Module):
    """Attention of plain products, with queries, keys and values in one weight of four kinds of views."""

    def __init__(self, how: str, width: int = 16, heads: int = 4) -> None:
        super().__init__()
        self.how, self.heads = how, heads
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.norm = nn.RMSNorm(width // heads)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        made, size = self.qkv(x), width // self.heads
        if self.how == "chunk":
            q, k, v = (part.unflatten(-1, (self.heads, size)).transpose(1, 2) for part in made.chunk(3, -1))
        elif self.how == "sliced":
            parts = (made[..., :width], made[..., width : 2 * width], made[..., 2 * width :])
            q, k, v = (part.view(batch, length, self.heads, size).permute(0, 2, 1, 3) for part in parts)
        elif self.how == "kinds first":
            q, k, v = made.reshape(batch, length, 3, self.heads, size).permute(2, 0, 3, 1, 4).unbind(0)
        else:
            q, k, v = made.view(batch, length, self.heads, 3, size).transpose(1, 2).unbind(3)
        weights = (self.norm(q) @ k.transpose(-2, -1)).masked_fill(torch.ones(length, length).triu(1).bool(), -1e9)
        return x + self.out((weights.softmax(-1) @ v).transpose(1, 2).flatten(2))


@pytest.mark.parametrize(("how", "sections"), [("chunk", 3), ("sliced", 3), ("kinds first", 3), ("heads first", 1)])
def test_views_of_one_weight_for_queries_keys_and_values(how: str, sections: int) -> None:
    found = of_model(Loss(Attention(how)), torch.randn(2, 5, 16))
    assert names(found) == {"qkv.weight", "qkv.bias", "out.weight"}
    assert found.states["body.qkv.weight"] == Split(0, (48 // sections,) * sections)
    entered = {ref for refs in found.entered.values() for ref in refs}
    assert StateRef("body.norm.weight") in entered, "each rank has the gradient of its own heads only"


class Adapted(nn.Module):
    """A layer with a low-rank adapter."""

    def __init__(self) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(128, 128), nn.Linear(128, 128)
        self.a, self.b = nn.Linear(128, 2, bias=False), nn.Linear(2, 128, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x) + self.b(self.a(x))))


def test_the_narrow_product_of_an_adapter_stays_whole() -> None:
    found = of_model(Loss(Adapted()), torch.randn(2, 128))
    assert names(found) == {"up.weight", "up.bias", "b.weight", "down.weight"}


class Refused(nn.Module):
    """A layer whose divided values meet something that needs them whole."""

    def __init__(self, how: str) -> None:
        super().__init__()
        self.how = how
        self.up, self.down = nn.Linear(16, 16), nn.Linear(16, 16)
        self.norm = nn.LayerNorm(16)

    def forward(self, x: torch.Tensor) -> Any:
        made = self.up(x)
        if self.how == "norm":
            made = self.norm(made)
        elif self.how == "whole value":
            made = made + x
        elif self.how == "softmax":
            made = made.softmax(-1)
        elif self.how == "part":
            made = torch.cat((made[:, 3:], made[:, :3]), 1)
        elif self.how == "square":
            made = made @ self.up.weight.T
        return self.down(torch.relu(made))


@pytest.mark.parametrize("how", ["norm", "whole value", "softmax", "part", "square"])
def test_an_operator_that_needs_whole_values_makes_the_product_before_it_whole(how: str) -> None:
    assert names(of_model(Loss(nn.Sequential(Refused(how), nn.Tanh())), torch.randn(4, 16))) == set()


class Projected(nn.Module):
    """Two products with one weight, by its rows and by its columns."""

    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.randn(8, 16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return nn.functional.linear(x, self.weight) @ self.weight


def test_two_products_share_the_parts_of_one_weight() -> None:
    found = of_model(Loss(Projected()), torch.randn(4, 16))
    assert found.states == {"body.weight": Split(0, (8,))}
    assert found.summed == {"matmul"}


def test_a_divided_state_stays_as_it_is_in_another_graph() -> None:
    """Evaluation takes over the states of training: what it cannot divide alike, it gathers."""
    states = dict(divided(captured("llama")).states)
    same = divided(captured("llama"), given=states)
    assert (same.states, same.gathered) == (states, {})
    assert not divided(captured("llama"), given={}).states
    other = "body.model.layers.0.mlp.gate_proj.weight"
    found = divided(captured("llama"), given={**states, other: Split(1, (32,))})
    assert other in {name for names in found.gathered.values() for name in names}
    assert found.local.graph.state[other].spec == captured("llama").state[other].spec
