"""Model configurations drawn at random from the classes of ``transformers`` and ``torchvision``, made small.

The draw takes a task, then a model type that has a class for this task, then the choices of the configuration (layers, attention
implementation). Sizes are set by the names of the attributes, in sub-configurations too; everything else keeps its default.
A drawn class whose small configuration PyTorch itself cannot run is drawn again, and the report lists it.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from benchmarks.training.coverage_batches import LABELS, TASKS, VOCABULARY, Batch, model_batch
from benchmarks.training.coverage_vision import VISION, vision_batch, vision_model

__all__ = ["Draw", "draw_model", "of_transformers"]


@dataclass(frozen=True, kw_only=True)
class Draw:
    """A drawn configuration: ``make`` builds the module with its seed, ``batch`` gives a micro-batch by keyword."""

    library: str
    model_class: str
    choices: Mapping[str, Any]
    make: Callable[[], nn.Module] = field(repr=False)
    batch: Callable[[int, int], Batch] = field(repr=False)


#: Attribute of a configuration -> its small value.
_SIZES: Mapping[str, int] = {
    **dict.fromkeys(
        ("hidden_size", "d_model", "n_embd", "dim", "embed_dim", "hidden_dim", "embedding_size", "d_embed", "encoder_hidden_size",
         "decoder_hidden_size", "word_embed_proj_dim", "embedding_dim", "projection_dim", "projector_hidden_size", "emb_dim",
         "hidden_sizes_dim", "attention_hidden_size", "lru_width", "cross_attention_hidden_size", "classifier_proj_size",
         "conv_dim_size", "hidden_channels", "num_features", "global_dim", "decoder_dim", "neck_hidden_size", "d_inner"), 32),
    **dict.fromkeys(
        ("num_attention_heads", "n_head", "n_heads", "num_heads", "encoder_attention_heads", "decoder_attention_heads",
         "attention_heads", "encoder_heads", "num_encoder_attention_heads", "num_decoder_attention_heads",
         "linear_num_key_heads", "num_global_attention_heads", "swa_num_attention_heads", "index_n_heads"), 4),
    **dict.fromkeys(("num_key_value_heads", "num_kv_heads", "n_head_kv", "multi_query_group_num", "swa_num_key_value_heads"), 4),
    **dict.fromkeys(("linear_num_value_heads", ), 4),
    **dict.fromkeys(("head_dim", "d_kv", "attention_head_dim", "v_head_dim", "kv_channels", "linear_key_head_dim",
                     "linear_value_head_dim", "global_head_dim", "swa_head_dim", "d_head", "attention_head_size"), 8),
    **dict.fromkeys(("qk_nope_head_dim", "qk_rope_head_dim", "mamba_d_head", "mamba_headdim", "mamba_head_dim",
                     "index_head_dim"), 8),
    **dict.fromkeys(
        ("intermediate_size", "ffn_dim", "d_ff", "n_inner", "encoder_ffn_dim", "decoder_ffn_dim", "ffn_hidden_size",
         "mlp_dim", "inner_dim", "dim_feedforward", "hidden_dim_ff", "ff_dim", "intermediate_size_mlp", "moe_intermediate_size",
         "shared_expert_intermediate_size", "expert_ffn_hidden_size", "encoder_intermediate_size",
         "moe_shared_expert_intermediate_size", "shared_intermediate_size", "pooler_hidden_size", "d_intermediate"), 64),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 16),
    **dict.fromkeys(("num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts", "num_local_expert"), 4),
    **dict.fromkeys(("num_experts_per_tok", "num_experts_per_token", "moe_topk", "moe_k",
                     "top_k_experts", "num_selected_experts"), 2),
    **dict.fromkeys(("n_group", "topk_group", "n_shared_experts", "first_k_dense_replace", "num_expert_group"), 1),
    **dict.fromkeys(("vocab_size", "vocab_size_per_layer_input", "encoder_vocab_size", "decoder_vocab_size"), VOCABULARY),
    **dict.fromkeys(("max_position_embeddings", "n_positions", "max_seq_len", "seq_length", "max_sequence_length",
                     "max_source_positions", "max_target_positions", "max_encoder_position_embeddings",
                     "max_decoder_position_embeddings"), 64),
    **dict.fromkeys(("sliding_window", "attention_window_size"), 8),
    **dict.fromkeys(("image_size", "img_size"), 32),
    **dict.fromkeys(("patch_size",), 8),
    **dict.fromkeys(("mamba_d_state", "state_size", "ssm_state_size"), 8),
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), 8),
    **dict.fromkeys(("num_mel_bins",), 16),
    **dict.fromkeys(("num_frames",), 4),
    **dict.fromkeys(("rotary_dim",), 8),
    "num_hash_functions": 2, "bottleneck_size": 16, "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 2,
}  # fmt: skip
_LAYERS = (
    "num_hidden_layers", "n_layer", "num_layers", "n_layers", "encoder_layers", "decoder_layers", "num_encoder_layers",
    "num_decoder_layers", "depth", "num_block_layers", "decoder_num_hidden_layers",
)  # fmt: skip
#: Attributes that hold an index of the vocabulary.
_TOKENS = ("pad_token_id", "bos_token_id", "eos_token_id", "sep_token_id", "cls_token_id", "mask_token_id",
           "decoder_start_token_id", "unk_token_id", "image_token_id", "video_token_id", "audio_token_id",
           "forced_eos_token_id", "forced_bos_token_id", "image_token_index", "boi_token_id", "eoi_token_id")  # fmt: skip


def _shrink(config: Any, layers: int, depth: int = 0) -> None:
    """Set the sizes of ``config`` and of the configurations inside it."""
    values = dict(vars(config))
    for name, value in values.items():
        if isinstance(value, bool):
            continue
        if hasattr(value, "to_dict") and depth < 3:
            _shrink(value, layers, depth + 1)
        elif name in _SIZES and isinstance(value, int):
            _set(config, name, min(value, _SIZES[name]))
        elif name in _LAYERS and isinstance(value, int):
            _set(config, name, min(value, layers))
        elif name in ("layer_types", "mlp_layer_types", "layers_block_type") and isinstance(value, list):
            _set(config, name, _spread(value, layers))
    for index, name in enumerate(_TOKENS):
        value = values.get(name)
        if isinstance(value, int) and not isinstance(value, bool) and value >= VOCABULARY:
            _set(config, name, VOCABULARY - 2 - index % 8)


def _spread(kinds: list[Any], layers: int) -> list[Any]:
    """Entries for ``layers`` layers in which as many kinds as possible occur."""
    distinct = list(dict.fromkeys(kinds))
    return (distinct * layers)[:layers] if len(distinct) > 1 else kinds[:layers]


def _set(config: Any, name: str, value: Any) -> None:
    try:
        setattr(config, name, value)
    except (AttributeError, NotImplementedError, TypeError, ValueError):
        return


def draw_model(rng: random.Random, library: str) -> Draw:
    """Draw a class of ``transformers`` or ``torchvision`` and a small configuration; building happens in ``make``."""
    return _draw_vision(rng) if library == "torchvision" else _draw_transformers(rng)


def _draw_vision(rng: random.Random) -> Draw:
    name, seed = rng.choice(list(VISION)), rng.randrange(1 << 30)
    return Draw(
        library="torchvision",
        model_class=name,
        choices={"seed": seed},
        make=lambda: vision_model(name, seed),
        batch=lambda step, index: vision_batch(name, seed + 1000 * step + 10 * index),
    )


def _draw_transformers(rng: random.Random) -> Draw:
    from transformers.models.auto import configuration_auto, modeling_auto

    pairs = [
        (task, kind, name)
        for task, (mapping, _) in TASKS.items()
        for kind, names in getattr(modeling_auto, mapping).items()
        for name in ([names] if isinstance(names, str) else names)
        if kind in configuration_auto.CONFIG_MAPPING_NAMES  # type: ignore[attr-defined]
    ]
    kinds = sorted({kind for _, kind, _ in pairs})
    kind = rng.choice(kinds)
    task, _, name = rng.choice([pair for pair in pairs if pair[1] == kind])
    choices = {
        "task": task,
        "model_type": kind,
        "layers": rng.choice((1, 2, 3)),
        "attention": rng.choice(("sdpa", "eager")),
        "seed": rng.randrange(1 << 30),
    }
    return of_transformers(name, choices)


def of_transformers(name: str, choices: Mapping[str, Any]) -> Draw:
    """A small configuration of the class ``name``; ``choices`` has task, model_type, layers, attention and seed."""
    return Draw(
        library="transformers",
        model_class=name,
        choices=choices,
        make=lambda: _build(name, choices)[0],
        batch=lambda step, index: _batch(name, choices, choices["seed"] + 1000 * step + 10 * index),
    )


def _batch(name: str, choices: Mapping[str, Any], seed: int) -> Batch:
    import transformers

    return model_batch(getattr(transformers, name), choices["task"], seed, _config(name, choices))


def _config(name: str, choices: Mapping[str, Any]) -> Any:
    import transformers
    from transformers import AutoConfig

    config = AutoConfig.for_model(choices["model_type"])
    wanted = getattr(transformers, name).config_class
    if wanted is not None and not isinstance(config, wanted):
        config = wanted()
    _shrink(config, choices["layers"])
    for own in (config, getattr(config, "text_config", None)):
        if own is not None and getattr(own, "pad_token_id", None) is None:
            _set(own, "pad_token_id", 1)
    if "classification" in choices["task"]:
        _set(config, "num_labels", LABELS)
    _agree(config)
    return config


def _agree(config: Any) -> None:
    """Set what follows from the small sizes, and what a training run sets."""
    if getattr(config, "decoder_start_token_id", None) is None:
        _set(config, "decoder_start_token_id", 2)
    if hasattr(config, "expand") and hasattr(config, "head_dim") and hasattr(config, "num_heads"):
        _set(config, "head_dim", config.expand * config.hidden_size // config.num_heads)
    for own in (config, getattr(config, "text_config", None)):
        kinds = getattr(own, "layer_types", None)
        if isinstance(kinds, list) and not any("attention" in kind and "linear" not in kind for kind in kinds):
            _set(own, "use_cache", False)  # the cache of transformers needs a layer with attention


def _build(name: str, choices: Mapping[str, Any]) -> tuple[nn.Module, Any]:
    import transformers

    config = _config(name, choices)
    model = getattr(transformers, name)
    attention = choices["attention"] if getattr(model, "_supports_sdpa", True) else "eager"
    torch.manual_seed(choices["seed"])
    module = model._from_config(config, attn_implementation=attention, dtype=torch.float32)
    module.train()
    return module, config
