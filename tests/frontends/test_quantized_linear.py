"""Quantized layers compute with the weight that their codes stand for; training them in stages equals a plain loop."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from farflung import OptimizerSpec, train
from farflung.errors import InputError
from farflung.frontends.quantized_linear import QuantizedLinear, quantize_linears
from farflung.graph.quantized_weights import METHODS, quantized_part
from farflung.testing.reference import PlainSettings, plain_loop


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("transposed", [False, True])
def test_forward_and_backward(method: str, transposed: bool) -> None:
    torch.manual_seed(0)
    layer = nn.Linear(6, 10)
    found = QuantizedLinear(layer, method, transposed=transposed)
    whole = torch.from_numpy(quantized_part(f"{method}_rounded", layer.weight.detach().numpy()))
    assert torch.equal(found.weight, whole)
    x = torch.randn(3, 10 if transposed else 6, requires_grad=True)
    if transposed:
        found.bias = None
    wanted = x @ whole if transposed else nn.functional.linear(x, whole, layer.bias)
    torch.testing.assert_close(found(x), wanted)
    (given,) = torch.autograd.grad(found(x).square().sum(), x)
    (truth,) = torch.autograd.grad(wanted.square().sum(), x)
    torch.testing.assert_close(given, truth)
    assert (found.in_features, found.out_features) == ((10, 6) if transposed else (6, 10))


def test_only_frozen_layers_of_their_own_are_quantized() -> None:
    model = nn.ModuleDict({name: nn.Linear(4, 4) for name in ("frozen", "trained", "tied", "left")} | {"odd": nn.Linear(3, 4)})
    model.requires_grad_(False)
    model["trained"].requires_grad_(True)
    model["other"] = nn.Embedding(4, 4)
    model["other"].weight = model["tied"].weight
    assert quantize_linears(model, "nf4", lambda name: name != "left") == ("frozen",)
    with pytest.raises(InputError, match=r"nothing can be quantized: the model has no frozen linear layer; add adapters"):
        quantize_linears(nn.Sequential(nn.Linear(2, 2)), "nf4")
    with pytest.raises(InputError, match=r"unknown quantization 'nf5': known are int8, int4, nf4"):
        QuantizedLinear(nn.Linear(2, 2), "nf5")


class Loss(nn.Module):
    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, input_ids: torch.Tensor) -> Any:
        return self.model(input_ids=input_ids, labels=input_ids).loss


@pytest.mark.parametrize("precision", ["float32", pytest.param("bf16", marks=pytest.mark.slow)])
def test_the_page_of_a_model_of_peft(precision: Any) -> None:
    """docs/transformers.md: the block, then training in two stages equals a plain loop bit for bit."""
    pytest.importorskip("peft")
    from transformers import LlamaConfig, LlamaForCausalLM

    page = (Path(__file__).parents[2] / "docs" / "transformers.md").read_text(encoding="utf-8")
    (block,) = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=32, hidden_size=16, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32)
    scope: dict[str, Any] = {"model": LlamaForCausalLM(config)}
    exec(compile(block, "transformers.md", "exec"), scope)
    module = Loss(scope["model"]).train()
    assert sum(isinstance(part, QuantizedLinear) for part in module.modules()) == 14

    def batch(step: int, index: int) -> tuple[torch.Tensor]:
        return (torch.randint(0, 32, (2, 8), generator=torch.Generator().manual_seed(10 * step + index)),)

    optimizer = OptimizerSpec(name="adamw", lr=1e-2)
    settings = PlainSettings(optimizer=optimizer, precision=precision)
    result = train(copy.deepcopy(module), batch, steps=3, micro_batches=2, optimizer=optimizer, workers=2, precision=precision)
    plain = plain_loop(module, batch, steps=3, micro_batches=2, settings=settings)
    assert result.losses == plain.losses
    found = result.state_dict()
    assert [name for name, value in plain.states.items() if name in found and not np.array_equal(found[name], value)] == []
    assert any(".lora_B." in name and np.abs(value).max() > 0 for name, value in found.items())
