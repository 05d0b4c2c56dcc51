"""LoRA and DoRA on a base in float32, 8 or 4 bits: two workers, the weights of a plain loop, and exports that agree."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from farflung.checkpoint import Weights
from farflung.errors import CheckpointError, InputError
from farflung.frontends.recipes import load_recipe
from farflung.job import JobSpec
from tests.support.models.model_folders import FOLDERS, save_arrays, save_model
from tests.support.runs.loopback import Loopback, text_job
from tests.support.runs.model_exports import exported, trained

GPT2 = {"n_layer": 2, "n_embd": 16, "n_head": 2, "vocab_size": 64, "n_positions": 32}
KINDS: dict[str, dict[str, Any]] = {
    "lora": {},
    "dora": {"lora_dora": True},
    "lora-int8": {"quantize": "int8"},
    "lora-int4": {"quantize": "int4"},
    "lora-nf4": {"quantize": "nf4"},
    "dora-nf4": {"quantize": "nf4", "lora_dora": True},
}


def adapted_job(home: Path, kind: str, **changes: Any) -> JobSpec:
    """Two steps in two stages of a small Llama with adapters in all attention layers."""
    args = {"lora_rank": 2, "lora_alpha": 8, "lora_targets": "q_proj,v_proj,down_proj", **KINDS[kind], **changes.pop("args", {})}
    data = {"kind": "array", "path": "arrays", "fields": {name: name for name in FOLDERS["causal"].data}}
    model = {"recipe": "hf", "args": {"folder": str(home / "model"), "sequence": 12, **args}}
    return text_job(**{"steps": 2, "model": model, "data": data, "plan": {"planner": "equal_number"}, **changes})


def first_values(job: JobSpec, folder: Path) -> dict[str, np.ndarray]:
    """What the states that come from the folder begin with."""
    assert job.model is not None
    recipe, weights = load_recipe(job.model.recipe, job.model.args), Weights.open(folder)
    assert recipe.sources is not None
    sources = {name: name for name in weights.names} | dict(recipe.sources(weights.names, lambda name: weights.entry(name).spec))
    return {name: weights.read(source) for name, source in sources.items()}


def logits(model: Any) -> torch.Tensor:
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=torch.arange(24).reshape(2, 12)).logits
    return found


@pytest.mark.parametrize(
    "kind", [pytest.param(kind, marks=[pytest.mark.slow] if kind in ("lora-int4", "dora-nf4") else []) for kind in KINDS]
)
def test_adapters_equal_a_plain_loop(tmp_path: Path, kind: str) -> None:
    from peft import PeftModel
    from transformers import LlamaForCausalLM

    before = save_model("causal", tmp_path / "model")
    save_arrays("causal", tmp_path / "arrays")
    job = adapted_job(tmp_path, kind)
    finished, module = trained(job, tmp_path, first_values(job, tmp_path / "model"))
    names = {name.partition("/")[2] for name in finished.reader().manifest.optimizer}
    assert names
    assert all(".lora_" in name for name in names)

    merged = LlamaForCausalLM.from_pretrained(exported(finished, tmp_path / "whole"))
    assert not torch.allclose(logits(merged), logits(before), atol=1e-4)
    torch.testing.assert_close(logits(merged), logits(module), atol=1e-5, rtol=1e-4)
    alone = exported(finished, tmp_path / "alone", "--adapters")
    if "quantize" not in KINDS[kind]:
        found = PeftModel.from_pretrained(LlamaForCausalLM.from_pretrained(tmp_path / "model"), alone)
        torch.testing.assert_close(logits(found), logits(module), atol=1e-5, rtol=1e-4)


def test_layers_that_store_the_transposed_weight(tmp_path: Path) -> None:
    """The Conv1D of GPT-2: quantized, with DoRA."""
    from transformers import GPT2Config, GPT2LMHeadModel

    torch.manual_seed(1)
    GPT2LMHeadModel(GPT2Config(**GPT2)).save_pretrained(tmp_path / "model")
    save_arrays("causal", tmp_path / "arrays")
    job = adapted_job(tmp_path, "dora-nf4", args={"lora_targets": "c_attn,c_fc"})
    finished, module = trained(job, tmp_path, first_values(job, tmp_path / "model"))
    merged = GPT2LMHeadModel.from_pretrained(exported(finished, tmp_path / "whole"))
    torch.testing.assert_close(logits(merged), logits(module), atol=1e-5, rtol=1e-4)


@pytest.mark.parametrize("method", ["int8", "int4", "nf4"])
def test_no_whole_weight_outlives_its_operator(tmp_path: Path, method: str) -> None:
    """The plan counts codes and scales as states, and nothing else of the weights from forward to backward."""
    save_model("causal", tmp_path, hidden_size=64, intermediate_size=128)
    args = {"folder": str(tmp_path), "sequence": 12, "lora_rank": 2}
    plain, quantized = (load_recipe("hf", {**args, **more}).graph("train", 1) for more in ({}, {"quantize": method}))
    whole = {name: state.spec.nbytes for name, state in plain.state.items() if "_proj" in name and ".lora_" not in name}
    small = {name: state.spec.nbytes for name, state in quantized.state.items() if "_proj" in name and ".lora_" not in name}
    # the scale of a row weighs more in a small layer
    assert sum(small.values()) < {"int8": 0.27, "int4": 0.17, "nf4": 0.18}[method] * sum(whole.values())
    products = [op for op in quantized.ops if op.target == "farflung.gradient"]
    assert len(products) == len(whole) - 3  # below the first adapter, three products need no gradient
    read = {name for op in products for name in op.states()}
    assert read <= quantized.state.keys()
    for op in products:  # the operator keeps its inputs: no value that it reads is as large as a weight
        assert all(quantized.spec(value).numel < 64 * 64 for value in op.values())


def test_errors(tmp_path: Path) -> None:
    save_model("causal", tmp_path / "model")
    save_arrays("causal", tmp_path / "arrays")
    with Loopback(tmp_path, 1) as cluster:
        for args, text in (
            ({"lora_rank": 0, "quantize": "nf4"}, r"hf: model\.args\.quantize = 'nf4' without adapters: set lora_rank"),
            ({"quantize": "int3"}, r"hf: model\.args\.quantize = 'int3': did you mean 'int8'\? known are int8, int4, nf4"),
            (
                {"lora_dora": True, "lora_targets": "embed_tokens"},
                r"lora_dora: model\.embed_tokens is a Embedding, and DoRA needs",
            ),
        ):
            changed = {**({"lora_alpha": 0, "lora_targets": ""} if args.get("lora_rank") == 0 else {}), **args}
            with pytest.raises(InputError, match=text):
                cluster.submit(adapted_job(tmp_path, "lora", args=changed))
        with pytest.raises(InputError, match=r"model\.args\.quantize needs trained weights: name a folder with safetensors"):
            cluster.submit(adapted_job(tmp_path, "lora-nf4", weights={"source": "init"}))
        for file in (tmp_path / "model").glob("model-*"):
            file.unlink()
        (tmp_path / "model" / "model.safetensors.index.json").write_text('{"weight_map": {}}')
        with pytest.raises(CheckpointError, match=r"lack \d+ of \d+ states, e\.g\. "):
            cluster.submit(adapted_job(tmp_path, "lora-nf4"))
