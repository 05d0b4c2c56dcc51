"""Small models of the transformers library with random weights, saved as folders; and arrays for their tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

__all__ = ["FOLDERS", "save_arrays", "save_model", "save_tokenizer"]

_TEXT = {"vocab_size": 64, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
_LENGTH, _SAMPLES = 12, 24


@dataclass(frozen=True, kw_only=True)
class Folder:
    """A class of transformers, its configuration, the recipe's arguments and what a sample of its data is."""

    model: str
    config: Mapping[str, Any]
    args: Mapping[str, Any]
    data: Mapping[str, Callable[[np.random.Generator], Any]]


def _tokens(length: int = _LENGTH, low: int = 2) -> Callable[[np.random.Generator], Any]:
    return lambda rng: rng.integers(low, 64, (_SAMPLES, length))


def _classes(random: np.random.Generator) -> Any:
    return random.integers(0, 3, _SAMPLES)


FOLDERS: Mapping[str, Folder] = {
    "causal": Folder(
        model="LlamaForCausalLM",
        config={**_TEXT, "num_key_value_heads": 1, "max_position_embeddings": 32, "bos_token_id": 0, "eos_token_id": 1},
        args={"sequence": _LENGTH},
        data={"input_ids": _tokens(), "labels": _tokens()},
    ),
    "experts": Folder(
        model="MixtralForCausalLM",
        config={**_TEXT, "num_key_value_heads": 1, "num_local_experts": 4, "bos_token_id": 0, "eos_token_id": 1},
        args={"sequence": _LENGTH},
        data={"input_ids": _tokens(), "labels": _tokens()},
    ),
    "masked": Folder(
        model="BertForMaskedLM",
        config={**_TEXT, "max_position_embeddings": 32},
        args={"sequence": _LENGTH, "task": "masked", "mask_token_id": 3, "mask_fraction": 0.3},
        data={"input_ids": _tokens(), "labels": _tokens()},
    ),
    "sequence_classification": Folder(
        model="BertForSequenceClassification",
        config={**_TEXT, "max_position_embeddings": 32, "num_labels": 3},
        args={"sequence": _LENGTH, "task": "sequence_classification", "inputs": "input_ids, attention_mask"},
        data={
            "input_ids": _tokens(),
            "attention_mask": lambda random: np.ones((_SAMPLES, _LENGTH), np.int64),
            "labels": _classes,
        },
    ),
    "token_classification": Folder(
        model="BertForTokenClassification",
        config={**_TEXT, "max_position_embeddings": 32, "num_labels": 3},
        args={"sequence": _LENGTH, "task": "token_classification"},
        data={"input_ids": _tokens(), "labels": lambda random: random.integers(0, 3, (_SAMPLES, _LENGTH))},
    ),
    "seq2seq": Folder(
        model="T5ForConditionalGeneration",
        config={
            "vocab_size": 64,
            "d_model": 16,
            "num_layers": 2,
            "num_heads": 2,
            "d_kv": 8,
            "d_ff": 32,
            "decoder_start_token_id": 0,
        },
        args={"sequence": _LENGTH, "target": 6, "task": "seq2seq"},
        data={"input_ids": _tokens(), "labels": _tokens(6)},
    ),
    "image_classification": Folder(
        model="ViTForImageClassification",
        config={
            **{key: value for key, value in _TEXT.items() if key != "vocab_size"},
            "image_size": 16,
            "patch_size": 8,
            "num_labels": 3,
        },
        args={"task": "image_classification"},
        data={
            "pixel_values": lambda random: random.normal(size=(_SAMPLES, 3, 16, 16)).astype(np.float32),
            "labels": _classes,
        },
    ),
}


def save_model(kind: str, folder: Path, **changes: Any) -> Any:
    """Save a model with random weights in several files; returns it. ``kind``: of ``FOLDERS``, or a class of transformers."""
    import transformers

    transformers.utils.logging.disable_progress_bar()
    torch.manual_seed(1)
    known = FOLDERS.get(kind, Folder(model=kind, config=_TEXT, args={}, data={}))
    made = getattr(transformers, known.model)
    model = made(made.config_class(**(dict(known.config) | changes))).eval()
    model.save_pretrained(folder, max_shard_size="6KB")
    return model


def save_arrays(kind: str, folder: Path) -> None:
    """Save the samples of a task, one ``.npy`` file for each input."""
    folder.mkdir(parents=True, exist_ok=True)
    random = np.random.default_rng(5)
    for name, make in FOLDERS[kind].data.items():
        np.save(folder / f"{name}.npy", make(random))


def save_tokenizer(folder: Path) -> None:
    """A tokenizer of words, settings for generation and a chat template beside the model in ``folder``."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import GenerationConfig, PreTrainedTokenizerFast

    words = {"<|endoftext|>": 0, "[UNK]": 1, **{f"word{number}": number for number in range(2, 256)}}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    whole = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>", unk_token="[UNK]")
    whole.chat_template = "{% for message in messages %}{{ message['content'] }} {% endfor %}"
    whole.save_pretrained(folder)
    GenerationConfig(max_new_tokens=5, do_sample=False, eos_token_id=0, pad_token_id=0).save_pretrained(folder)
