"""The recipe hf: what its errors say, what it reads from the folder, and which form it has."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from farflung.errors import InputError
from farflung.frontends.recipes import load_recipe
from tests.support.models.model_folders import FOLDERS, save_model

pytest.importorskip("transformers")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save_model("causal", tmp_path)
    return tmp_path


def loaded(folder: Path, **args: Any) -> Any:
    return load_recipe("hf", {"folder": str(folder), "sequence": 8, **args})


@pytest.mark.parametrize("kind", FOLDERS)
def test_states_have_the_names_of_the_files(tmp_path: Path, kind: str) -> None:
    model = save_model(kind, tmp_path)
    recipe = load_recipe("hf", {"folder": str(tmp_path), **FOLDERS[kind].args})
    graphs = recipe.graphs([2])
    assert {state.name for state in graphs["train", 2].states if state.trainable} == dict(model.named_parameters()).keys()
    inputs = dict(graphs["train", 2].meta)["inputs"].split(",")
    assert set(inputs) == set(FOLDERS[kind].data)
    assert ("generate", 1) in graphs or kind not in ("causal", "experts")
    assert ("correct" in dict(graphs["evaluate", 2].outputs)) == (kind in ("sequence_classification", "image_classification"))
    assert recipe.weights == str(tmp_path)


@pytest.mark.parametrize(
    ("args", "text"),
    [
        ({"task": "poetry"}, r"hf: unknown task 'poetry': known are causal, masked, seq2seq, "),
        (
            {"task": "seq2seq"},
            r"transformers has no AutoModelForSeq2SeqLM for model_type 'llama': choose another model\.args\.task",
        ),
        ({"inputs": "smell"}, r"unknown input 'smell' in model\.args\.inputs: known are input_ids, attention_mask"),
        (
            {"colour": 3},
            r"unknown argument model\.args\.colour: known are folder, task, sequence, .* and the keys of .*config\.json",
        ),
        ({"sequence": 99}, r"model\.args\.sequence = 99 is longer than the 32 positions of the model: shorten it"),
        ({"dtype": "float16"}, r"model\.args\.dtype = 'float16': it must be 'float32' or 'bfloat16'"),
        ({"lora_alpha": 3}, r"lora_alpha = 3 without adapters: set lora_rank, or remove lora_alpha"),
        ({"lora_rank": 2, "lora_targets": "nose"}, r"lora_targets: .*nose"),
        ({"num_attention_heads": 5}, r"hf: "),
    ],
)
def test_errors(folder: Path, args: dict[str, Any], text: str) -> None:
    with pytest.raises(InputError, match=text):
        loaded(folder, **args).graph("train", 1)


def test_folders_that_are_none(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"model\.args\.folder = .* has no config\.json: name the folder of a downloaded model"):
        loaded(tmp_path)
    config = tmp_path / "config.json"
    config.write_text("{")
    with pytest.raises(InputError, match=r"hf: .*config\.json can't be used: "):
        loaded(tmp_path)
    config.write_text(json.dumps({"model_type": "mine", "auto_map": {"AutoConfig": "evil.Config"}}))
    with pytest.raises(InputError, match=r"names Python code of its own \(auto_map\), which is never run: build the model"):
        loaded(tmp_path)


def test_the_mask_token_comes_from_the_tokenizer(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models
    from transformers import PreTrainedTokenizerFast

    save_model("masked", tmp_path)
    with pytest.raises(
        InputError, match=r"the token that stands for masked places is unknown .*: set model\.args\.mask_token_id"
    ):
        loaded(tmp_path, task="masked")
    tokenizer = Tokenizer(models.WordLevel({"[UNK]": 0, "[MASK]": 7}, unk_token="[UNK]"))
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, mask_token="[MASK]", unk_token="[UNK]").save_pretrained(tmp_path)
    graph = loaded(tmp_path, task="masked").graph("train", 1)
    fills = [op for op in graph.ops if op.target.startswith("aten.masked_fill")]
    assert 7 in {arg for op in fills for arg in op.args}
    assert not [
        op
        for op in loaded(tmp_path, task="masked", mask_fraction=0).graph("train", 1).ops
        if op.rng is not None and "bernoulli" in op.target
    ]
